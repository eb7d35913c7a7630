"""Islands: what stands between the chains runs on the GPU with them, as one DirectML graph."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from directml_libraries import counted
from oracle import Array

RNG = np.random.default_rng(9)


def parse(text: str, opset: int = 20) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')


def island(text: str, fake: dict[str, str], opset: int = 20, **options: Any) -> onnxruntime.InferenceSession:
    """A session of which every node is in one island."""
    made = harness.create_session(parse(text, opset), "ep", backend="directml", **fake, **options)
    assert not harness.cpu_types(made)
    assert len(harness.ep_groups(made)) == 1
    return made


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def exact(*arrays: Array) -> list[Array]:
    return [array.astype(np.float64) for array in arrays]


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


ELEMENTWISE = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Min": np.minimum,
    "Max": np.maximum,
}


@pytest.mark.parametrize("op", ELEMENTWISE)
@pytest.mark.parametrize(
    ("left", "right"), [((2, 3, 4), (2, 3, 4)), ((2, 1, 4), (3, 1)), ((4,), (2, 3, 4)), ((), (5,))]
)
def test_elementwise(op: str, left: tuple[int, ...], right: tuple[int, ...], fake: dict[str, str]) -> None:
    a, b = normal(*left), normal(*right)
    dims = [",".join(map(str, shape)) for shape in (left, right)]
    out = ",".join(map(str, np.broadcast_shapes(left, right)))
    text = f"g (float[{dims[0]}] a, float[{dims[1]}] b) => (float[{out}] y) {{ y = {op}(a, b) }}"
    (y,) = island(text, fake).run(None, {"a": a, "b": b})
    np.testing.assert_allclose(y, ELEMENTWISE[op](*exact(a, b)), rtol=1e-6)


def test_microsofts_library_is_asked_at_its_levels(fake: dict[str, str]) -> None:
    """Only then do the other tests at these levels say what that library accepts."""
    before = counted(fake["directml_library"], "accepted_by_microsoft")
    text = "g (float[4] a) => (float[4] y) { b = Exp(a) y = Add(a, b) }"
    island(text, fake).run(None, {"a": normal(4)})
    is_asked = counted(fake["directml_library"], "accepted_by_microsoft") > before
    assert is_asked == ("NORMFUSE_ASK_DIRECTML" in os.environ)


UNARY = {
    "Sqrt": np.sqrt,
    "Neg": np.negative,
    "Abs": np.abs,
    "Exp": np.exp,
    "Sin": np.sin,
    "Cos": np.cos,
    "Log": np.log,
    "Reciprocal": np.reciprocal,
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Relu": lambda x: np.maximum(x, 0),
}


@pytest.mark.parametrize("op", UNARY)
def test_unary(op: str, fake: dict[str, str]) -> None:
    x = np.abs(normal(3, 5)) + np.float32(0.1)
    text = f"g (float[N, 5] x) => (float[N, 5] y) {{ t = Add(x, x) u = {op}(t) y = Add(u, u) }}"
    (y,) = island(text, fake).run(None, {"x": x})
    np.testing.assert_allclose(y, 2 * UNARY[op](2 * x.astype(np.float64)), rtol=1e-5, atol=1e-6)


COMPARISONS = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}
LOGICAL = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}


@pytest.mark.parametrize("op", COMPARISONS)
@pytest.mark.parametrize("kind", ["float", "float16"])
def test_comparisons(op: str, kind: str, fake: dict[str, str]) -> None:
    """With NaN and infinities, behind a computation, so that they are no graph of comparisons alone."""
    x = np.array([[1, 2, np.nan, np.inf, -np.inf, 0, -0.0]], np.float16 if kind == "float16" else np.float32)
    y = np.array([[1], [2], [0], [np.nan], [np.inf]], x.dtype)
    text = f"""g ({kind}[1, 7] x, {kind}[5, 1] y) => (bool[5, 7] z) {{ n = Neg(x) m = Neg(n) z = {op}(m, y) }}"""
    with np.errstate(invalid="ignore"):
        (z,) = island(text, fake).run(None, {"x": x, "y": y})
        np.testing.assert_array_equal(z, COMPARISONS[op](x, y))


@pytest.mark.parametrize("op", LOGICAL)
def test_logical(op: str, fake: dict[str, str]) -> None:
    x = np.array([0, 1, np.nan, 0.25, -3, np.inf], np.float32)
    text = f"""g (float[6] x, bool[6, 1] c) => (bool[6, 6] z, bool[6] n, float[6] s)
        {{ s = Add(x, x) t = Cast <to = 9> (s) z = {op}(t, c) i = IsNaN(s) n = Not(i) }}"""
    c = np.array([[True], [False]] * 3)
    z, n, _ = island(text, fake).run(None, {"x": x, "c": c})
    np.testing.assert_array_equal(z, LOGICAL[op](x.astype(bool), c))
    np.testing.assert_array_equal(n, ~np.isnan(x))


@pytest.mark.parametrize("batch_dims", [0, 1])
def test_gather_nd(batch_dims: int, fake: dict[str, str]) -> None:
    """Of a float tensor, with indices that follow from its shape."""
    x = normal(2, 3, 4)
    picked = {0: "int64[3, 2] i = {0, 2, 1, -1, -2, 0}", 1: "int64[2, 2, 1] i = {2, 0, -1, 1}"}[batch_dims]
    text = f"""g (float[2, 3, 4] x) => (float y) <{picked}> {{
        n = Neg(x) y = GatherND <batch_dims = {batch_dims}> (n, i) }}"""
    model = parse(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = harness.create_session(model, "ep", backend="directml", **fake)
    assert len(harness.ep_groups(session)) == 1
    (y,) = session.run(None, {"x": x})
    expected = x[[0, 1, -2], [2, -1, 0]] if batch_dims == 0 else np.stack([x[0, [2, 0]], x[1, [-1, 1]]])
    np.testing.assert_array_equal(y, -expected)


def test_a_mask_of_positions(fake: dict[str, str]) -> None:
    """A causal mask, whose positions are computed on the CPU from the input's shape."""
    text = """g (float[N, S, S] x) => (float[N, S, S] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] front = {0}, int64[1] back = {1}, float low = {-1000.0}> {
            size = Shape <start = 1, end = 2> (x) length = Squeeze(size) at = Range(zero, length, one)
            row = Unsqueeze(at, back) column = Unsqueeze(at, front) seen = LessOrEqual(column, row)
            y = Where(seen, x, low) }"""
    session = island(text, fake, claim="all")
    for n, s in ((2, 3), (1, 5)):
        x = normal(n, s, s)
        (y,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, np.where(np.tri(s, dtype=bool), x, np.float32(-1000)))


