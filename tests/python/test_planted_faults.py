"""Planted faults, one a row, and what only looks like one: what verification says of each."""

import copy
import re
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from parsed_models import parse

import normfuse
from normfuse import models
from normfuse.meaning import Array

F32, F16 = np.float32, np.float16


class Model(NamedTuple):
    """A model as text, and its constants."""

    text: str
    constants: dict[str, Any]
    inputs: dict[str, Array] | None = None
    opset: int = 21
    optimized: bool = False
    """What is compared with it is what optimize makes of a changed one."""

    def built(self, change: dict[str, Any] | None = None) -> onnx.ModelProto:
        """Return it with other constants, or other words in the text."""
        text, constants = self.text, {name: np.asarray(value) for name, value in self.constants.items()}
        for what, value in (change or {}).items():
            assert what in constants or what in text, what
            if what in constants:
                constants[what] = np.asarray(value, constants[what].dtype)
            else:
                text = text.replace(what, value)
        made = parse(
            text, self.opset, **{name: constants[name] for name in constants if re.search(rf"\b{name}\b", text)}
        )
        if "ai.normfuse" in text:
            made.opset_import.append(helper.make_opsetid("ai.normfuse", 1))
        return made

    def verified(self, change: dict[str, Any]) -> normfuse.VerificationReport:
        other = self.built(change)
        if self.optimized:
            other = normfuse.optimize(other, verify=False).model
        return normfuse.verify(self.built(), other, inputs=self.inputs)


# --- rounding ties ---

# x[5, 7] is exactly 3.5 steps: so is what one unit in the last place turns.
STEP = F32(0.03125)
X = np.random.default_rng(0).normal(size=(64, 32)).astype(F32)
X[5, 7] = F32(3.5) * STEP
# A factor: 3.4999998 steps, 3 instead of 4. By other names the values before the pair are a part of its site.
TURNS = {
    "rounded": np.nextafter(F32(1), F32(0)),
    "r = Mul(x, rounded) m = Add(r, before)": "r2 = Mul(x, rounded) m2 = Add(r2, before)",
    "(m, s, z)": "(m2, s, z)",
}
PAIR = "q = QuantizeLinear(m, s, z) d = DequantizeLinear(q, s, z)"
OURS = 'd = ai.normfuse.FusedActivation<steps = "FakeQuantize scale=s zero_point=z{}", spec_version = 2>(m, s, z)'
AMPLIFYING = Model(
    f"""g (float[64,32] x) => (float[64,32] y) {{
    r = Mul(x, rounded) m = Add(r, before) {PAIR} b = Add(d, step) y = Mul(b, factor) }}""",
    {"rounded": F32(1), "before": F32(0), "s": STEP, "z": np.int8(0), "step": F32(0), "factor": F32(1000)},
    {"x": X},
)
SIXTEEN_BITS = AMPLIFYING._replace(constants=AMPLIFYING.constants | {"z": np.int16(0)})


def three(names: str) -> str:
    """Two pairs less a third one: what ties make of them is larger than what two quantisers in turn do."""
    pairs = (
        f"m{n} = Mul(x, f{n[-1]}) q{n} = QuantizeLinear(m{n}, s, z) d{n} = DequantizeLinear(q{n}, s, z)"
        for n in (f"{names}1", f"{names}2", f"{names}3")
    )
    return f"{' '.join(pairs)} s{names} = Add(d{names}1, d{names}2) y = Sub(s{names}, d{names}3) }}"


