"""Islands: what stands between the chains runs on the GPU with them, as one DirectML graph.

Each operator's numbers are in test_island_operators.py.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import harness
import numpy as np
import onnx
import onnxruntime
import parsed_models
import pytest
from directml_islands import in_double, island, open_output, session_of
from directml_libraries import counted
from onnx import helper

from normfuse.meaning import Array

RNG = np.random.default_rng(9)


def parse(text: str, **constants: Array) -> onnx.ModelProto:
    return parsed_models.parse(text, 20, **constants)


def normal(*shape: int) -> Array:
    return np.asarray(RNG.normal(size=shape).astype(np.float32))


def ones(*shape: int) -> Array:
    return np.ones(shape, np.int64)


def test_microsofts_library_is_asked_at_its_levels(fake: dict[str, str]) -> None:
    """Only then do the other tests at these levels say what that library accepts."""
    before = counted(fake["directml_library"], "accepted_by_microsoft")
    text = "g (float[4] a) => (float[4] y) { b = Exp(a) y = Add(a, b) }"
    island(parse(text), fake).run(None, {"a": normal(4)})
    is_asked = counted(fake["directml_library"], "accepted_by_microsoft") > before
    assert is_asked == ("NORMFUSE_ASK_DIRECTML" in os.environ)


SQUARE = normal(8, 8)
# Models that are one island, with inputs for several runs of a session.
MODELS: dict[str, tuple[str, list[dict[str, Array]]]] = {
    "a mask of positions, which are computed on the CPU of a shape": (
        """g (float[N, S, S] x) => (float[N, S, S] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] front = {0}, int64[1] back = {1}, float low = {-1000.0}> {
            size = Shape <start = 1, end = 2> (x) length = Squeeze(size) at = Range(zero, length, one)
            row = Unsqueeze(at, back) column = Unsqueeze(at, front) seen = LessOrEqual(column, row)
            y = Where(seen, x, low) }""",
        [{"x": normal(2, 3, 3)}, {"x": normal(1, 5, 5)}],
    ),
    "attention, with shapes that are computed of the input's": (
        """g (float[B, S, 8] x, int64[B, S] mask) => (float[B, S, 8] y)
        <int64[1] last = {8}, int64 one = {1}, int64 zero = {0}, int64[1] zeros = {0},
         int64[2] tail = {2, 4}, int64[2] middle = {1, 2}, float low = {-1000.0}, float unit = {1.0}> {
            size = Shape(x) batch = Gather <axis = 0> (size, zero) length = Gather <axis = 0> (size, one)
            b = Unsqueeze(batch, zeros) s = Unsqueeze(length, zeros)
            heads = Concat <axis = 0> (b, s, tail) back = Concat <axis = 0> (b, s, last)
            p = MatMul(x, square) r = Reshape(p, heads) t = Transpose <perm = [0, 2, 1, 3]> (r)
            k = Transpose <perm = [0, 2, 3, 1]> (r) scores = MatMul(t, k)
            m = Unsqueeze(mask, middle) f = Cast <to = 1> (m) without = Sub(unit, f) bias = Mul(without, low)
            sum = Add(scores, bias) w = Softmax <axis = -1> (sum)
            o = MatMul(w, t) u = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(u, back) }""",
        [
            {"x": normal(2, 5, 8), "mask": np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])},
            {"x": normal(1, 3, 8), "mask": ones(1, 3)},
            {"x": normal(2, 5, 8), "mask": ones(2, 5)},
        ],
    ),
    "a constant of shape, read by an operator and a chain": (
        """g (float[N, 8] x) => (float[N, 8] y) <float[8] s = {1, 2, 3, 4, 5, 6, 7, 8}> {
            shape = Shape(x) zeros = ConstantOfShape(shape) over = Max(x, zeros) sum = Add(over, zeros)
            n = LayerNormalization(sum, s) y = MatMul(n, square) }""",
        [{"x": normal(3, 8)}],
    ),
    "a constant of shape that makes indices": (
        """g (float[N, 4] x) => (float[N, M] y) <int64[1] first = {0}, float[4] s = {1, 2, 3, 4}> {
            n = LayerNormalization(x, s) shape = Shape(x) count = Gather(shape, first)
            twos = ConstantOfShape <value = int64[1] {2}> (count)
            indices = Add(twos, first) y = Gather <axis = 1> (n, indices) }""",
        [{"x": normal(rows, 4)} for rows in (1, 2, 3, 5)],
    ),
    "nodes that nobody reads, which are left out": (
        """g (float[N, 4] x) => (float[N, 4] y) <float two = {2.0}> {
            n = Mul(x, two) dead = Sub(n, x) deader = Exp(dead) y = Add(n, x) }""",
        [{"x": normal(3, 4)}] * 2,
    ),
    "a slice of a turned vector, whose dimension of 1 has another stride": (
        """g (float[N, M] x) => (float[M, K] y)
            <int64[1] from = {3}, int64[1] to = {9}, int64[1] one = {1}, int64[1] step = {3}> {
            n = Neg(x) t = Transpose(n) y = Slice(t, from, to, one, step) }""",
        [{"x": normal(5, 1)}],
    ),
    "a split in parts of its own, in equal parts, and in parts that are not": (
        """g (float[N, 5] x) => (float[N, 5] y) <int64[2] parts = {2, 3}> {
            n = Neg(x) a, b = Split <axis = 1> (n, parts) c, d = Split <axis = -1, num_outputs = 2> (n)
            e = Concat <axis = 1> (b, a) f = Concat <axis = 1> (d, c) y = Sub(e, f) }""",
        [{"x": normal(3, 5)}],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, fake: dict[str, str]) -> None:
    text, runs = MODELS[name]
    model = parse(text, **({"square": SQUARE} if "square" in text else {}))
    session = island(model, fake)
    for feeds in runs:
        for y, expected in zip(session.run(None, feeds), in_double(model, feeds), strict=True):
            np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_a_chain_alone_stays_on_the_cpu(fake: dict[str, str], tmp_path: Path) -> None:
    """Unless the user wants it on the GPU: copies and the wait take longer than the CPU does."""
    text = """g (float[N, 8] x) => (float[N, 8] y) <float[8] s = {1, 2, 3, 4, 5, 6, 7, 8}> {
        c = Atan(x) n = LayerNormalization <axis = -1> (c, s) y = Tan(n) }"""
    for claim, backend in (("profitable", "cpu"), ("all", "directml")):
        report = tmp_path / f"{claim}.jsonl"
        session_of(parse(text), fake, claim=claim, claim_report=report)
        lines = [json.loads(line) for line in report.read_text("utf-8").splitlines()]
        (site,) = [line for line in lines if line["op_type"] == "LayerNormalization"]
        assert site["backend"] == backend
        assert (site.get("backend_reason", {}).get("reason") == "not_worth_the_gpu") == (claim == "profitable")


INDICES = {
    "Identity(i)": lambda i: i,
    "Reshape(i, two)": lambda i: i.reshape(-1, 2),
    "Transpose(i)": lambda i: i.T,
    "Cast <to = 6> (i)": lambda i: i,
    "Unsqueeze(i, last)": lambda i: i[..., None],
}


@pytest.mark.parametrize("moved", INDICES)
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_indices_that_arrive_are_checked(moved: str, kind: str, fake: dict[str, str]) -> None:
    """All of them, wherever they are moved to on their way to Gather, those that count from the end, too."""
    model = open_output(
        parse(f"""g (float[6, 5] x, {kind}[A, B] i) => (float y)
        <int64[2] two = {{-1, 2}}, int64[1] last = {{-1}}> {{
        n = Neg(x) j = {moved} y = Gather <axis = 1> (n, j) }}""")
    )
    session = island(model, fake)
    x = normal(6, 5)
    i = np.array([[4, -5], [0, -1]], kind)
    np.testing.assert_array_equal(session.run(None, {"x": x, "i": i})[0], -x[:, INDICES[moved](i)])
    for bad in (5, -6, 2**31 - 1, -(2**31)):
        wrong = np.array([[4, bad], [0, 1]], kind)
        with pytest.raises(Exception, match=f"input 'i' has the value {bad}, but as indices .* from -5 to 4"):
            session.run(None, {"x": x, "i": wrong})
    np.testing.assert_array_equal(session.run(None, {"x": x, "i": i})[0], -x[:, INDICES[moved](i)])


@pytest.mark.parametrize("computed", ["Where(c, i, j)", "Slice(i, j, k)", "Gather(i, j)"])
def test_indices_that_the_gpu_computes_stay_on_the_cpu(computed: str, fake: dict[str, str], tmp_path: Path) -> None:
    """Nothing checks them there, and of a part of an input not all elements need to be indices."""
    report = tmp_path / "claims.jsonl"
    model = open_output(
        parse(f"""g (float[6, 3] x, int64[2, 2] i, int64[1] j, int64[1] k, bool[2, 2] c) => (float y) {{
            n = Neg(x) at = {computed} y = Gather(n, at) }}""")
    )
    model.graph.node[-1].name = "last"
    session = session_of(model, fake, claim_report=report, explain_directml="6_2")
    assert "Gather" in harness.cpu_types(session)
    lines = [json.loads(line) for line in report.read_text("utf-8").splitlines()]
    (left,) = [line for line in lines if line.get("operator") == "last"]
    assert "which does not check them" in json.dumps(left)
    feeds = {"x": normal(6, 3), "i": np.array([[5, 1], [-1, 0]]), "j": np.array([0]), "k": np.array([1])}
    at = {"W": feeds["i"], "S": feeds["i"][:1], "G": feeds["i"][[0]]}[computed[0]]
    (y,) = session.run(None, {**feeds, "c": np.ones((2, 2), bool)})
    np.testing.assert_array_equal(y, -feeds["x"][at])
    with pytest.raises(Exception, match="indices element out of data bounds"):
        session.run(None, {**feeds, "i": np.full((2, 2), 6), "c": np.ones((2, 2), bool)})


def test_integers_as_data_are_computed_by_the_cpu(fake: dict[str, str]) -> None:
    """Indices that are computed of an input are not known when a program is compiled; those of a shape are."""
    text = """g (float[6, 3] x, int64[N] i) => (float[N, 3] y) <int64 one = {1}> {
        n = Neg(x) j = Add(i, one) y = Gather <axis = 0> (n, j) }"""
    session = harness.create_session(parse(text), "ep", backend="directml", **fake)
    assert harness.cpu_types(session) == ["Add"]
    x = normal(6, 3)
    for indices in ([1, 2], [4, 0], [3, 1]):
        (y,) = session.run(None, {"x": x, "i": np.array(indices)})
        np.testing.assert_array_equal(y, -x[np.array(indices) + 1])


LARGER = [
    # kernel, strides, pads, dilation
    ([5, 4], [4, 2], [0, 0, 0, 0], 1),
    ([6, 3], [3, 1], [1, 0, 1, 0], 1),
    ([3, 2], [3, 2], [0, 0, 0, 0], 2),
    ([3, 2], [5, 2], [0, 0, 0, 0], 3),
]


@pytest.mark.parametrize(
    ("op", "kernel", "strides", "pads", "dilation"),
    [
        (op, *window)
        for op in ("MaxPool", "AveragePool", "AveragePool, count_include_pad = 1")
        for window in LARGER
        if op == "MaxPool" or window[3] == 1  # on DirectML AveragePool has no dilations
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_window_larger_than_the_tensor(
    op: str, known: bool, kernel: list[int], strides: list[int], pads: list[int], dilation: int, fake: dict[str, str]
) -> None:
    """As ONNX Runtime's own kernels have it: by less than a stride larger, it covers the padded tensor."""
    name, *more = op.split(", ")
    given = ", ".join([f"kernel_shape = {kernel}, strides = {strides}, pads = {pads}", *more])
    given += f", dilations = {[dilation] * 2}" if name == "MaxPool" else ""
    dims = "2, 1, 3, 3" if known else "A, B, C, D"
    text = f"g (float[{dims}] x) => (float y) {{ n = Neg(x) p = {name} <{given}> (n) y = Neg(p) }}"
    model, x = open_output(parse(text)), normal(2, 1, 3, 3)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(island(model, fake).run(None, {"x": x})[0], expected, rtol=1e-5, atol=1e-5)