@pytest.mark.parametrize("exponent", [2.0, 0.5, 3.0])
def test_powers(exponent: float, fake: dict[str, str]) -> None:
    x = np.abs(normal(3, 5)) + np.float32(0.1)
    text = f"g (float[N, 5] x) => (float[N, 5] y) <float e = {{{exponent}}}> {{ y = Pow(x, e) }}"
    (y,) = island(text, fake).run(None, {"x": x})
    np.testing.assert_allclose(y, x.astype(np.float64) ** exponent, rtol=1e-5)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((2, 5, 2, 3), (3, 4)),
        ((2, 3, 4, 5), (2, 3, 5, 2)),
        ((2, 1, 4, 5), (3, 5, 2)),
        ((2, 1, 2, 2, 3), (1, 3, 2, 3, 2)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((5, 2, 3), (3,)),
        ((3,), (3,)),
        ((2, 1, 3), (2, 3, 1)),
    ],
)
def test_products(left: tuple[int, ...], right: tuple[int, ...], fake: dict[str, str]) -> None:
    a, b = normal(*left), normal(*right)
    dims = [",".join(map(str, shape)) for shape in (left, right)]
    expected = np.matmul(*exact(a, b))
    out = ",".join(map(str, expected.shape))
    text = f"g (float[{dims[0]}] a, float[{dims[1]}] b) => (float[{out}] y) {{ y = MatMul(a, b) }}"
    (y,) = island(text, fake).run(None, {"a": a, "b": b})
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm(transposed: tuple[int, int], fake: dict[str, str]) -> None:
    a, b, c = normal(2, 3), normal(3, 4), normal(4)
    given = [m.T.copy() if t else m for m, t in zip((a, b), transposed, strict=True)]
    dims = [",".join(map(str, m.shape)) for m in given]
    text = f"""g (float[{dims[0]}] a, float[{dims[1]}] b, float[4] c) => (float[2, 4] y) {{
        y = Gemm <alpha = 0.5, beta = 2.0, transA = {transposed[0]}, transB = {transposed[1]}> (a, b, c) }}"""
    (y,) = island(text, fake).run(None, {"a": given[0], "b": given[1], "c": c})
    np.testing.assert_allclose(y, 0.5 * np.matmul(*exact(a, b)) + 2 * c.astype(np.float64), rtol=1e-5, atol=1e-6)