THREE = Model(
    f"g (float[64,32] x) => (float[64,32] y) {{ {three('a')}",
    {"f1": F32(1), "f2": F32(1), "f3": F32(1), "s": STEP, "z": np.int8(0)},
    {"x": X},
)
SYMMETRIC = Model(  # a range from -1 to 1, whose zero point is at a tie: 127.5
    """g (float[64,32] x) => (float[64,32] y) {
    one = Constant<value = float {1}>() c = Clip(x, low, one) q, s, z = DynamicQuantizeLinear(c)
    d = DequantizeLinear(q, s, z) b = Add(d, step) y = Mul(b, factor) }""",
    {"low": F32(-1), "step": F32(0), "factor": F32(1000)},
    {"x": np.random.default_rng(1).normal(size=(64, 32)).astype(F32)},
)
WEIGHTS = np.random.default_rng(2).normal(size=(32, 32)).astype(F32) / F32(8)
MANY_TERMS = Model(  # a range from -4 to 4 in 16 bits, and a hundred thousand times what it gives
    f"""g (float[n,32] x) => (float[n,32] y) {{ p = MatMul(x, w) m = Identity(p) {PAIR} f = Mul(d, factor)
    q2 = QuantizeLinear(f, s, z) d2 = DequantizeLinear(q2, s, z) y = Mul(d2, large) }}""",
    {
        "w": WEIGHTS,
        "turned": WEIGHTS[::-1].copy(),
        "order": np.arange(31, -1, -1),
        "s": F32(2.0**-13),
        "z": np.int16(0),
        "factor": F32(0.7),
        "large": F32(1e5),
    },
    {"x": np.random.default_rng(3).normal(size=(512, 32)).astype(F32)},
)

# --- mixed types: the rewritten chain rounds once, where the original rounds in between, or divides in float16 ---

NUMPY = {"float": F32, "float16": F16}
# Of the values, of the scale, of the integers, and of what is dequantised.
MIXED = [
    ("float16", "float", "int8", "float16"),
    ("float", "float", "int8", "float16"),
    ("float", "float", "uint16", "float16"),
    ("float", "float16", "int16", "float"),
    ("float16", "float", "int16", "float"),
]


def ramps(dtype: type = F16) -> dict[str, Array]:
    """Rows of a batch that are not alike: ramps, padding, a constant, an outlier, and faint ones."""
    rows = np.random.default_rng(2).normal(0, 1, (8, 256))
    rows[1] = np.linspace(0, 1, 256)
    rows[2] = np.linspace(3, -2, 256)
    rows[3, 40:] = 0
    rows[4] = 0.5
    rows[5, 0] = 30
    rows[6] *= 0.01
    return {"x": rows.astype(dtype)}


def mixed(types: tuple[str, str, str, str]) -> Model:
    """LayerNormalization -> Clip -> Q/DQ pair -> SiLU."""
    values, of_scale, integers, back = types
    rng, kind = np.random.default_rng(1), NUMPY[values]
    step = 0.0371 if integers == "int8" else 0.0371 / 128
    return Model(
        f"""g ({values}[8,256] x) => ({back}[8,256] y) {{ r = Gather<axis = 0>(x, o)
        n = LayerNormalization<epsilon = 1e-5>(r, w, b) c = Clip(n, low, high) i = QuantizeLinear(c, s, z)
        d = DequantizeLinear<output_dtype = {1 if back == "float" else 10}>(i, s, z) g = Sigmoid(d) y = Mul(d, g) }}""",
        {
            "w": rng.uniform(0.5, 2, 256).astype(kind),
            "b": rng.normal(0, 0.3, 256).astype(kind),
            "low": kind(-4),
            "high": kind(4),
            "o": np.arange(8),
            "s": NUMPY[of_scale](step),
            "z": np.dtype(integers).type(32768 if integers == "uint16" else 0),
        },
        ramps(kind),
        opset=24,
        optimized=True,
    )


MIXED_FAULTS: list[dict[str, Any]] = [
    {"epsilon = 1e-5": "epsilon = 1e-2"},
    {"s": 1.0054},  # times
    {"low": -3.5, "high": 3.5},
    {"o": [1, 0, 2, 3, 4, 5, 6, 7]},
]

# --- floats ---

# A variance as E[x^2] - E[x]^2 cancels in a row whose mean is three hundred times its deviation.
FAR = ramps(F32)
FAR["x"][6] += 3
EXACT = "y = LayerNormalization<epsilon = {}>(x, w, b)"
BY_MOMENTS = """m = ReduceMean<axes = [-1]>(x) s = Mul(x, x) q = ReduceMean<axes = [-1]>(s) t = Mul(m, m) v = Sub(q, t)
    e = Add(v, eps) r = Sqrt(e) i = Reciprocal(r) d = Sub(x, m) n = Mul(d, i) f = Mul(n, w) y = Add(f, b)"""
