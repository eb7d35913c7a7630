"""Each broken model is refused with one sentence that names the place."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

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

Breakage = Callable[[onnx.ModelProto], None]


def small_model() -> onnx.ModelProto:
    return models.chain(["n", 8], spelling="pow_div", opset=13)


def cyclic(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = model.graph.node[-1].output[0]


def add_branch(model: onnx.ModelProto, *nodes: onnx.NodeProto) -> None:
    output = helper.make_tensor_value_info(nodes[0].output[0], TensorProto.FLOAT, None)
    branch = helper.make_graph(nodes, "branch", [], [output])
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(True), "condition"))
    node = helper.make_node("If", ["condition"], ["chosen"], name="choice", then_branch=branch, else_branch=branch)
    model.graph.node.append(node)


def loop_of_two(read: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Add", [read, "b"], ["a"], name="a"),
        helper.make_node("Add", ["a", read], ["b"], name="b"),
    ]


def cyclic_through_a_branch(model: onnx.ModelProto) -> None:
    add_branch(model, helper.make_node("Relu", ["chosen"], ["r"], name="inner"))


def cyclic_within_a_branch(model: onnx.ModelProto) -> None:
    add_branch(model, *loop_of_two("x"))


def cyclic_function(model: onnx.ModelProto) -> None:
    opsets = [helper.make_opsetid("", 13)]
    model.functions.append(helper.make_function("own", "Loop", ["p"], ["b"], loop_of_two("p"), opsets))


def missing_initializer(model: onnx.ModelProto) -> None:
    del model.graph.initializer[0]


def written_twice(model: onnx.ModelProto) -> None:
    model.graph.node[1].output[0] = model.graph.node[0].output[0]


def two_initializers(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[0])


def two_inputs(model: onnx.ModelProto) -> None:
    model.graph.input.append(model.graph.input[0])


def short_weight(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if list(t.dims) == [8])
    tensor.raw_data = tensor.raw_data[:-4]


def unknown_type(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = 999


def negative_dimension(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [-8]


def lost_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "nowhere"


def wrong_type_of_a_value(model: onnx.ModelProto) -> None:
    model.graph.value_info.append(helper.make_tensor_value_info("Sub_1_0", TensorProto.INT64, ["n", 8]))


def wrong_type_of_the_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE


def no_opset(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


def untyped_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute.append(onnx.AttributeProto(name="strange"))


def attribute_that_is_no_text(model: onnx.ModelProto) -> None:
    node = model.graph.node.add(op_type="FusedActivation", domain="ai.normfuse", name="own")
    node.input.append(model.graph.input[0].name)
    node.output.append("own_result")
    node.attribute.append(onnx.AttributeProto(name="steps", type=onnx.AttributeProto.STRING, s=b"Gelu\xff"))
    model.opset_import.append(helper.make_opsetid("ai.normfuse", 1))


def no_graph(model: onnx.ModelProto) -> None:
    model.ClearField("graph")


def inside_subgraph(model: onnx.ModelProto) -> None:
    add_branch(model, helper.make_node("Relu", ["not_there"], ["r"], name="inner"))


@pytest.mark.parametrize(
    ("breakage", "words"),
    [
        (cyclic, ["the graph has a cycle, 'ReduceMean_0' (ReduceMean) -> 'Sub_1' (Sub) -> "]),
        (cyclic_through_a_branch, ["the graph has a cycle, 'choice' (If) -> 'choice' (If); "]),
        (cyclic_within_a_branch, ["the graph has a cycle, 'a' (Add) -> 'b' (Add) -> 'a' (Add); "]),
        (cyclic_function, ["the graph has a cycle, 'a' (Add) -> 'b' (Add) -> 'a' (Add); "]),
        (missing_initializer, ["neither an input, nor an initialiser", "constant_0"]),
        (written_twice, ["defined before", "Sub_1"]),
        (two_initializers, ["two initialisers are called 'constant_0'"]),
        (two_inputs, ["two inputs are called 'x'"]),
        (short_weight, ["needs 32 bytes and has 28"]),
        (unknown_type, ["unknown element type 999"]),
        (negative_dimension, ["negative dimension"]),
        (lost_output, ["output 'nowhere' is computed by no node"]),
        (no_opset, ["imports no opset version", "ai.onnx"]),
        (untyped_attribute, ["attribute 'strange' without a type"]),
        (attribute_that_is_no_text, ["'own' (FusedActivation): attribute 'steps' is no text in UTF-8"]),
        (no_graph, ["no graph"]),
        (inside_subgraph, ["node 'choice' (If), else_branch: node 'inner' (Relu) reads 'not_there'"]),
    ],
)
def test_broken_model_is_refused(breakage: Breakage, words: list[str]) -> None:
    model = small_model()
    breakage(model)
    with pytest.raises(normfuse.InvalidModelError) as raised:
        load_model(model)
    message = str(raised.value)
    assert all(word in message for word in words), message
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("breakage", "words"),
    [
        (wrong_type_of_a_value, ["Node 'Sub_1' (Sub) computes FLOAT", "say INT64"]),
        (wrong_type_of_the_output, ["computes FLOAT", "say DOUBLE"]),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_wrong_types_are_refused(breakage: Breakage, words: list[str], complete: bool) -> None:
    model = small_model()
    if complete:
        model = onnx.shape_inference.infer_shapes(model)
        for value in list(model.graph.value_info):
            if value.name == "Sub_1_0":
                model.graph.value_info.remove(value)
    breakage(model)
    with pytest.raises(normfuse.InvalidModelError) as raised:
        normfuse.optimize(model, verify=False)
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize("shape", [["n", 9], ["n", 8, 1], ["n"]])
def test_wrong_shapes_are_verified_away(shape: list[int | str]) -> None:
    """ONNX Runtime takes such a model; whatever the pass makes of it computes the same."""
    model = small_model()
    model.graph.value_info.append(helper.make_tensor_value_info("Sub_1_0", TensorProto.FLOAT, shape))
    assert normfuse.optimize(model).report.verification.passed


def external_model(folder: Path) -> Path:
    path = folder / "model.onnx"
    model = models.chain(["n", 512], spelling="canonical", opset=17)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=16)
    return path


@pytest.mark.parametrize("bytes_kept", [None, 0, 100])
def test_external_data_that_is_missing_or_cut_off(tmp_path: Path, bytes_kept: int | None) -> None:
    path = external_model(tmp_path)
    weights = tmp_path / "weights.bin"
    if bytes_kept is None:
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:bytes_kept])
    with pytest.raises(normfuse.InvalidModelError, match=r"weights\.bin.*(missing|too short)"):
        load_model(path)


def set_external(path: Path, key: str, text: str) -> None:
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == key:
                entry.value = text
    path.write_bytes(model.SerializeToString())


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
    ],
)
def test_external_data_that_makes_no_sense(tmp_path: Path, key: str, text: str, words: str) -> None:
    path = external_model(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
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
    made.rename(blobs / "0a")
    (made.parent / "weights.bin").rename(blobs / "1b")
    (snapshot / "model.onnx").symlink_to(Path("../../../blobs/0a"))
    (snapshot / "weights.bin").symlink_to(Path("../../../blobs/1b"))
    path = snapshot / "model.onnx"
    result = normfuse.optimize(path)
    assert result.report.verification is not None
    assert result.report.verification.passed
    feed = {"x": np.random.default_rng(0).standard_normal((2, 512)).astype(np.float32)}
    expected = onnxruntime.InferenceSession(path).run(None, feed)[0]
    np.testing.assert_allclose(normfuse.InferenceSession(path).run(None, feed)[0], expected, rtol=1e-5, atol=1e-5)
    locations = {e.value for t in result.model.graph.initializer for e in t.external_data if e.key == "location"}
    assert locations == {"weights.bin"}, "as in the model that was given"
    result.save(tmp_path / "out.onnx")
    saved = onnxruntime.InferenceSession(tmp_path / "out.onnx").run(None, feed)[0]
    np.testing.assert_allclose(saved, expected, rtol=1e-5, atol=1e-5)
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
    assert result.report.verification is not None
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


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", "link/weights.bin"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    path = external_model(folder)
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    (folder / "link").symlink_to(tmp_path)
    set_external(path, "location", location)
    with pytest.raises(normfuse.InvalidModelError, match="outside the model's folder"):
        load_model(path)


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
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(normfuse.InvalidModelError, match=words) as raised:
        load_model(path)
    assert "model.onnx" in str(raised.value)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = small_model().SerializeToString()
    path = tmp_path / "model.onnx"
    for length in range(0, len(data) - 1, 7):
        path.write_bytes(data[:length])
        with pytest.raises(normfuse.InvalidModelError):
            load_model(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(normfuse.InvalidModelError, match="does not exist"):
        load_model(tmp_path / "nothing.onnx")
    with pytest.raises(normfuse.InvalidModelError, match="is a folder"):
        load_model(tmp_path)
    with pytest.raises(normfuse.InvalidModelError, match="null"):
        load_model(tmp_path / "a\0b.onnx")


def test_other_objects_are_refused() -> None:
    with pytest.raises(normfuse.InvalidModelError, match=r"not as builtins\.int"):
        load_model(7)  # type: ignore[arg-type]


def test_saving_keeps_external_data_external_and_leaves_nothing_else(tmp_path: Path) -> None:
    source = load_model(external_model(tmp_path))
    target = tmp_path / "außen" / "copy.onnx"
    target.parent.mkdir()
    size = save_model(source.model, target, never=source)
    assert sorted(p.name for p in target.parent.iterdir()) == ["copy.onnx", "copy.onnx.data"]
    assert size == sum(p.stat().st_size for p in target.parent.iterdir())
    again, before = onnx.load(target), onnx.load(tmp_path / "model.onnx")
    for a, b in zip(again.graph.initializer, before.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(a), numpy_helper.to_array(b))


def test_saving_does_not_overwrite_the_weights_that_it_reads(tmp_path: Path) -> None:
    path = external_model(tmp_path)
    (tmp_path / "weights.bin").rename(tmp_path / "out.onnx.data")
    set_external(path, "location", "out.onnx.data")
    weights = (tmp_path / "out.onnx.data").read_bytes()
    source = load_model(path)
    save_model(source.model, tmp_path / "out.onnx", never=source)
    assert (tmp_path / "out.onnx.data").read_bytes() == weights
    np.testing.assert_array_equal(
        numpy_helper.to_array(onnx.load(tmp_path / "out.onnx").graph.initializer[0]),
        numpy_helper.to_array(onnx.load(path).graph.initializer[0]),
    )
    with pytest.raises(normfuse.OptionError, match="holds the weights of the input"):
        save_model(source.model, tmp_path / "out.onnx.data", never=source)


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(small_model().SerializeToString())
    source = load_model(path)
    (tmp_path / "other.onnx").symlink_to(path)
    for target, words in [
        (tmp_path, "is a folder"),
        (tmp_path / "none" / "out.onnx", "does not exist"),
        (path, "is the input itself"),
        (tmp_path / "other.onnx", "is the input itself"),
        (Path("/proc/out.onnx"), "Cannot write /proc/out.onnx"),
    ]:
        with pytest.raises(normfuse.OptionError, match=words):
            save_model(source.model, target, never=source)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "other.onnx"]


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    source = load_model(small_model())
    os.mkfifo(tmp_path / "pipe.onnx")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket.onnx"))
    (tmp_path / "loop.onnx").symlink_to(tmp_path / "loop.onnx")
    for name, words in [
        ("pipe.onnx", "it is a pipe, not a file"),
        ("socket.onnx", "it is a socket, not a file"),
        ("loop.onnx", "Cannot write"),
        ("a\0b.onnx", "null"),
        ("x" * 300 + ".onnx", "File name too long"),
    ]:
        with pytest.raises(normfuse.OptionError, match=words):
            save_model(source.model, tmp_path / name)
        with pytest.raises(normfuse.OptionError, match=words):
            check_target(tmp_path / name)
    with pytest.raises(normfuse.OptionError, match="it is a device, not a file"):
        check_target(Path(os.devnull))
    listening.close()
    assert (tmp_path / "pipe.onnx").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop.onnx", "pipe.onnx", "socket.onnx"]


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
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["new.onnx", "old.onnx", "report.json"]


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
