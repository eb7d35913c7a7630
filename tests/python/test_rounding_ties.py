"""Verification of quantised models: a rounding tie that goes the other way is no difference, anything more is one."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import normfuse
from normfuse import models

X = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
# x[5, 7] is exactly 3.5 steps; so is what an Add of one unit in the last place turns.
STEP = np.float32(0.03125)
X[5, 7] = np.float32(3.5) * STEP


def amplifying(*, before: float = 0.0, factor: float = 1000.0, step: float = 0.0) -> onnx.ModelProto:
    """X + before -> QuantizeLinear -> DequantizeLinear -> + step -> * factor."""
    g = models.GraphBuilder(opset=17)
    moved = g.add("Add", g.input("x", ["n", 32], np.float32), np.float32(before))
    q = g.add("QuantizeLinear", moved, STEP, np.int8(0), output="q")
    back = g.add("Add", g.add("DequantizeLinear", q, STEP, np.int8(0)), np.float32(step))
    g.output(g.add("Mul", back, np.float32(factor)), ["n", 32])
    return g.model("amplifying")


def verify(**changed: float) -> normfuse.VerificationReport:
    return normfuse.verify(amplifying(), amplifying(**changed), inputs={"x": X})


def test_a_tie_that_goes_the_other_way_is_no_difference() -> None:
    report = verify(before=-1e-8)  # 3.4999998 steps: 3 instead of 4
    assert report.passed, report.message
    assert [run.error for run in report.runs] == pytest.approx([1000 * STEP] * 2)
    assert f"An output is {1000 * STEP:.2g} from the original's: the model amplifies rounding" in report.message


@pytest.mark.parametrize("side", [-1, 1])
def test_a_tie_that_is_one_in_the_types_own_precision_alone(side: int) -> None:
    """Divided by the scale in float32 it is a tie; exactly it lies on one side, and it is rounded to the other."""
    tie = np.float32(29.5 if side < 0 else 28.5)  # half to even: 30 and 28
    scales = np.linspace(0.1, 0.2, 1000, dtype=np.float32)
    near = tie * scales
    exact = near.astype(np.float64) / scales
    (scale, *_), (value, *_) = (each[(near / scales == tie) & (side * (exact - tie) > 1e-7)] for each in (scales, near))
    x = np.where(np.abs(X / scale % 1 - 0.5) < 0.001, np.float32(0), X)  # nothing else is near to a tie
    x[5, 7] = value
    moved = [of_scales(np.asarray(scale), before=before) for before in (0.0, side * 2e-6)]
    report = normfuse.verify(*moved, inputs={"x": x})
    assert report.passed, report.message
    assert [run.error for run in report.runs] == pytest.approx([1000 * scale] * 2, rel=1e-5)


@pytest.mark.parametrize(
    "changed",
    [
        {"before": float(STEP) / 4},  # a quarter of all elements is one step off
        {"before": float(STEP) / 200},  # one of 200, but too far from a tie for a rounding error
        {"before": float(STEP) * 2},  # all of them by two
        {"before": -1e-8, "factor": 1002.0},  # a tie, and an error that has nothing to do with it
        {"before": -1e-8, "step": 0.001},
    ],
)
def test_more_than_ties_is_a_difference(changed: dict[str, float]) -> None:
    report = verify(**changed)
    assert not report.passed


def symmetric(*, low: float = -1.0, step: float = 0.0) -> onnx.ModelProto:
    """A range from -1 to 1, whose zero point is at a tie: 127.5."""
    nodes = f"""
        one = Constant <value = float {{1.0}}> ()
        low = Constant <value = float {{{low!r}}}> ()
        step = Constant <value = float {{{step!r}}}> ()
        factor = Constant <value = float {{1000.0}}> ()
        moved = Clip (x, low, one)
        q, scale, zero_point = DynamicQuantizeLinear (moved)
        back = DequantizeLinear (q, scale, zero_point)
        stepped = Add (back, step)
        y = Mul (stepped, factor)
    """
    header = '<ir_version: 9, opset_import: ["" : 17]> g (float[n,32] x) => (float[n,32] y)'
    return onnx.parser.parse_model(f"{header} {{{nodes}}}")


def test_a_zero_point_at_a_tie_shifts_all_values() -> None:
    x = {"x": np.random.default_rng(1).normal(size=(64, 32)).astype(np.float32)}
    report = normfuse.verify(symmetric(), symmetric(low=-1.0000001), inputs=x)
    assert report.passed, report.message
    assert report.runs[0].error > 1
    assert not normfuse.verify(symmetric(), symmetric(low=-1.0000001, step=0.001), inputs=x).passed
    assert not normfuse.verify(symmetric(), symmetric(low=-1.02), inputs=x).passed


# Half a unit in the last place less, of values of any size.
ROUNDED = float(np.nextafter(np.float32(1), np.float32(0)))


def of_pair(
    *, factor: float = 1.0, before: float = 0.0, steps: str = "FakeQuantize scale=s zero_point=z"
) -> onnx.ModelProto:
    """The same in 16 bits, its pair a node of ours: the integers are nowhere."""
    g = models.GraphBuilder(opset=21)
    scaled = g.add("Mul", g.input("x", ["n", 32], np.float32), np.float32(factor))
    moved = g.add("Add", scaled, np.float32(before))
    parameters = (STEP, np.int16(0))
    if steps:
        node = g.add(
            "FusedActivation", moved, *parameters, domain="ai.normfuse", steps=steps, spec_version=2, output="d"
        )
    else:
        node = g.add("DequantizeLinear", g.add("QuantizeLinear", moved, *parameters), *parameters, output="d")
    g.output(g.add("Mul", node, np.float32(1000), output="y"), ["n", 32])
    return g.model("of_pair")


@pytest.mark.parametrize(
    ("changed", "passes"),
    [
        ({"factor": ROUNDED}, True),
        ({"before": float(STEP) / 4}, False),  # a quarter of all elements
        ({"before": float(STEP) * 2}, False),
        ({"factor": ROUNDED, "steps": "FakeQuantize scale=s zero_point=z; Swish alpha=100"}, False),
    ],
)
def test_a_tie_in_a_node_that_ends_with_a_pair(changed: dict[str, object], passes: bool) -> None:
    report = normfuse.verify(of_pair(steps=""), of_pair(**changed), inputs={"x": X})  # type: ignore[arg-type]
    assert report.passed == passes, report.message


SIXTEEN_BITS = np.float32(2.0**-13)  # a range from -4 to 4


def many_terms(*, turned: bool = False, factor: float = 1.0, pair: bool = True) -> onnx.ModelProto:
    """A product, whose sums are taken from their other end if it is to be turned, a pair, a factor, another pair.

    A hundred thousand times what that gives is the output.
    """
    g = models.GraphBuilder(opset=21)
    x = g.input("x", ["n", 32], np.float32)
    weights = np.random.default_rng(2).normal(size=(32, 32)).astype(np.float32) / np.float32(8)
    if turned:
        order = np.arange(31, -1, -1)
        summed = g.add("MatMul", g.add("Gather", x, order, axis=1), weights[::-1].copy())
    else:
        summed = g.add("MatMul", x, weights)
    parameters = (SIXTEEN_BITS, np.int16(0))
    first = summed
    if pair:
        first = g.add("DequantizeLinear", g.add("QuantizeLinear", summed, *parameters, output="q"), *parameters)
    scaled = g.add("Mul", first, np.float32(factor * 0.7))
    second = g.add("DequantizeLinear", g.add("QuantizeLinear", scaled, *parameters, output="q2"), *parameters)
    g.output(g.add("Mul", second, np.float32(1e5), output="y"), ["n", 32])
    return g.model("many_terms")


ROWS = {"x": np.random.default_rng(3).normal(size=(512, 32)).astype(np.float32)}


def test_the_order_of_a_sum_turns_more_values_of_16_bits_than_of_8() -> None:
    report = normfuse.verify(many_terms(), many_terms(turned=True), inputs=ROWS)
    assert report.passed, report.message


@pytest.mark.parametrize("changed", [{"factor": 1.00002}, {"pair": False}])
def test_what_moves_values_of_16_bits_by_part_of_a_step_is_a_difference(changed: dict[str, float]) -> None:
    report = normfuse.verify(many_terms(), many_terms(**changed), inputs=ROWS)  # type: ignore[arg-type]
    assert not report.passed


def of_scales(scales: np.ndarray, *, before: float = 0.0, **attributes: int) -> onnx.ModelProto:
    """X + before -> QuantizeLinear -> DequantizeLinear with these scales -> * 1000."""
    g = models.GraphBuilder(opset=21)
    moved = g.add("Add", g.input("x", [64, 32], np.float32), np.float32(before))
    parameters = (scales, np.zeros(scales.shape, np.int8))
    q = g.add("QuantizeLinear", moved, *parameters, output="q", **attributes)
    g.output(g.add("Mul", g.add("DequantizeLinear", q, *parameters, **attributes), np.float32(1000)), [64, 32])
    return g.model("of_scales")


@pytest.mark.parametrize(
    ("shape", "attributes"), [((64,), {"axis": 0}), ((32,), {"axis": -1}), ((64, 4), {"axis": 1, "block_size": 8})]
)
def test_ties_of_many_scales(shape: tuple[int, ...], attributes: dict[str, int]) -> None:
    # That of x[5, 7] is STEP, all others are one of ten beside it.
    scales = np.random.default_rng(4).choice(np.arange(30, 40) * STEP / 32, shape).astype(np.float32)
    scales[{(64,): 5, (32,): 7, (64, 4): (5, 0)}[shape]] = STEP
    moved = [of_scales(scales, before=before, **attributes) for before in (-1e-8, float(STEP) / 200)]
    found = [normfuse.verify(of_scales(scales, **attributes), other, inputs={"x": X}) for other in moved]
    assert [report.passed for report in found] == [True, False]
    assert [run.error for run in found[0].runs] == pytest.approx([1000 * STEP] * 2)