MOMENTS = Model(
    f"g (float[8,256] x) => (float[8,256] y) {{ {BY_MOMENTS} }}",
    {"w": np.ones(256, F32), "b": np.random.default_rng(4).normal(0, 0.3, 256).astype(F32), "eps": F32(1e-6)},
    FAR,
    opset=17,
)
RNG = np.random.default_rng(0)
ONES, TABLE = np.ones(64, F32), RNG.normal(size=(30_000, 64)).astype(F32)
WRONG_ROW = np.where(np.arange(30_000)[:, None] == 12_345, TABLE[:, ::-1], TABLE)
CLIPPED = Model(
    """g (float[N,64] x) => (float[N,64] y) {
    n = LayerNormalization<epsilon = 1e-6>(x, w, w) y = Clip(n, low, high) }""",
    {"w": ONES, "low": F32(-4), "high": F32(4)},
    optimized=True,
)
LOOKED_UP = Model(
    "g (int64[N,S] ids) => (float[N,S,64] y) { e = Gather(t, ids) y = LayerNormalization(e, w, w) }",
    {"t": TABLE, "w": ONES},
)
# A float16 elsewhere is no reason to allow more.
BRANCHES = Model(
    """g (float[N,64] x, bool[1] on) => (float[N,64] y) { h = Cast<to = 10>(x) f = Cast<to = 1>(h)
    n = If(on) <then_branch = t () => (float[N,64] a) { n1 = LayerNormalization(f, w, b) a = Cast<to = 1>(n1) },
    else_branch = e () => (float[N,64] d) { d = LayerNormalization(f, w, b) }> y = Tanh(n) }""",
    {"w": ONES, "b": ONES / 3},
    optimized=True,
)
BRANCHED = Model(
    """g (float[N,64] x, bool on) => (float[N,64] y) {
    n = If(on) <then_branch = t () => (float[N,64] a) { a = LayerNormalization(x, other, b) },
    else_branch = e () => (float[N,64] d) { d = LayerNormalization(x, w, b) }> y = Tanh(n) }""",
    {"w": ONES, "b": ONES / 3, "other": ONES},
)


def of_a_sum(model: Model) -> Model:
    """With a condition that no sample meets."""
    condition = "sum = ReduceSum<keepdims = 0>(x) on = Greater(sum, lot) n = If"
    text = model.text.replace(", bool on", "").replace("n = If", condition)
    return model._replace(text=text, constants=model.constants | {"lot": F32(1e5)})


