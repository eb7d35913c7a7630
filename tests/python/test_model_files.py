"""Reading and writing models: what is broken is refused with one sentence that names the place."""

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import normfuse
from normfuse import models
from normfuse.files.model_files import check_target, load_model, save_model
from normfuse.reports.files import write_report

X = np.random.default_rng(5).standard_normal((3, 8)).astype(np.float32)


def small_model() -> onnx.ModelProto:
    return models.chain(["n", 8], spelling="pow_div", opset=13)


def parsed(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "own": 1]> {text}')


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- broken ones ---

LOOP = "[a] a = Add ({0}, b) [b] b = Add (a, {0})"
BRANCHED = """g (float[n, 8] x) => (float[n, 8] y) <bool on = {{1}}> {{
    y = Relu (x) [choice] c = If (on) <then_branch = t () => (float[] {1}) {{ {0} }},
    else_branch = e () => (float[] {1}) {{ {0} }}> }}"""
FUNCTION = """g (float[n, 8] x) => (float[n, 8] y) {{ y = Relu (x) }}
    <opset_import: ["": 17], domain: "own"> Loop (p) => (b) {{ {0} }}"""
FIRST_WEIGHT = "graph.initializer[0]"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BRANCHED.format("[inner] r = Relu (c)", "r"), "the graph has a cycle, 'choice' (If) -> 'choice' (If); "),
        (BRANCHED.format(LOOP.format("x"), "a"), "the graph has a cycle, 'a' (Add) -> 'b' (Add) -> 'a' (Add); "),
        (FUNCTION.format(LOOP.format("p")), "the graph has a cycle, 'a' (Add) -> 'b' (Add) -> 'a' (Add); "),
        (
            BRANCHED.format("[inner] r = Relu (not_there)", "r"),
            "node 'choice' (If), then_branch: node 'inner' (Relu) reads 'not_there'",
        ),
        # What is done to a sound model.
        ("graph.node[0].input[0] = graph.node[-1].output[0]", "a cycle, 'ReduceMean_0' (ReduceMean) -> 'Sub_1' (Sub)"),
        (f"del {FIRST_WEIGHT}", "neither an input, nor an initialiser"),
        (f"del {FIRST_WEIGHT}", "constant_0"),
        ("graph.node[1].output[0] = graph.node[0].output[0]", "defined before"),
        (f"graph.initializer.append({FIRST_WEIGHT})", "two initialisers are called 'constant_0'"),
        ("graph.input.append(graph.input[0])", "two inputs are called 'x'"),
        (f"{FIRST_WEIGHT}.raw_data = {FIRST_WEIGHT}.raw_data[:28]", "needs 32 bytes and has 28"),
        (f"{FIRST_WEIGHT}.data_type = 999", "unknown element type 999"),
        (f"{FIRST_WEIGHT}.dims[:] = [-8]", "negative dimension"),
        ("graph.output[0].name = 'nowhere'", "output 'nowhere' is computed by no node"),
        ("del model.opset_import[:]", "imports no opset version"),
        ("graph.node[0].attribute.add(name='strange')", "attribute 'strange' without a type"),
        (
            "graph.node.add(op_type='FusedActivation', domain='ai.normfuse', name='own', input=['x'], output=['z'])"
            ".attribute.add(name='steps', type=3, s=b'Gelu\\xff');"
            "model.opset_import.add(domain='ai.normfuse', version=1)",
            "'own' (FusedActivation): attribute 'steps' is no text in UTF-8",
        ),
        ("model.ClearField('graph')", "no graph"),
        ("graph.node[1].input[0] = ''", "node 'Sub_1' (Sub) lacks its input 'A'"),
        ("graph.node[1].input.append('x')", "node 'Sub_1' (Sub) has 3 inputs; Sub has 2"),
    ],
)
def test_broken_model_is_refused(text: str, words: str) -> None:
    model = parsed(text) if text.startswith("g (") else small_model()
    if not text.startswith("g ("):
        exec(text, {"model": model, "graph": model.graph})
    with pytest.raises(normfuse.InvalidModelError) as raised:
        load_model(model)
    message = str(raised.value)
    assert words in message
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(("place", "words"), [("value_info", "say INT64"), ("output", "say DOUBLE")])
def test_wrong_types_are_refused(place: str, words: str, complete: bool) -> None:
    model = small_model()
    if complete:
        model = onnx.shape_inference.infer_shapes(model)
        (known,) = (value for value in model.graph.value_info if value.name == "Sub_1_0")
        model.graph.value_info.remove(known)
    if place == "output":
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    else:
        model.graph.value_info.append(helper.make_tensor_value_info("Sub_1_0", TensorProto.INT64, ["n", 8]))
    with pytest.raises(normfuse.InvalidModelError, match=f"computes FLOAT.*{words}") as raised:
        normfuse.optimize(model, verify=False)
    assert ("Node 'Sub_1' (Sub)" in str(raised.value)) == (place == "value_info")