def test_attention(fake: dict[str, str]) -> None:
    """Heads by Reshape and Transpose, whose shapes are computed from the input's; two lengths in one session."""
    text = """g (float[B, S, 8] x, int64[B, S] mask) => (float[B, S, 8] y)
        <float[8, 8] q, int64[1] last = {8}, int64 one = {1}, int64 zero = {0}, int64[1] zeros = {0},
         int64[2] tail = {2, 4}, int64[2] middle = {1, 2}, float low = {-1000.0}, float unit = {1.0}> {
            size = Shape(x) batch = Gather <axis = 0> (size, zero) length = Gather <axis = 0> (size, one)
            b = Unsqueeze(batch, zeros) s = Unsqueeze(length, zeros)
            heads = Concat <axis = 0> (b, s, tail) back = Concat <axis = 0> (b, s, last)
            p = MatMul(x, q) r = Reshape(p, heads) t = Transpose <perm = [0, 2, 1, 3]> (r)
            k = Transpose <perm = [0, 2, 3, 1]> (r) scores = MatMul(t, k)
            m = Unsqueeze(mask, middle) f = Cast <to = 1> (m) without = Sub(unit, f) bias = Mul(without, low)
            sum = Add(scores, bias) w = Softmax <axis = -1> (sum)
            o = MatMul(w, t) u = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(u, back)
        }"""
    model = parse(text)
    q = normal(8, 8)
    for constant in model.graph.initializer:
        if constant.name == "q":
            constant.CopyFrom(onnx.numpy_helper.from_array(q, "q"))
    if not any(constant.name == "q" for constant in model.graph.initializer):
        model.graph.initializer.append(onnx.numpy_helper.from_array(q, "q"))
    session = harness.create_session(model, "ep", backend="directml", **fake)
    assert len(harness.ep_groups(session)) == 1
    assert not harness.cpu_types(session)
    for batch, length in ((2, 5), (1, 3), (2, 5)):
        x, mask = normal(batch, length, 8), np.ones((batch, length), np.int64)
        mask[-1, 2:] = 0
        r = np.matmul(*exact(x, q)).reshape(batch, length, 2, 4)
        t = r.transpose(0, 2, 1, 3)
        scores = t @ r.transpose(0, 2, 3, 1) + (1 - mask[:, None, None]) * -1000.0
        expected = (softmax(scores) @ t).transpose(0, 2, 1, 3).reshape(batch, length, 8)
        (y,) = session.run(None, {"x": x, "mask": mask})
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