OF_A_SUM = of_a_sum(BRANCHED)
NESTED = BRANCHED._replace(  # "other" counts where one condition holds and the other does not
    text="""g (float[N,64] x, bool on, bool too) => (float[N,64] y) {
    n = If(on) <then_branch = t () => (float[N,64] a) {
        a = If(too) <then_branch = tt () => (float[N,64] aa) { aa = LayerNormalization(x, w, b) },
        else_branch = te () => (float[N,64] ad) { ad = LayerNormalization(x, other, b) }> },
    else_branch = e () => (float[N,64] d) { d = LayerNormalization(x, w, b) }> y = Tanh(n) }""",
)
AFTER_AN_IF = BRANCHED._replace(  # which alone reads x
    text="""g (float[N,64] x, bool on) => (float[N,64] y) {
    n = If(on) <then_branch = t () => (float[N,64] a) { a = Add(x, w) },
    else_branch = e () => (float[N,64] d) { m = Neg(x) d = Sub(m, w) }>
    l = LayerNormalization(n, other, b) s = Sigmoid(l) y = Mul(l, s) }""",
    optimized=True,
)
FAR_IN_HALF = Model(  # the sum is rounded where normfuse is not, and in the original, run in float32, is not
    """g (float16[N,64] x) => (float16[N,64] y) {
    s = Add(x, r) m = ReduceMean<axes = [-1]>(s) d = Sub(s, m) q = Mul(d, d) v = ReduceMean<axes = [-1]>(q)
    w = Add(v, e) t = Sqrt(w) n = Div(d, t) y = Mul(n, f) }""",
    {"r": (20 + RNG.normal(size=64)).astype(np.float16), "e": np.float16(1e-3), "f": np.ones(64, np.float16)},
    opset=17,
    optimized=True,
)
QUANTISED_BRANCH = BRANCHED._replace(
    text=BRANCHED.text.replace(
        "a = LayerNormalization(x, other, b)",
        "n1 = LayerNormalization(x, other, b) q = QuantizeLinear(n1, s, z) a = DequantizeLinear(q, s, z)",
    ),
    constants=BRANCHED.constants | {"s": F32(0.02), "z": np.uint8(128)},
)
SCALED = Model(
    """g (float[N,64] x, float factor) => (float[N,64] y) {
    n = LayerNormalization<axis = -1, epsilon = 1e-6>(x, w, b) y = Mul(n, factor) }""",
    {"w": ONES, "b": ONES / 3},
    optimized=True,
)
RELU6 = Model(
    "g (float[N,48] x) => (float[N,48] y) { n = LayerNormalization(x, w, b) y = Clip(n, zero, six) }",
    {"w": np.linspace(0.7, 1.4, 48, dtype=F32), "b": np.zeros(48, F32), "zero": F32(0), "six": F32(6)},
    optimized=True,
)
LOOPED = Model(
    """g (float[N,64] x) => (float[N,64] y) { k = Constant<value = int64 {3}>() go = Constant<value = bool {1}>()
    l = Loop(k, go, x) <body = l (int64 i, bool on, float[N,64] a) => (bool next, float[N,64] z) {
    next = Identity(on) z = LayerNormalization(a, w, b) }> h = Cast<to = 10>(l) y = Cast<to = 1>(h) }""",
    {"w": ONES, "b": ONES / 3},
)
REPEATED = Model(  # all that is known of it is the output
    """g (float[n,8] x) => (float[n,8] y) { k = Constant<value = int64 {3}>() go = Constant<value = bool {1}>()
    y = Loop(k, go, x) <body = b (int64 i, bool on, float[n,8] a) => (bool next, float[n,8] z) {
    next = Identity(on) z = Mul(a, f) }> }""",
    {"f": F32(0.5)},
)
# What changes nothing because of what a value can be: no other numbers are put in its place.
BOUNDED = Model(
    "g (float[n,64] x) => (float[n,64] y) { e = Sigmoid(x) c = Clip(e, zero, one) y = Mul(c, x) }",
    {"zero": F32(0), "one": F32(1)},
)
ON_A_GRID = Model(
    """g (float[n,64] x) => (float[n,64] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
    r = QuantizeLinear(d, s, z) e = DequantizeLinear(r, s, z) y = Mul(e, x) }""",
    {"s": STEP, "z": np.int8(0)},
)
# What fills a tensor hides no fault.
MASKED = Model(
    """g (float[N, S, 32] x) => (float[N, S, 32] y) { l = LayerNormalization(x, scale, b) y = Where(keep, l, fill) }""",
    {
        "scale": RNG.normal(size=32).astype(F32),
        "b": RNG.normal(size=32).astype(F32),
        "fill": F32(-1e9),
        "keep": np.arange(32) < 20,
        "mask": np.where(np.arange(32) < 20, 0, -1e9).astype(F32),
    },
)
WIDE = {"fill": F32(-3.4e38), "mask": np.where(np.arange(32) < 20, 0, -3.4e38).astype(F32)}
MASKS = [
    MASKED._replace(text=text, constants=MASKED.constants | fill, optimized=optimized)
    for text in (MASKED.text, MASKED.text.replace("Where(keep, l, fill)", "Add(l, mask)"))
    for fill in ({}, WIDE)
    for optimized in (False, True)
]
# No output shows the value, which has the original's name and there is another one.
HIDDEN = Model(
    """g (float[N, 32] x) => (float[N, 32] y) { l = LayerNormalization(x, scale, b) s = Sub(l, x) t = Tanh(s)
    rare = Greater(x, six) y = Where(rare, t, x) }""",
    {name: MASKED.constants[name] for name in ("scale", "b")} | {"six": F32(6)},
    optimized=True,
)
# Names may stand for other values in two files, as of an exporter that numbers what it writes.
NUMBERED = Model("g (float[n,8] x) => (float[n,8] y) { v1 = Relu(x) v2 = Neg(v1) v3 = Exp(v2) y = Sqrt(v3) }", {})
MOVED = "v1 = Identity(x) v2 = Relu(v1) v3 = Neg(v2) v4 = {}(v3) y = Sqrt(v4) }}"