@pytest.mark.parametrize("shape", [["n", 9], ["n", 8, 1], ["n"]])
def test_wrong_shapes_are_verified_away(shape: list[int | str]) -> None:
    """ONNX Runtime takes such a model; whatever the pass makes of it computes the same."""
    model = small_model()
    model.graph.value_info.append(helper.make_tensor_value_info("Sub_1_0", TensorProto.FLOAT, shape))
    assert normfuse.optimize(model).report.verification.passed


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"just some text, not protobuf at all\n", "is not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is not an ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"\x24\x00\x00\x00ORTM" + bytes(64), "ONNX Runtime's own format"),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(normfuse.InvalidModelError, match=rf"model\.onnx.*{words}"):
        load_model(tmp_path / "model.onnx")


def test_what_is_no_file(tmp_path: Path) -> None:
    cases: list[tuple[Any, str]] = [
        (tmp_path / "nothing.onnx", "does not exist"),
        (tmp_path, "is a folder"),
        (tmp_path / "a\0b.onnx", "null"),
        (7, r"not as builtins\.int"),
    ]
    for given, words in cases:
        with pytest.raises(normfuse.InvalidModelError, match=words):
            load_model(given)


# --- external data ---


def external_model(folder: Path) -> Path:
    model = models.chain(["n", 512], spelling="canonical", opset=17)
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=16)
    return path


def set_external(path: Path, key: str, text: str) -> None:
    model = onnx.load(path, load_external_data=False)
    for entry in (entry for tensor in model.graph.initializer for entry in tensor.external_data):
        if entry.key == key:
            entry.value = text
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("bytes_kept", [None, 0, 100])
def test_external_data_that_is_missing_or_cut_off(tmp_path: Path, bytes_kept: int | None) -> None:
    path, weights = external_model(tmp_path), tmp_path / "weights.bin"
    kept = weights.read_bytes()[:bytes_kept]
    weights.unlink()
    if bytes_kept is not None:
        weights.write_bytes(kept)
    with pytest.raises(normfuse.InvalidModelError, match=r"weights\.bin.*(missing|too short)"):
        load_model(path)


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("location", "loop/weights.bin", "which is no path|is missing"),
        ("location", "a\0b", r"'a\\x00b', which is no path"),
        ("location", "", "is no file"),
        ("location", "pipe", "is no file"),
        ("location", "x" * 300, "which is no path|is missing"),
        ("offset", "-8", "at offset '-8' of a file"),
        ("length", "-1", "at length '-1' of a file"),
        ("offset", "many", "at offset 'many' of a file"),
        ("offset", "", "at offset '' of a file"),
        ("offset", str(2**70), "too short"),
        ("location", "../weights.bin", "outside the model's folder"),
        ("location", "/etc/hostname", "outside the model's folder"),
        ("location", "link/weights.bin", "outside the model's folder"),
    ],
)
def test_external_data_that_makes_no_sense(tmp_path: Path, key: str, text: str, words: str) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    path = external_model(folder)
    (tmp_path / "weights.bin").write_bytes((folder / "weights.bin").read_bytes())
    (folder / "link").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    os.mkfifo(folder / "pipe")
    set_external(path, key, text)
    with pytest.raises(normfuse.InvalidModelError, match=words) as raised:
        load_model(path)
    assert "model.onnx" in str(raised.value)
    assert "lambda" not in str(raised.value)


