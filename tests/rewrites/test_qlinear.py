"""Models in the QOperator format in sessions, beside tests/corpus/qlinear.txt: options, removal, and exact softmax."""

from __future__ import annotations

from collections.abc import Iterator

import harness
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from corpus_reader import FOLDER, case_of, feeds_of, model_of
from families import TABLE, Family, fill
from onnx import numpy_helper
from spelling import SpellingBuilder

import normfuse
from normfuse.files.model_files import load_model
from normfuse.meaning import Array
from normfuse.sessions import AllowedChanges
from normfuse.sessions.session_model import convert_to_qdq, makes_operators, session_model

pytestmark = pytest.mark.without_vnni

F64 = np.float64
STEP = 0.2071
NETWORK = case_of("qlinear/network-0", FOLDER / "sessions")


def network() -> onnx.ModelProto:
    return NETWORK.build(SpellingBuilder(13))


def unlike(options: onnxruntime.SessionOptions) -> Iterator[onnxruntime.SessionOptions]:
    levels = onnxruntime.GraphOptimizationLevel
    for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC):
        options.graph_optimization_level = level
        yield options
    options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    yield options
    options.add_session_config_entry("session.disable_quant_qdq", "0")
    options.add_session_config_entry("optimization.disable_specified_optimizers", "QDQSelectorActionTransformer")
    yield options


def test_where_the_host_makes_no_operators_of_pairs_they_stay() -> None:
    source = load_model(network())
    assert makes_operators(onnxruntime.SessionOptions())
    count = 0
    for options in unlike(onnxruntime.SessionOptions()):
        assert not makes_operators(options)
        nodes = [node.op_type for node in session_model(source, options, AllowedChanges()).model.graph]
        assert nodes.count("QLinearMatMul") == 2
        count += 1
    assert count == 4


def test_operators_stay_where_products_are_not_to_be_chosen() -> None:
    source = load_model(network())
    made = session_model(source, onnxruntime.SessionOptions(), AllowedChanges(choose_products=False))
    assert [node.op_type for node in made.model.graph].count("QLinearMatMul") == 2


def test_a_model_is_written_once_and_stays_itself() -> None:
    source = load_model(network())
    before = ir.to_proto(source.model)
    made = convert_to_qdq(source)
    assert made is convert_to_qdq(source)
    assert made is not source
    assert ir.to_proto(source.model) == before
    plain = load_model(model_of("Relu(x)"))
    assert convert_to_qdq(plain) is plain


@pytest.mark.parametrize("family", ["noise", "ramp", "outlier"])
def test_its_quantisation_is_removed(family: str) -> None:
    model = network()
    x = feeds_of(model, NETWORK, Family(family))["x"]
    session = normfuse.InferenceSession(model, harness.session_options("cpu"), remove_quantization=True)
    (got,) = session.run(None, {"x": x})
    steps = got / STEP
    assert np.mean(np.abs(steps - np.round(steps)) > 0.01) > 0.1

    def within(value: Array, scale: float) -> Array:
        return np.clip(value, (-128 - 5) * F64(np.float32(scale)), (127 - 5) * F64(np.float32(scale)))

    integers = next(each for each in model.graph.initializer if len(each.dims) == 2)
    weights = numpy_helper.to_array(integers) * F64(np.float32(0.0197))
    x = within(x.astype(F64), 0.0513)
    a = within(within(x @ weights, STEP) + x, STEP)
    expected = within(within(a @ weights, STEP) + a, STEP)
    np.testing.assert_allclose(got, expected, atol=2e-4)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_a_zero_point_that_is_not_there_is_0(kind: str) -> None:
    """ONNX Runtime has no kernel for it, so that tests/corpus/qlinear.txt has no numbers."""
    operands = f"x, float32(0.02), {{zero}}, {kind}.other[8], float32(0.05), {{zero}}, float32(0.03)"
    x, other = (fill(Family("ramp"), np.random.default_rng(3), shape, kind) for shape in ((5, 8), (8,)))
    got = []
    for zero, last in (("''", ""), (f"{kind}(0)", f", {kind}(0)")):
        text = f"microsoft.QLinearAdd({operands.format(zero=zero)}{last})"
        session = normfuse.InferenceSession(model_of(text, x="5,8", x_type=kind, y_type=kind, opset=13))
        got += session.run(None, {"x": x, "other": other})
    np.testing.assert_array_equal(*got)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("dims", "axis"),
    [("2,3,40", -1), ("2,3,40", 2), ("7", 0), ("1,1,1,1", 3), ("0,5", 1), ("2,16,4,30", 1), ("5,3,40", -3)],
)
def test_a_softmax_is_exact_to_a_step_in_one_chain(kind: str, dims: str, axis: int) -> None:
    """More than ONNX Runtime's, whose table has seven bits."""
    shape, info = tuple(map(int, dims.split(","))), np.iinfo(kind)
    text = (
        f"microsoft.QLinearSoftmax(x, float32(0.06), {kind}({info.min + 100}), float32(0.00390625), {kind}({info.min})"
    )
    model = model_of(f"{text}, axis={axis}, opset=13)", x=dims, x_type=kind, y_type=kind, opset=13)
    session = normfuse.InferenceSession(model, harness.session_options("cpu"))
    for family in TABLE:
        x = fill(Family(family), np.random.default_rng(3), shape, kind, [axis])
        (got,) = session.run(None, {"x": x})
        powers = np.exp((x.astype(F64) - (info.min + 100)) * F64(np.float32(0.06)))
        exact = np.clip(powers / powers.sum(axis, keepdims=True) * 256 + info.min, info.min, info.max)
        assert (got.dtype, got.shape) == (np.dtype(kind), shape)
        assert np.all(np.abs(got - exact) <= 0.5 + 1e-4), family
    if shape[0] == 2:
        assert harness.fused_types(session) in ([], [["DequantizeLinear", "QuantizeLinear", "Softmax"]])