DYNAMIC = {
    "both signs": np.array([[-1.5, 0.25, 3], [0, 2.75, -0.75]]),
    "above 0": np.array([[1.5, 2.25, 3], [9, 2.75, 0.75]]),
    "below 0": -np.array([[1.5, 2.25, 3], [9, 2.75, 0.75]]),
    "all 0": np.zeros((2, 3)),
    "one element": np.array([[-4.0]]),
    "no dimensions": np.array(5.0),
}


@pytest.mark.parametrize("behind_a_chain", [False, True])
@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_quantisation(name: str, behind_a_chain: bool, fake: dict[str, str]) -> None:
    """As an operator, and as the end of a chain."""
    x = DYNAMIC[name].astype(np.float32)
    dims = ",".join(map(str, x.shape))
    first = "v = Mul(x, two) v2 = Relu(v)" if behind_a_chain else "v2 = Abs(x)"
    text = f"""g (float[{dims}] x)
        => (uint8[{dims}] y, float s, uint8 z, float[{dims}] v2) <float two = {{2.0}}> {{
            {first} w = Add(v2, x) y, s, z = DynamicQuantizeLinear(w) }}"""
    session = island(parse(text), fake)
    y, s, z, _ = session.run(None, {"x": x})
    value = x.astype(np.float64)
    value = value + (np.maximum(2 * value, 0) if behind_a_chain else np.abs(value))
    least, most = min(0, value.min()), max(0, value.max())
    scale = (most - least) / 255 or 1.0
    np.testing.assert_allclose(s, scale, rtol=1e-6)
    assert z == np.rint(-least / scale)
    np.testing.assert_allclose(y, np.clip(np.rint(value / scale) + z, 0, 255), atol=1)
    assert (y.shape, s.shape, z.shape) == (x.shape, (), ())