MOVEMENTS = {
    "Slice(a, one, three, axis)": lambda a: a[:, 1:3],
    "Slice(a, zero, three, axis)": lambda a: a[:, 0:3],
    "Slice(a, one, far, axis, two)": lambda a: a[:, 1::2],
    "Slice(a, far, low, axis, back)": lambda a: a[:, ::-1],
    "Slice(a, starts, stops, both, steps)": lambda a: a[3:0:-2, :, 1:4],
    "Transpose <perm = [2, 0, 1]> (a)": lambda a: a.transpose(2, 0, 1),
    "Flatten <axis = 2> (a)": lambda a: a.reshape(-1, a.shape[2]),
    "Reshape(a, open)": lambda a: a.reshape(3, -1),
    "Unsqueeze(a, ends)": lambda a: a[None, ..., None],
    "Expand(a, wide)": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "Concat <axis = 1> (a, a)": lambda a: np.concatenate([a, a], 1),
    "Gather <axis = 1> (a, picked)": lambda a: a[:, [2, 0, -1]],
    "Where(condition, a, a)": lambda a: a,
    "ReduceMean <keepdims = 0> (a, axis)": lambda a: a.mean(1),
    "ReduceSum <keepdims = 1> (a, ends)": lambda a: a.sum((0, 2), keepdims=True),
    "ReduceMax(a, ends)": lambda a: a.max((0, 2), keepdims=True),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("movement", MOVEMENTS)
def test_movements(movement: str, turned: bool, fake: dict[str, str]) -> None:
    """Of a packed tensor, and of one that is looked at by strides."""
    if movement == "ReduceSum <keepdims = 1> (a, ends)" and turned:
        movement = "ReduceSum <keepdims = 0> (a, axis)"
        expected_of = lambda a: a.sum(1)  # noqa: E731
    else:
        expected_of = MOVEMENTS[movement]
    x = normal(3, 4, 5)
    first = (
        "t = Transpose <perm = [1, 0, 2]> (x) a = Neg(t)"
        if not turned
        else "n = Neg(x) a = Transpose <perm = [1, 0, 2]> (n)"
    )
    ends = "0, 2" if "ends" in movement and "Unsqueeze" not in movement else "0, 4"
    text = f"""g (float[3, 4, 5] x) => (float y) <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}},
        int64[1] three = {{3}}, int64[1] axis = {{1}}, int64[1] far = {{9223372036854775807}},
        int64[1] back = {{-1}}, int64[1] low = {{-9223372036854775807}}, int64[2] starts = {{3, 1}},
        int64[2] stops = {{0, 4}}, int64[2] both = {{0, 2}}, int64[2] steps = {{-2, 1}},
        int64[2] open = {{3, -1}}, int64[2] ends = {{{ends}}}, int64[4] wide = {{2, 1, 1, 1}},
        int64[3] picked = {{2, 0, -1}}, bool[1] condition = {{1}}> {{ {first} m = {movement} y = Neg(m) }}"""
    model = parse(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    used = {name for node in model.graph.node for name in node.input}
    kept = [constant for constant in model.graph.initializer if constant.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    session = harness.create_session(model, "ep", backend="directml", **fake)
    assert len(harness.ep_groups(session)) == 1
    assert not harness.cpu_types(session)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, -expected_of(-x.transpose(1, 0, 2).astype(np.float64)), rtol=1e-6, atol=1e-6)


def test_a_chain_alone_stays_on_the_cpu(fake: dict[str, str], tmp_path: Path) -> None:
    """Unless the user wants it on the GPU: copies and the wait take longer than the CPU does."""
    text = """g (float[N, 8] x) => (float[N, 8] y) <float[8] s = {1, 2, 3, 4, 5, 6, 7, 8}> {
        c = Atan(x) n = LayerNormalization <axis = -1> (c, s) y = Tan(n) }"""
    for claim, backend in (("profitable", "cpu"), ("all", "directml")):
        report = tmp_path / f"{claim}.jsonl"
        harness.create_session(parse(text), "ep", backend="directml", claim=claim, claim_report=report, **fake)
        lines = [json.loads(line) for line in report.read_text("utf-8").splitlines()]
        (site,) = [line for line in lines if line["op_type"] == "LayerNormalization"]
        assert site["backend"] == backend
        assert (site.get("backend_reason", {}).get("reason") == "not_worth_the_gpu") == (claim == "profitable")


def test_integers_that_do_not_fit_are_refused(fake: dict[str, str]) -> None:
    text = """g (float[3] x, int64[2, 1] i) => (int64[2, 3] y) {
        n = Neg(x) c = Greater(n, x) z = Identity(i) y = Where(c, i, z) }"""
    session = island(text, fake, claim="all")
    i = np.array([[5], [-(2**31)]], np.int64)
    np.testing.assert_array_equal(session.run(None, {"x": normal(3), "i": i})[0], i.repeat(3, 1))
    with pytest.raises(Exception, match="has the value 4294967296, but integers have 32 bits there"):
        session.run(None, {"x": normal(3), "i": i + 2**32 - 5})


SIZES = {
    "Expand(n, s)": (2**32, 2**32),
    "Pad(n, s4)": (2**63 - 1, 0, 2**63 - 1, 0),
    "Resize(n, , , s)": (2**40, 4),
    'Resize <mode = "linear"> (n, , , s)': (2**62, 4),
}


@pytest.mark.parametrize("node", SIZES)
def test_sizes_that_no_tensor_has_are_refused(node: str, fake: dict[str, str]) -> None:
    """At once, and not when the memory is full."""
    name, length = ("s4", 4) if "s4" in node else ("s", 2)
    model = parse(f"g (float[M, N] x, int64[{length}] {name}) => (float[K, L] y) {{ n = Neg(x) y = {node} }}")
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    with pytest.raises(Exception, match=r"more than 2\^32 - 1 elements"):
        session.run(None, {"x": normal(1, 1), name: np.array(SIZES[node], np.int64)})


def test_an_index_that_is_known_is_checked(fake: dict[str, str]) -> None:
    text = "g (float[M, 3] x) => (float[2, 3] y) <int64[2] i = {3, -4}> { n = Neg(x) y = Gather <axis = 0> (n, i) }"
    session = island(text, fake)
    x = normal(4, 3)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], -x[[3, -4]])
    with pytest.raises(Exception, match="indices that do not fit"):
        session.run(None, {"x": x[:3]})


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
    model = parse(f"""g (float[6, 5] x, {kind}[A, B] i) => (float y)
        <int64[2] two = {{-1, 2}}, int64[1] last = {{-1}}> {{
        n = Neg(x) j = {moved} y = Gather <axis = 1> (n, j) }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    assert not harness.cpu_types(session)
    assert len(harness.ep_groups(session)) == 1
    x = normal(6, 5)
    i = np.array([[4, -5], [0, -1]], kind)
    np.testing.assert_array_equal(session.run(None, {"x": x, "i": i})[0], -x[:, INDICES[moved](i)])
    for bad in (5, -6, 2**31 - 1, -(2**31)):
        wrong = np.array([[4, bad], [0, 1]], kind)
        with pytest.raises(Exception, match=f"input 'i' has the value {bad}, but as indices .* from -5 to 4"):
            session.run(None, {"x": x, "i": wrong})
    np.testing.assert_array_equal(session.run(None, {"x": x, "i": i})[0], -x[:, INDICES[moved](i)])


def test_indices_fit_all_that_they_choose_from(fake: dict[str, str]) -> None:
    text = """g (float[6, 3] a, float[4, 3] b, int64[N] i) => (float[N, 3] y) {
        n = Neg(a) m = Neg(b) p = Gather(n, i) q = Gather(m, i) y = Add(p, q) }"""
    session = island(text, fake)
    a, b = normal(6, 3), normal(4, 3)
    (y,) = session.run(None, {"a": a, "b": b, "i": np.array([3, -4])})
    np.testing.assert_array_equal(y, -a[[3, 2]] - b[[3, 0]])
    with pytest.raises(Exception, match=r"has the value 4, but as indices .* from -4 to 3"):
        session.run(None, {"a": a, "b": b, "i": np.array([4, 0])})


@pytest.mark.parametrize("computed", ["Where(c, i, j)", "Slice(i, j, k)", "Gather(i, j)"])
def test_indices_that_the_gpu_computes_stay_on_the_cpu(computed: str, fake: dict[str, str], tmp_path: Path) -> None:
    """Nothing checks them there, and of a part of an input not all elements need to be indices."""
    report = tmp_path / "claims.jsonl"
    text = f"""g (float[6, 3] x, int64[2, 2] i, int64[1] j, int64[1] k, bool[2, 2] c) => (float y) {{
        n = Neg(x) at = {computed} y = Gather(n, at) }}"""
    model = parse(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.node[-1].name = "last"
    given = {"claim": "all", "claim_report": report, "explain_directml": "6_2"}
    session = harness.create_session(model, "ep", backend="directml", **given, **fake)
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
