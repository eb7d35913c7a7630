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
    assert [run.at_ties for run in report.runs] == [1, 1]
    assert [run.quantized_values for run in report.runs] == [X.size, X.size]
    assert all(run.error_with_ties == pytest.approx(1000 * STEP) for run in report.runs)
    (message, _) = report.warnings
    assert "1 of 2,048 quantised values" in message
    assert f"an output is {1000 * STEP:.2g} from the original's" in message
    assert "quantised values it is 0, which" in message


@pytest.mark.parametrize(
    "changed",
    [
        {"before": float(STEP) / 4},  # a quarter of all elements is one step off
        {"before": float(STEP) * 2},  # all of them by two
        {"before": -1e-8, "factor": 1002.0},  # a tie, and an error that has nothing to do with it
        {"before": -1e-8, "step": 0.001},
    ],
)
def test_more_than_ties_is_a_difference(changed: dict[str, float]) -> None:
    report = verify(**changed)
    assert not report.passed
    assert not any(run.at_ties for run in report.runs)


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
    assert report.runs[0].error_with_ties is not None
    assert report.runs[0].error_with_ties > 1
    assert not normfuse.verify(symmetric(), symmetric(low=-1.0000001, step=0.001), inputs=x).passed
    assert not normfuse.verify(symmetric(), symmetric(low=-1.02), inputs=x).passed


def of_pair(*, before: float = 0.0, steps: str = "FakeQuantize scale=s zero_point=z") -> onnx.ModelProto:
    """The same in 16 bits, its pair a node of ours: the integers are nowhere."""
    g = models.GraphBuilder(opset=21)
    moved = g.add("Add", g.input("x", ["n", 32], np.float32), np.float32(before))
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
        ({"before": -1e-8}, True),
        ({"before": float(STEP) / 4}, False),  # a quarter of all elements
        ({"before": float(STEP) * 2}, False),
        ({"before": -1e-8, "steps": "FakeQuantize scale=s zero_point=z; Swish alpha=100"}, False),
    ],
)
def test_a_tie_in_a_node_that_ends_with_a_pair(changed: dict[str, object], passes: bool) -> None:
    report = normfuse.verify(of_pair(steps=""), of_pair(**changed), inputs={"x": X})  # type: ignore[arg-type]
    assert report.passed == passes, report.message
    assert any(run.at_ties for run in report.runs) == passes