def test_the_cache_of_the_hugging_face_hub(tmp_path: Path) -> None:
    """The model and its data are links to files of other names, side by side in another folder."""
    (tmp_path / "made").mkdir()
    made = external_model(tmp_path / "made")
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "3f5a" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for name, blob in (("model.onnx", "0a"), ("weights.bin", "1b")):
        made.with_name(name).rename(blobs / blob)
        (snapshot / name).symlink_to(Path(f"../../../blobs/{blob}"))
    path = snapshot / "model.onnx"
    result = normfuse.optimize(path)
    assert result.report.verification.passed
    locations = {e.value for t in result.model.graph.initializer for e in t.external_data if e.key == "location"}
    assert locations == {"weights.bin"}, "as in the model that was given"
    result.save(tmp_path / "out.onnx")
    feed = {"x": np.random.default_rng(0).standard_normal((2, 512)).astype(np.float32)}
    expected = onnxruntime.InferenceSession(path).run(None, feed)[0]
    for session in (normfuse.InferenceSession(path), onnxruntime.InferenceSession(tmp_path / "out.onnx")):
        np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-5, atol=1e-5)
    # Elsewhere a link still leads nowhere.
    (tmp_path / "secret").write_bytes((blobs / "1b").read_bytes())
    (snapshot / "weights.bin").unlink()
    (snapshot / "weights.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(normfuse.InvalidModelError, match="outside the model's folder"):
        load_model(path)


def test_weights_with_a_second_name(tmp_path: Path) -> None:
    """As copying tools and package caches make them, with hard links."""
    path = external_model(tmp_path)
    os.link(tmp_path / "weights.bin", tmp_path / "same.bin")
    result = normfuse.optimize(path)
    assert result.report.verification.passed
    assert result.save(tmp_path / "out.onnx") > 0
    model = ir.load(path)
    with pytest.raises(normfuse.InvalidModelError, match="give the path of the model"):
        load_model(model)
    (tmp_path / "same.bin").unlink()
    tensor = next(iter(model.graph.initializers.values())).const_value
    assert isinstance(tensor, ir.ExternalTensor)
    tensor._offset = -8
    with pytest.raises(normfuse.InvalidModelError, match=r"at offset -8 .*neither can be negative"):
        load_model(model)


def test_saving_keeps_external_data_external_and_overwrites_nothing(tmp_path: Path) -> None:
    """Nor the weights that it reads; beside the model is what belongs to it, and nothing else."""
    path = external_model(tmp_path)
    source, target = load_model(path), tmp_path / "außen" / "copy.onnx"
    target.parent.mkdir()
    size = save_model(source.model, target, never=source)
    assert names_of(target.parent) == ["copy.onnx", "copy.onnx.data"]
    assert size == sum(p.stat().st_size for p in target.parent.iterdir())
    before = onnx.load(path)
    (tmp_path / "weights.bin").rename(tmp_path / "out.onnx.data")
    set_external(path, "location", "out.onnx.data")
    weights = (tmp_path / "out.onnx.data").read_bytes()
    source = load_model(path)
    save_model(source.model, tmp_path / "out.onnx", never=source)
    assert (tmp_path / "out.onnx.data").read_bytes() == weights
    for written in (onnx.load(target), onnx.load(tmp_path / "out.onnx")):
        for a, b in zip(written.graph.initializer, before.graph.initializer, strict=True):
            np.testing.assert_array_equal(numpy_helper.to_array(a), numpy_helper.to_array(b))
    with pytest.raises(normfuse.OptionError, match="holds the weights of the input"):
        save_model(source.model, tmp_path / "out.onnx.data", never=source)


# Numbers in float are looked at, for NaN and infinity: for ten seconds.
@pytest.mark.parametrize("bytes_each", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_weights_of_more_than_two_gigabytes_are_not_read(tmp_path: Path, bytes_each: int) -> None:
    """More than one protobuf message can hold: an embedding in a file that is all holes, before normalisations."""
    norm = "n{0} = LayerNormalization ({1}, s, b) y{0} = com.microsoft.Gelu (n{0})"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (int64[batch, length] ids) => (float[] y1) '
        f"{{ t = Gather (table, ids) c = Cast <to = 1> (t) {norm.format(0, 'c')} {norm.format(1, 'y0')} }}"
    )
    for name in "sb":
        model.graph.initializer.append(numpy_helper.from_array(np.ones(256, np.float32), name))
    rows = 2_360_000_000 // 256 // bytes_each
    kind = TensorProto.FLOAT if bytes_each == 4 else TensorProto.INT8
    table = model.graph.initializer.add(name="table", data_type=kind, dims=[rows, 256], data_location=1)
    table.external_data.add(key="location", value="table.bin")
    with (tmp_path / "table.bin").open("wb") as file:
        file.truncate(bytes_each * rows * 256)
    onnx.save(model, tmp_path / "large.onnx")
    code = """if True:
        import sys, normfuse
        result = normfuse.optimize(sys.argv[1], verify=False)
        status = dict(line.split(":") for line in open("/proc/self/status"))
        assert len(result.report.fused) == 2, result.report.fused
        assert result.report.bytes_before > 2**31
        large = next(t for t in result.model.graph.initializer if t.name == "table")
        assert large.data_location == 1 and not large.raw_data
        print(status["RssAnon"].split()[0])"""
    command = [sys.executable, "-c", code, str(tmp_path / "large.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 400_000, "kB of memory that are not a mapped file"


# --- where to write ---


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    """Only regular files are replaced."""
    path = tmp_path / "model.onnx"
    path.write_bytes(small_model().SerializeToString())
    source = load_model(path)
    (tmp_path / "other.onnx").symlink_to(path)
    (tmp_path / "loop.onnx").symlink_to(tmp_path / "loop.onnx")
    os.mkfifo(tmp_path / "pipe.onnx")
    before = [*names_of(tmp_path), "socket.onnx"]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket.onnx"))
        for target, words in [
            (tmp_path, "is a folder"),
            (tmp_path / "none" / "out.onnx", "does not exist"),
            (path, "is the input itself"),
            (tmp_path / "other.onnx", "is the input itself"),
            (Path("/proc/out.onnx"), "Cannot write /proc/out.onnx"),
            (tmp_path / "pipe.onnx", "it is a pipe, not a file"),
            (tmp_path / "socket.onnx", "it is a socket, not a file"),
            (tmp_path / "loop.onnx", "Cannot write"),
            (tmp_path / "a\0b.onnx", "null"),
            (tmp_path / ("x" * 300 + ".onnx"), "File name too long"),
        ]:
            with pytest.raises(normfuse.OptionError, match=words):
                save_model(source.model, target, never=source)
            if "input" not in words and "/proc" not in words:
                with pytest.raises(normfuse.OptionError, match=words):
                    check_target(target)
    with pytest.raises(normfuse.OptionError, match="it is a device, not a file"):
        check_target(Path(os.devnull))
    assert (tmp_path / "pipe.onnx").is_fifo()
    assert names_of(tmp_path) == sorted(before)


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "old.onnx").write_bytes(b"old")
    source = load_model(small_model())
    for name, target in [("link.onnx", "elsewhere/old.onnx"), ("dangling.onnx", "elsewhere/new.onnx")]:
        (tmp_path / name).symlink_to(target)
        save_model(source.model, tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert onnx.load(tmp_path / target).graph == onnx.load(tmp_path / name).graph
    (tmp_path / "report.json").symlink_to("elsewhere/report.json")
    write_report({"model": "m"}, tmp_path / "report.json")
    assert (tmp_path / "report.json").is_symlink()
    assert json.loads((tmp_path / "elsewhere" / "report.json").read_text()) == {"model": "m"}
    assert names_of(tmp_path / "elsewhere") == ["new.onnx", "old.onnx", "report.json"]


def test_weights_lie_beside_the_model_whatever_is_there(tmp_path: Path) -> None:
    source = load_model(external_model(tmp_path))
    os.mkfifo(tmp_path / "out.onnx.data")
    save_model(source.model, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").is_fifo()
    assert (tmp_path / "out.onnx.normfuse.data").is_file()
    assert load_model(tmp_path / "out.onnx").size > 0
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.onnx").symlink_to("elsewhere/real.onnx")
    with pytest.raises(normfuse.OptionError, match=r"link into another folder.*name .*real\.onnx itself"):
        save_model(source.model, tmp_path / "link.onnx")


# --- unusual ones ---

STEPS = [
    *("m = ReduceMean <axes = [-1]> (v)", "d = Sub (v, m)", "e = Pow (d, two)", "f = ReduceMean <axes = [-1]> (e)"),
    *("h = Add (f, epsilon)", "r = Sqrt (h)", "n = Div (d, r)", "g = Mul (n, scale)", "y = Add (g, bias)"),
]
WEIGHTS = "float[8] scale = {1, 2, 3, 4, 5, 6, 7, 8}, float[8] bias = {8, 7, 6, 5, 4, 3, 2, 1}"
NUMBERS = "float two = {2}, float epsilon = {0.00001}, bool yes = {1}"
CONSTANTS = ["two = Constant <value = float {2}> ()", "epsilon = Constant <value = float {0.00001}> ()"]
ORDERS = {"backwards": lambda nodes: nodes[::-1], "shuffled": lambda nodes: random.Random(3).sample(nodes, len(nodes))}


def in_order(kind: str, order: Any) -> onnx.ModelProto:
    """A normalisation in the main graph, in a branch that reads what is computed behind it, or in a function."""
    nodes, head = " ".join(order(STEPS)), f"<{WEIGHTS}, {NUMBERS}>"
    if kind == "main graph":
        return parsed(f"g (float[n, 8] v) => (float[n, 8] y) {head} {{ {nodes} }}", 13)
    if kind == "branch":
        branch = f"b () => (float[n, 8] y) {{ {nodes} }}"
        choice = f"[choice] z = If (yes) <then_branch = {branch}, else_branch = {branch}>"
        outer = " ".join(order(["v = Neg (w)", choice]))
        return parsed(f"g (float[n, 8] w) => (float[n, 8] z) {head} {{ {outer} }}", 13)
    body = " ".join(order([*CONSTANTS, *STEPS]))
    return parsed(
        f"g (float[n, 8] x) => (float[n, 8] z) {head} {{ z = own.Norm (x, scale, bias) }} "
        f'<opset_import: ["": 13], domain: "own"> Norm (v, scale, bias) => (y) {{ {body} }}',
        13,
    )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["main graph", "branch", "function"])
@pytest.mark.parametrize("given_as", ["path", "proto", "ir"])
def test_nodes_in_any_order_are_sorted(kind: str, order: str, given_as: str, tmp_path: Path) -> None:
    """As ONNX Runtime loads them; what was given stays as it was."""
    proto, ordered = in_order(kind, ORDERS[order]), in_order(kind, list)
    given: Any = ir.from_proto(proto) if given_as == "ir" else proto
    if given_as == "path":
        given = tmp_path / "model.onnx"
        given.write_bytes(proto.SerializeToString())

    def serialized() -> bytes:
        if isinstance(given, Path):
            return given.read_bytes()
        return (ir.to_proto(given) if isinstance(given, ir.Model) else given).SerializeToString()

    before, result = serialized(), normfuse.optimize(given)
    assert result.report.verification.passed
    assert [(site.name, site.fused_into) for site in result.report.sites] == [
        (site.name, site.fused_into) for site in normfuse.optimize(ordered).report.sites
    ]
    assert len(result.report.fused) >= 1
    assert normfuse.inspect(given) == list(result.report.sites)
    x = X.astype(np.float64) * (-1 if kind == "branch" else 1)
    d = x - x.mean(-1, keepdims=True)
    expected = d / np.sqrt((d**2).mean(-1, keepdims=True) + 1e-5) * np.arange(1, 9) + np.arange(8, 0, -1)
    found = normfuse.InferenceSession(given).run(None, {proto.graph.input[0].name: X})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert serialized() == before


def test_sorting_moves_only_what_it_must() -> None:
    model = small_model()
    nodes = [node.name for node in model.graph.node]
    model.graph.node.append(model.graph.node.pop(0))
    assert [node.name for node in load_model(model).model.graph] == nodes


def sparse(name: str, shape: list[int], indices: list[Any]) -> onnx.SparseTensorProto:
    places = np.array(indices, np.int64)
    values = helper.make_tensor(name, TensorProto.FLOAT, [len(places)], np.arange(1, len(places) + 1, dtype=np.float32))
    kept = helper.make_tensor("places", TensorProto.INT64, places.shape, places.ravel())
    return helper.make_sparse_tensor(values, kept, shape)


def with_sparse_tensors() -> onnx.ModelProto:
    """As an initialiser of the graph and of a branch, and as a Constant."""
    model = parsed("""g (float[2, 4] x, bool on) => (float[2, 4] y) <float[4] s = {1, 1, 2, 2}> {
        n = LayerNormalization (x, s) z = Add (n, weight) c = Constant () r = Relu (z)
        y = If (on) <then_branch = t () => (float[2, 4] p) { p = Add (r, c) },
            else_branch = e () => (float[2, 4] q) { q = Sub (r, inner) }> }""")
    model.graph.sparse_initializer.append(sparse("weight", [4], [1, 3]))
    constant = sparse("constant", [2, 4], [[0, 1], [1, 3]])
    kind = onnx.AttributeProto.SPARSE_TENSOR
    model.graph.node[2].attribute.append(onnx.AttributeProto(name="sparse_value", type=kind, sparse_tensor=constant))
    branch = next(a.g for a in model.graph.node[-1].attribute if a.name == "else_branch")
    branch.sparse_initializer.append(sparse("inner", [2, 4], [[0, 2], [1, 0]]))
    return model


@pytest.mark.parametrize("on", [True, False])
def test_sparse_weights_come_through_as_dense_ones(on: bool) -> None:
    model = with_sparse_tensors()
    given = model.SerializeToString()
    optimized = normfuse.optimize(model, verify=False)
    assert len(optimized.report.fused) == 1
    assert model.SerializeToString() == given
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(2, 4), "on": np.array(on)}
    expected, found = (
        onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
        for each in (model, optimized.model)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("indices", "dtype"), [([1, 9], 1), ([1, 3], 999)])
def test_a_malformed_sparse_tensor_is_named(indices: list[int], dtype: int) -> None:
    model = with_sparse_tensors()
    tensor = model.graph.sparse_initializer[0]
    tensor.indices.int64_data[:], tensor.values.data_type = indices, dtype
    with pytest.raises(normfuse.InvalidModelError, match=r"sparse tensor 'weight' of shape \[4\] is malformed"):
        normfuse.optimize(model)