SAME: dict[str, Any] = {}
ROWS: list[tuple[Model, dict[str, Any], str]] = [
    (AMPLIFYING, TURNS, "agree"),
    (AMPLIFYING, {"before": STEP / 4}, "differ"),  # a quarter of all elements is one step off
    (AMPLIFYING, {"before": STEP / 200}, "differ"),  # one of 200, but too far from a tie for a rounding error
    (AMPLIFYING, {"before": STEP * 2}, "differ"),  # all of them by two
    (AMPLIFYING, TURNS | {"factor": 1002}, "differ"),  # a tie, and an error that has nothing to do with it
    (AMPLIFYING, TURNS | {"step": 0.001}, "differ"),
    (SIXTEEN_BITS, {PAIR: OURS.format("")} | TURNS, "agree"),  # the integers are nowhere
    (SIXTEEN_BITS, {"before": STEP / 4, PAIR: OURS.format("")}, "differ"),
    (SIXTEEN_BITS, {"before": STEP * 2, PAIR: OURS.format("")}, "differ"),
    (SIXTEEN_BITS, {PAIR: OURS.format("; Swish alpha=100")} | TURNS, "differ"),
    (THREE, {three("a"): three("b"), "f3": TURNS["rounded"]}, "agree"),
    (THREE, {three("a"): three("b"), "f3": 1.05}, "differ"),
    (SYMMETRIC, {"low": -1.0000001, "c = Clip": "c2 = Clip", "(c)": "(c2)"}, "agree"),  # shifts all values
    (SYMMETRIC, {"low": -1.0000001, "step": 0.001}, "differ"),
    (SYMMETRIC, {"low": -1.02}, "differ"),
    # The order of a sum turns more values of 16 bits than of 8.
    (MANY_TERMS, {"p = MatMul(x, w)": "g = Gather<axis = 1>(x, order) p = MatMul(g, turned)"}, "agree"),
    (MANY_TERMS, {"factor": 0.7 * 1.00002}, "differ"),
    (MANY_TERMS, {PAIR: "d = Identity(m)"}, "differ"),
    *((mixed(types), SAME, "agree") for types in MIXED),
    *((mixed(types)._replace(inputs=None), SAME, "agree") for types in MIXED),
    *(
        (mixed(types), fault if "s" not in fault else {"s": mixed(types).constants["s"] * fault["s"]}, "differ")
        for types in MIXED
        for fault in MIXED_FAULTS
        # Where the original divides in float16 it is several steps off, and another scale moves values by half of one.
        if "s" not in fault or types[1] != "float16"
    ),
    (MOMENTS, {BY_MOMENTS: EXACT.format(1e-6)}, "agree"),
    (MOMENTS, {BY_MOMENTS: EXACT.format(1e-3)}, "differ"),
    (MOMENTS, {BY_MOMENTS: EXACT.format(1e-6), "w": np.full(256, 1.01)}, "differ"),
    (CLIPPED, SAME, "agree"),
    (CLIPPED, {"high": 80}, "differ"),
    (CLIPPED._replace(optimized=False), {"high": 80}, "differ"),
    (CLIPPED, {"epsilon = 1e-6": "epsilon = 1e-12"}, "differ"),
    (CLIPPED._replace(optimized=False), {"epsilon = 1e-6": "epsilon = 1e-12"}, "differ"),
    (LOOKED_UP._replace(optimized=True), SAME, "agree"),
    (LOOKED_UP, {"t": WRONG_ROW}, "differ"),
    (LOOKED_UP._replace(optimized=True), {"t": WRONG_ROW}, "differ"),
    (BRANCHES, SAME, "agree"),
    (BRANCHES, {"w": ONES * F32(1.003)}, "differ"),
    (BRANCHES._replace(optimized=False), {"w": ONES * F32(1.003)}, "differ"),
    # in the branch that no sample takes, of which a lone bool is False
    *(
        (model._replace(optimized=optimized), {"other": ONES * F32(1.003)}, "differ")
        for model in (BRANCHED, OF_A_SUM)
        for optimized in (False, True)
    ),
    *((model._replace(optimized=True), SAME, "agree") for model in (BRANCHED, OF_A_SUM, QUANTISED_BRANCH, NESTED)),
    (NESTED, {"other": -ONES}, "differ"),
    (AFTER_AN_IF, SAME, "agree"),
    (AFTER_AN_IF, {"other": ONES * F32(1.003)}, "differ"),
    (of_a_sum(QUANTISED_BRANCH), {"other": -ONES}, "undecided"),  # the exact integers of a branch are not computed
    (FAR_IN_HALF, SAME, "agree"),
    (FAR_IN_HALF, {"f": np.full(64, 1.03, np.float16)}, "differ"),
    # a scalar among what a site reads, which is to be as faint as the rest
    (SCALED, {"epsilon = 1e-6": "epsilon = 1e-12"}, "differ"),
    # a bound that only some channels reach, in a tensor of few rows
    (RELU6, SAME, "agree"),
    (RELU6, {"six": 5.9}, "differ"),
    (LOOPED, SAME, "agree"),
    (LOOPED, {"w": ONES * F32(1.003)}, "undecided"),  # what is exact is not known in loops
    (BOUNDED, {"c = Clip(e, zero, one) y = Mul(c, x)": "y = Mul(e, x)"}, "agree"),
    (ON_A_GRID, {"r = QuantizeLinear(d, s, z) e = DequantizeLinear(r, s, z) y = Mul(e, x)": "y = Mul(d, x)"}, "agree"),
    (REPEATED, {"f": 0.5 + 1e-5}, "agree"),
    (REPEATED, {"f": 0.5 + 1e-3}, "differ"),
    *((masked, SAME, "agree") for masked in MASKS),
    *((masked, {"scale": masked.constants["scale"] * 1.5}, "differ") for masked in MASKS),
    (HIDDEN, SAME, "agree"),
    (HIDDEN, {"scale": -HIDDEN.constants["scale"]}, "differ"),
    (NUMBERED, {NUMBERED.text[NUMBERED.text.index("v1") :]: MOVED.format("Exp")}, "agree"),
    (NUMBERED, {NUMBERED.text[NUMBERED.text.index("v1") :]: MOVED.format("Sigmoid")}, "differ"),
]