@pytest.mark.parametrize("kind", ["float", "float16", "int64", "int32", "bool"])
def test_constant_of_shape(kind: str, fake: dict[str, str]) -> None:
    """Its shape follows from an input's."""
    kinds = {"float": np.float32, "float16": np.float16, "int64": np.int64, "int32": np.int32, "bool": np.bool_}
    value = np.array([1 if kind == "bool" else 3], kinds[kind])
    graph = parse(f"""g (float[N, 5] x) => (float[N, 5] n, {kind}[N, 5] y) <float[5] s = {{1, 2, 3, 4, 5}}> {{
            n = LayerNormalization(x, s) shape = Shape(n) y = ConstantOfShape(shape) }}""")
    graph.graph.node[-1].attribute.append(helper.make_attribute("value", onnx.numpy_helper.from_array(value)))
    session = session_of(graph, fake)
    for rows in (3, 1, 3):
        _, y = session.run(None, {"x": normal(rows, 5)})
        np.testing.assert_array_equal(y, np.full((rows, 5), value[0]))
        assert y.dtype == value.dtype


INDEXED = """g (float[6, 3] a, float[M, 3] b, int64[N] i) => (float[N, 3] y) {
    n = Neg(a) m = Neg(b) p = Gather(n, i) q = Gather(m, i) y = Add(p, q) }"""
