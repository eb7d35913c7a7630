"""Chains on the blocked layout of ONNX Runtime's convolutions: the same numbers, and no reorders in between.

Networks are written as formulas (tests/corpus_reader.py) and compared with what ONNX Runtime gives for them without any
optimisation. A quantiser may round another way than there; some steps of it, seen through what follows, are the bound.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from corpus_reader import model_of
from families import Family, fill
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed_models import results

import normfuse
from normfuse.files.model_files import load_model
from normfuse.graph_rewrites import RewriteOptions
from normfuse.graph_rewrites.layout.blocked_layout import move_reorders
from normfuse.host.config_entries import disable_optimizer
from normfuse.meaning import Array
from normfuse.sessions import AllowedChanges
from normfuse.sessions import layouts as nchwc
from normfuse.sessions.rewriting import rewrite_copy
from normfuse.sessions.session_model import session_model

pytestmark = pytest.mark.skipif(
    nchwc.block_size() is None and platform.machine() not in ("x86_64", "AMD64"),
    reason="ONNX Runtime has no blocked layout on this processor",
)

WIDE = 32  # channels that fill blocks on every processor
CLIPPED = "int8 by a Clip"
#: How tensors are stored between the nodes of a network, and a step of that.
STORED = {
    "float": ("x", 0.0),
    "uint16": (
        "DequantizeLinear(QuantizeLinear(x, float32(2.5e-4), uint16(32768)), float32(2.5e-4), uint16(32768))",
        2.5e-4,
    ),
    "uint8": ("DequantizeLinear(QuantizeLinear(x, float32(0.06), uint8(128)), float32(0.06), uint8(128))", 0.06),
    "int8": ("DequantizeLinear(QuantizeLinear(x, float32(0.06), int8(0)), float32(0.06), int8(0))", 0.06),
    CLIPPED: (
        "DequantizeLinear(Clip(QuantizeLinear(x, float32(0.1), int8(0)), int8(-50), int8(50)), float32(0.1), int8(0))",
        0.1,
    ),
}


def conv(x: str, inside: int, outside: int, kernel: int = 1, stride: int = 1) -> str:
    weights = f"float32(normal({(inside * kernel**2) ** -0.5}, [{outside}, {inside}, {kernel}, {kernel}]))"
    how = f"pads={[kernel // 2] * 4}, strides={[stride] * 2}"
    return f"Q(Conv({x}, {weights}, float32(normal(0.25, [{outside}])), {how}))"


def gate(c: int) -> str:
    mean = "GlobalAveragePool(y)" if c % 3 else "ReduceMean(y, [2, 3])"
    inner = conv(f"Q(Relu({conv(f'Q({mean})', c, max(c // 4, 2))}))", max(c // 4, 2), c)
    return f"Q(y * Q(HardSigmoid({inner})))"


def split(c: int) -> str:
    """One half through a convolution, and all parts together: the C2f block of YOLOv8."""
    half = c // 2
    parts = f"a, b = Split(y, [{half}, {c - half}], axis=1); d = {conv('b', c - half, half, 3)}"
    return f"{parts}; Q(Concat(a, b, Q(d * Q(Sigmoid(d))), axis=1))"


NEAREST = "mode='nearest', coordinate_transformation_mode='asymmetric', nearest_mode='floor'"
#: What becomes of y, of so many channels, and how many it has then.
STEPS: dict[str, Callable[[int], tuple[str, int]]] = {
    "relu": lambda c: ("Q(Relu(y))", c),
    "gelu": lambda c: ("Q(y * (Erf(y / 1.4142135) + 1.0) * 0.5)", c),
    "silu": lambda c: ("Q(y * Q(Sigmoid(y)))", c),
    "hard_swish": lambda c: ("Q(Q(y * Q(Clip(y + 3.0, 0.0, 6.0))) / 6.0)", c),
    "residual": lambda c: (f"Q(y + {conv('y', c, c, 3)})", c),
    "gate": lambda c: (gate(c), c),
    "scale": lambda c: (f"Q(y * scale[{c}, 1, 1])", c),
    "concat": lambda c: (f"Q(Concat(y, {conv('y', c, WIDE)}, axis=1))", c + WIDE),
    "max_pool": lambda c: ("Q(MaxPool(y, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1))", c),
    "split": lambda c: (split(c), c + c // 2),
    "resize": lambda c: (f"Q(Resize(y, '', float32([1, 1, 2, 2]), {NEAREST}))", c),
    # for a reader without blocks as well: a Transpose, of which the mean is added
    "exit": lambda c: ("y + ReduceMean(Transpose(y, perm=[0, 2, 3, 1]), keepdims=1)", c),
    "conv": lambda c: (conv("y", c, WIDE, 3), WIDE),
    "strided": lambda c: (conv("y", c, WIDE, 3, 2), WIDE),
    "odd": lambda c: (conv("y", c, WIDE - 4, 3), WIDE - 4),
}
BATCH, DYNAMIC = "2,3,12,12", "n:2,3,h:12,w:12"


def net_of(steps: Sequence[str], stored: str = "uint16", *, static: bool = True, end: str = "") -> onnx.ModelProto:
    """The network of steps between two convolutions, or with another formula of y at its end."""
    lines, channels = [f"y = {conv('x', 3, WIDE, 3)}"], WIDE
    for step in steps:
        text, channels = STEPS[step](channels)
        *before, last = text.split("; ")
        lines += [*before, f"y = {last}"]
    lines.append(end or conv("y", channels, WIDE))
    shape: dict[str, Any] = {"x": BATCH} if static else {"x": DYNAMIC, "dynamic": ""}
    return model_of("; ".join(lines), f"let Q(x) = {STORED[stored][0]}", opset=21, untyped="", **shape)


def options_of() -> onnxruntime.SessionOptions:
    """Without what ONNX Runtime does to float weights between quantised tensors: it rounds them to 8 bits."""
    options = harness.session_options("cpu")
    disable_optimizer(options, "WeightBiasQuantization")
    return options


def moved(model: onnx.ModelProto) -> ir.Model | None:
    result = rewrite_copy(load_model(model), RewriteOptions("custom-op", fold_weights="session"))
    return nchwc.lay_out_in_blocks(result.model, options_of())


def reorders(model: ir.Model) -> int:
    return sum(node.op_type in ("ReorderInput", "ReorderOutput") for node in model.graph)


def data(family: str = "noise", shape: Sequence[int] = (2, 3, 12, 12)) -> Array:
    return fill(Family(family), np.random.default_rng(0), shape, np.float32, deviation=1)


def assert_right(model: onnx.ModelProto, got: Array, x: Array, stored: str = "uint16") -> Array:
    """Of quantised networks some steps: what one of them moved, moves others."""
    (exact,) = results(model, {"x": x}).values()
    assert got.shape == exact.shape
    bound = 2e-5 * max(1.0, float(np.abs(exact).max(initial=0.0))) + 8 * STORED[stored][1]
    np.testing.assert_allclose(got, exact, rtol=0, atol=bound)
    return exact


def check(model: onnx.ModelProto, stored: str = "uint16", x: Array | None = None, **chosen: bool) -> Array:
    """That a session gives the numbers; returns them."""
    x = data() if x is None else x
    (got,) = normfuse.InferenceSession(model, options_of(), **chosen).run(None, {"x": x})
    assert_right(model, got, x, stored)
    return np.asarray(got)


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    stored=st.sampled_from(sorted(STORED)),
    static=st.booleans(),
    family=st.sampled_from(["noise", "ramp", "smooth", "outlier", "zeros behind", "step"]),
)
@pytest.mark.every_isa
def test_sessions_compute_the_same(steps: list[str], stored: str, static: bool, family: str) -> None:
    if "exit" in steps and stored in ("int8", CLIPPED):
        stored = "uint8"  # ONNX Runtime 1.32 does not load the Transpose of int8: it makes uint8 of one pair around it
    if steps.count("resize") > 2:
        steps = [step for step in steps if step != "resize"]
    model = net_of(steps, stored, static=static)
    check(model, stored, data(family))
    check(model, stored, data(family), blocked_layout=False)


@pytest.mark.parametrize("stored", ["uint16", CLIPPED])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    "steps",
    [
        *(
            "hard_swish",
            "silu conv",
            "residual",
            "gate",
            "scale",
            "concat",
            "max_pool",
            "silu split",
            "silu resize conv",
        ),
        *("residual resize concat split split", "strided silu"),
    ],
)
def test_no_reorder_is_left_among_quantised(steps: str, static: bool, stored: str) -> None:
    model = moved(net_of(steps.split(), stored, static=static))
    assert model is not None
    # One for the network's result; the first convolution, of three channels, reads its input without blocks. The
    # product inside of a gate has too few channels for a block.
    assert reorders(model) <= (3 if "gate" in steps else 1)


def test_onnx_runtime_alone_computes_the_same_on_the_moved_model() -> None:
    steps = "hard_swish residual exit gate odd silu conv concat max_pool scale split resize"
    model = net_of(steps.split())
    made = moved(model)
    assert made is not None
    options = options_of()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.register_custom_ops_library(normfuse.get_library_path())
    (got,) = onnxruntime.InferenceSession(ir.to_proto(made).SerializeToString(), options).run(None, {"x": data()})
    assert_right(model, got, data())


def test_the_numbers_of_pairs_are_those_of_the_model_that_reorders() -> None:
    """What rounds and does not sum gives the same bits in any layout."""
    model = net_of(["relu", "hard_swish", "residual", "strided", "hard_swish"])
    np.testing.assert_array_equal(check(model), check(model, blocked_layout=False))


#: What is at the end of a network of one convolution.
ENDS = {
    # with channels that fill no block, 0 / 0 = NaN in the padding would reach every sum
    "padding that may not be finite": f"o = {conv('y', WIDE, WIDE - 4)}; {conv('o / (Abs(o) + 0.0)', WIDE - 4, WIDE)}",
    # the QuantizeLinear runs twice: on the view with the gate's product, and for the Cast
    "a gate whose integers are read without blocks": "s = float32(2.5e-4); z = uint16(32768); "
    "q = QuantizeLinear(GlobalAveragePool(y), s, z); g = DequantizeLinear(q, s, z); "
    f"{conv('Q(y * g)', WIDE, WIDE)} + Cast(q, to=FLOAT) * 1.52587890625e-05",
    # as the grid of a detector's places, whose QuantizeLinear ONNX Runtime folds: no product of integers
    "a constant between pairs": f"s = Q(y * Q(Sigmoid(y))); {conv('s', WIDE, WIDE)} + Q(Range(0.0, 12.0, 1.0))",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_ends(end: str) -> None:
    model = net_of([], end=end)
    check(model)
    made = moved(model)
    assert made is not None
    assert ("Reshape" in {node.op_type for node in made.graph}) == ("GlobalAveragePool" in end)


def test_a_session_without_a_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    check(net_of(["silu"]))


def test_blocks_of_a_quantisation_that_are_the_whole_tensor() -> None:
    """Their scale [1, 1, 1, 1] is one number, and does not fit the view that the factors want."""
    model = model_of(
        f"y = {conv('x', 3, WIDE)}; y = Q(y * scale[{WIDE}, 1, 1]); {conv('y', WIDE, WIDE)}",
        "let Q(x) = s = float32([[[[2.5e-4]]]]); z = uint16([[[[32768]]]]); "
        f"q = QuantizeLinear(x, s, z, axis=1, block_size={WIDE}); DequantizeLinear(q, s, z, axis=1, block_size={WIDE})",
        x="1,3,1,1",
        opset=21,
    )
    check(model, x=data(shape=(1, 3, 1, 1)))


@pytest.mark.parametrize("shape", [(0, 3, 12, 12), (3, 3, 9, 17)])
def test_another_size_than_the_first(shape: tuple[int, ...]) -> None:
    model = net_of(["gate", "silu", "hard_swish"], static=False)
    session = normfuse.InferenceSession(model, options_of())
    for x in (data(), data(shape=shape)):
        (got,) = session.run(None, {"x": x})
        assert_right(model, got, x) if x.size else np.testing.assert_equal(got.shape, (0, WIDE, 12, 12))


def test_networks_that_are_left_alone() -> None:
    """Floats whose activations stay inside of convolutions, and those with products of integers."""
    assert moved(net_of(["relu", "residual"], "float")) is None
    assert moved(net_of(["silu"], "uint8")) is not None
    weights = f"DequantizeLinear(int8.weight[{WIDE}, {WIDE}, 1, 1], float32(0.004), int8(0))"
    assert moved(net_of(["silu"], "uint8", end=f"Q(Conv(y, {weights}))")) is None


def test_a_chain_of_floats_is_moved() -> None:
    model = moved(net_of(["gelu", "conv"], "float"))
    assert model is not None
    assert reorders(model) <= 1
    assert "FusedActivation" in {node.op_type for node in model.graph}


def test_options_are_given_back() -> None:
    """The same options serve a network that may leave its pairs and one whose products run in integers."""
    options = normfuse.session_options(options_of())  # with providers, and so not copied
    normfuse.InferenceSession(net_of(["silu"]), options)
    assert options.get_session_config_entry("session.disable_quant_qdq") == "1"
    products = net_of(["silu"], "float")
    session = normfuse.InferenceSession(products, options)
    assert options.get_session_config_entry("session.disable_quant_qdq") == "0"
    assert_right(products, session.run(None, {"x": data()})[0], data(), "float")


def test_what_the_user_asks_of_optimisations_holds() -> None:
    source, options = load_model(net_of(["silu"])), options_of()
    assert session_model(source, options, AllowedChanges()).layout == "blocked"
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert session_model(source, options, AllowedChanges()).layout == "as given"


def test_a_graph_without_reorders_stays() -> None:
    model = load_model(net_of(["relu"], "float")).model.clone()
    before = ir.to_proto(model).SerializeToString()
    assert move_reorders(model.graph, nchwc.block_size() or 8) == 0
    assert ir.to_proto(model).SerializeToString() == before


def test_equal_splits_into_other_numbers_of_parts_stay_apart() -> None:
    """Before opset 18 two nodes say by their outputs alone how many equal parts they make."""
    model = model_of(
        f"y = {conv('x', 3, WIDE)}; g = {STEPS['gelu'](WIDE)[0]}; a, b = Split(g, axis=1); "
        f"c, d, e, f = Split(g, axis=1); {conv('Concat(g, a, b, c, d, e, f, axis=1)', 3 * WIDE, WIDE)}",
        "let Q(x) = x",
        x=BATCH,
    )
    options = options_of()
    disable_optimizer(options, "CommonSubexpressionElimination")  # of ONNX Runtime, which takes one for the other
    (got,) = normfuse.InferenceSession(model, options).run(None, {"x": data()})
    assert_right(model, got, data(), "float")


def test_a_part_of_no_channels_stays_without_blocks(recwarn: pytest.WarningsRecorder) -> None:
    model = net_of(["silu"], end=f"a, b = Split(y, [{WIDE}, 0], axis=1); output(b); {conv('a', WIDE, WIDE)}")
    got, none = normfuse.InferenceSession(model, options_of()).run(None, {"x": data()})
    exact, _ = results(model, {"x": data()}).values()
    np.testing.assert_allclose(got, exact, atol=8 * STORED["uint16"][1])
    assert none.shape == (2, 0, 12, 12)
    assert not recwarn.list  # the session is on the model as it was prepared