@pytest.mark.parametrize(("model", "change", "result"), ROWS)
def test_what_verification_says(model: Model, change: dict[str, Any], result: str) -> None:
    report = model.verified(change)
    assert report.result == result, report.message
    assert (report.result == "differ") == (report.first_difference is not None)


def test_what_amplifies_rounding_is_reported() -> None:
    report = AMPLIFYING.verified(TURNS)
    assert [run.error for run in report.runs] == pytest.approx([1000 * STEP] * 2)
    assert f"An output is {1000 * STEP:.2g} from the original's: the model amplifies rounding" in report.message
    assert normfuse.verify(REPEATED.built(), REPEATED.built({"f": 0.501}), max_error=0.01).result == "agree"


@pytest.mark.parametrize("side", [-1, 1])
def test_a_tie_that_is_one_in_the_types_own_precision_alone(side: int) -> None:
    """Divided by the scale in float32 it is a tie; exactly it lies on one side, and it is rounded to the other."""
    tie = F32(29.5 if side < 0 else 28.5)  # half to even: 30 and 28
    scales = np.linspace(0.1, 0.2, 1000, dtype=F32)
    near = tie * scales
    exact = near.astype(np.float64) / scales
    (scale, *_), (value, *_) = (each[(near / scales == tie) & (side * (exact - tie) > 1e-7)] for each in (scales, near))
    x = np.where(np.abs(X / scale % 1 - 0.5) < 0.001, F32(0), X)  # nothing else is near to a tie
    x[5, 7] = value
    report = AMPLIFYING._replace(constants=AMPLIFYING.constants | {"s": scale}, inputs={"x": x}).verified(
        TURNS | {"rounded": 1 + side * 5e-7}
    )
    assert report.passed, report.message
    assert [run.error for run in report.runs] == pytest.approx([1000 * scale] * 2, rel=1e-5)


@pytest.mark.parametrize(
    ("shape", "attributes"), [((64,), "axis = 0"), ((32,), "axis = -1"), ((64, 4), "axis = 1, block_size = 8")]
)
def test_ties_of_many_scales(shape: tuple[int, ...], attributes: str) -> None:
    # That of x[5, 7] is STEP, all others are one of ten beside it.
    scales = np.random.default_rng(4).choice(np.arange(30, 40) * STEP / 32, shape).astype(F32)
    scales[{(64,): 5, (32,): 7, (64, 4): (5, 0)}[shape]] = STEP
    model = AMPLIFYING._replace(
        text=AMPLIFYING.text.replace("Linear(", f"Linear<{attributes}>("),
        constants=AMPLIFYING.constants | {"s": scales, "z": np.zeros(shape, np.int8)},
    )
    found = [model.verified(change) for change in (TURNS, {"before": STEP / 200})]
    assert [report.passed for report in found] == [True, False]
    assert [run.error for run in found[0].runs] == pytest.approx([1000 * STEP] * 2)