SQUARED = "g (float[N, M] x) => (float[N, L] y) { n = Neg(x) t = Transpose(n) p = MatMul(n, t) y = MatMul(p, n) }"
SELECTED = """g (float[3] x, int64[2, 1] i) => (int64[2, 3] y) {
    n = Neg(x) c = Greater(n, x) z = Identity(i) y = Where(c, i, z) }"""
WITHOUT_ELEMENTS, TOO_MANY = r"a dimension of 0.*has no CPU path; use backend=cpu", r"more than 2\^32 - 1 elements"
# Calls that are refused, each at once and with what is wrong; and those that the session runs after it.
REFUSED: dict[str, tuple[str, dict[str, Array], str, dict[str, Array]]] = {
    "more integers than 32 bits": (
        SELECTED,
        {"x": normal(3), "i": np.array([[2**32], [1]])},
        "has the value 4294967296, but integers have 32 bits there",
        {"x": normal(3), "i": np.array([[5], [-(2**31)]])},
    ),
    "a known index": (
        "g (float[M, 3] x) => (float[2, 3] y) <int64[2] i = {3, -4}> { n = Neg(x) y = Gather <axis = 0> (n, i) }",
        {"x": normal(3, 3)},
        "indices that do not fit",
        {"x": normal(4, 3)},
    ),
    "an index that fits one of two": (
        INDEXED,
        {"a": normal(6, 3), "b": normal(4, 3), "i": np.array([4, 0])},
        r"has the value 4, but as indices .* from -4 to 3",
        {"a": normal(6, 3), "b": normal(4, 3), "i": np.array([3, -4])},
    ),
    "a window larger than the tensor": (
        "g (float[A, B, C, D] x) => (float[A, B, E, D] y) { n = Neg(x) y = MaxPool <kernel_shape = [4, 1]> (n) }",
        {"x": normal(1, 1, 3, 3)},
        r"a window that is larger than the tensor .*backend=cpu",
        {"x": normal(1, 1, 5, 3)},
    ),
    "no rows": (SQUARED, {"x": normal(0, 4)}, WITHOUT_ELEMENTS, {"x": normal(3, 4)}),
    "no columns": (SQUARED, {"x": normal(3, 0)}, WITHOUT_ELEMENTS, {"x": normal(3, 4)}),
    "integers without elements": (
        "g (uint8[N] a, int8[N, K] b) => (int32[K] y) { y = MatMulInteger(a, b) }",
        {"a": np.zeros(0, np.uint8), "b": np.zeros((0, 3), np.int8)},
        "dimension of 0",
        {"a": np.full(2, 200, np.uint8), "b": np.full((2, 3), -7, np.int8)},
    ),
    **{
        node: (
            f"g (float[M, N] x, int64[{len(sizes)}] s) => (float[O, P] y) {{ n = Neg(x) y = {node} }}",
            {"x": normal(1, 1), "s": np.array(sizes)},
            TOO_MANY,
            {"x": normal(1, 1), "s": np.array(fits)},
        )
        for node, sizes, fits in (
            ("Expand(n, s)", (2**32, 2**32), (2, 3)),
            ("Pad(n, s)", (2**63 - 1, 0, 2**63 - 1, 0), (1, 0, 0, 2)),
            ("Resize(n, , , s)", (2**40, 4), (2, 2)),
            ('Resize <mode = "linear"> (n, , , s)', (2**62, 4), (3, 4)),
        )
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_is_refused(name: str, fake: dict[str, str]) -> None:
    text, wrong, why, right = REFUSED[name]
    model = parse(text)
    session = island(model, fake)
    with pytest.raises(Exception, match=why):
        session.run(None, wrong)
    np.testing.assert_allclose(session.run(None, right)[0], in_double(model, right)[0], rtol=1e-5, atol=1e-5)