@pytest.mark.parametrize("fault", ["scale", "alpha", "epsilon"])
def test_a_small_fault_of_a_custom_operator_is_found(fault: str) -> None:
    """Of four units in the last place of float16 at most; an epsilon before a quantiser, which moves values by a
    thousandth of a step, as nothing but an activation may.
    """
    original = models.chain(["n", 16, 64], dtype="float16", activation_name="silu")
    if fault == "epsilon":
        original = models.transformer_encoder(layers=1, hidden=32, quantized=True)
    faulty = normfuse.optimize(original, target="custom-op", verify=False).model
    assert normfuse.verify(original, faulty).result == "agree"
    node = [node for node in faulty.graph.node if node.domain == "ai.normfuse"][-1]
    (steps,) = (each for each in node.attribute if each.name == "steps")
    if fault == "scale":
        scale = next(tensor for tensor in faulty.graph.initializer if tensor.name == node.input[1])
        wrong = numpy_helper.to_array(scale).astype(F32) * 1.002
        scale.CopyFrom(numpy_helper.from_array(wrong.astype(F16), scale.name))
    else:
        right, wrong = {"alpha": (b"alpha=1", b"alpha=1.01"), "epsilon": (b"epsilon=1e-05", b"epsilon=0.0002")}[fault]
        assert right in steps.s
        steps.s = steps.s.replace(right, wrong)
    assert normfuse.verify(original, faulty).result == "differ"


def test_an_input_that_is_an_output_keeps_its_shape() -> None:
    model = parse("g (float[4,3] x, float[3] w) => (float[4,3] y, float[4,3] x) { y = LayerNormalization(x, w) }", 17)
    model.graph.output[1].type.tensor_type.ClearField("shape")
    assert normfuse.verify(model, model).passed


def test_a_node_of_another_version_is_another_one() -> None:
    """Of [n, 2, 4] Softmax normalises all that follows axis 1 before opset 13, and that axis alone from then on."""
    text = """g (float[n,8] x) => (float[n,8] y) { s = Constant<value_ints = [-1, 2, 4]>()
    t = Constant<value_ints = [-1, 8]>() r = Reshape(x, s) m = Softmax<axis = 1>(r) y = Reshape(m, t) }"""
    assert normfuse.verify(parse(text, 12), parse(text, 12)).result == "agree"
    assert normfuse.verify(parse(text, 12), parse(text, 13)).result == "differ"


@pytest.mark.parametrize("overridable", [False, True])
def test_another_constant_is_found_wherever_it_is(overridable: bool) -> None:
    """Also one that a run may replace, and an output that is one."""

    def model(number: float) -> onnx.ModelProto:
        made = parse("g (float[n,8] x) => (float[n,8] y) { y = Add(x, c) }", 17, c=np.asarray(F32(number)))
        kind = helper.make_tensor_value_info("c", TensorProto.FLOAT, [])
        (made.graph.input if overridable else made.graph.output).append(kind)
        return made

    assert normfuse.verify(model(1), model(1)).result == "agree"
    report = normfuse.verify(model(1), model(1.001))
    assert (report.result, report.first_difference) == ("differ", "y")


def test_sites_are_compared_in_batches_that_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normfuse.verification.memory._BATCH_BYTES", 20_000)
    original = models.transformer_encoder(layers=2, hidden=32)
    optimized = normfuse.optimize(original, verify=False).model
    report = normfuse.verify(original, optimized)
    assert (report.diff_sites.found, report.diff_sites.right, report.samples) == (9, 9, 4)
    faulty = copy.deepcopy(optimized)
    node = [node for node in faulty.graph.node if "LayerNormalization" in node.op_type][-1]
    scale = next(tensor for tensor in faulty.graph.initializer if tensor.name in node.input and len(tensor.dims))
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * F32(1.01), scale.name))
    assert normfuse.verify(original, faulty).first_difference == node.output[0]
