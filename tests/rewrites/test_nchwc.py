"""Chains on the blocked layout of ONNX Runtime's convolutions: the same numbers, and no reorders in between.

Networks are built with their results in float64 beside them. A quantiser may round another way than the exact value
would; one step of the coarsest, seen through what follows, bounds the difference.
"""

from __future__ import annotations

import functools
import math
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path

import harness
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper

import normfuse
from normfuse.files.model_files import load_model
from normfuse.graph_rewrites import Treatment
from normfuse.graph_rewrites.layout.blocked_layout import move_reorders
from normfuse.host.config_entries import disable_optimizer
from normfuse.sessions import layouts as nchwc
from normfuse.sessions.creation import Choices, session_model
from normfuse.sessions.rewriting import rewritten

pytestmark = pytest.mark.skipif(
    nchwc.block_size() is None and platform.machine() not in ("x86_64", "AMD64"),
    reason="ONNX Runtime has no blocked layout on this processor",
)

BATCH, IMAGE, WIDE = 2, 12, 32  # WIDE channels fill blocks on every processor
CLIPPED = "int8 by a Clip"
TYPES = {"uint16": (0, 65535), "uint8": (0, 255), "int8": (-128, 127), CLIPPED: (-50, 50)}
Array = np.ndarray


class Net:
    """A network that is being built: `name` of its last value, `y` what it is in float64."""

    def __init__(self, seed: int, *, stored: str | None = None, static: bool = True, channels: int = 3) -> None:
        self.rng = np.random.default_rng(seed)
        self.stored = stored
        self.static = static
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.x = self.rng.normal(size=(BATCH, channels, IMAGE, IMAGE)).astype(np.float32)
        self.name, self.y = "x", self.x.astype(np.float64)

    def constant(self, value: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, op: str, inputs: list[str], y: Array, *, exact: bool = True, **attributes: object) -> Net:
        """Append a node; its result is quantised where the network is and the node is not `exact`."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"{op}.{len(self.nodes)}", **attributes))
        self.name, self.y = name, y
        return self if exact else self.quantize()

    def quantize(self) -> Net:
        if self.stored is None:
            return self
        low, high = TYPES[self.stored]
        clips, dtype = self.stored == CLIPPED, self.stored.split()[0]
        top = max(float(np.abs(self.y).max()), 0.01) * (0.75 if clips else 1.0)
        scale, zero = np.float32(2 * top / (high - low)), round((low + high) / 2)
        parameters = [self.constant(scale), self.constant(np.array(zero, dtype))]
        steps = np.clip(np.round(self.y / np.float64(scale)) + zero, low, high)
        x, y = self.name, (steps - zero) * np.float64(scale)
        self.add("QuantizeLinear", [x, *parameters], y)
        if clips:
            self.add("Clip", [self.name, *(self.constant(np.array(end, dtype)) for end in (low, high))], y)
        return self.add("DequantizeLinear", [self.name, *parameters], y)

    def conv(self, channels: int, kernel: int = 1, stride: int = 1) -> Net:
        inside = self.y.shape[1]
        weights = (self.rng.normal(size=(channels, inside, kernel, kernel)) / np.sqrt(inside * kernel**2)).astype("f")
        bias = self.rng.normal(size=channels).astype(np.float32) / 4
        pad = kernel // 2
        padded = np.pad(self.y, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        windows = sliding_window_view(padded, (kernel, kernel), axis=(2, 3))[:, :, ::stride, ::stride]
        y = np.einsum("nchwij,ocij->nohw", windows, weights.astype(np.float64)) + bias[:, None, None]
        inputs = [self.name, self.constant(weights), self.constant(bias)]
        return self.add("Conv", inputs, y, exact=False, kernel_shape=[kernel] * 2, pads=[pad] * 4, strides=[stride] * 2)

    def relu(self) -> Net:
        return self.add("Relu", [self.name], np.maximum(self.y, 0), exact=False)

    def gelu(self) -> Net:
        erf = np.vectorize(math.erf)
        x, value = self.name, self.y
        self.add("Div", [x, self.constant(np.float32(np.sqrt(2)))], value / np.sqrt(2))
        self.add("Erf", [self.name], erf(self.y))
        self.add("Add", [self.name, self.constant(np.float32(1))], self.y + 1)
        self.add("Mul", [x, self.name], self.y * value)
        return self.add("Mul", [self.name, self.constant(np.float32(0.5))], self.y / 2, exact=False)

    def silu(self) -> Net:
        x, value = self.name, self.y
        self.add("Sigmoid", [x], 1 / (1 + np.exp(-value)), exact=False)
        return self.add("Mul", [x, self.name], value * self.y, exact=False)

    def hard_swish(self) -> Net:
        x, value = self.name, self.y
        self.add("Add", [x, self.constant(np.float32(3))], value + 3)
        bounds = [self.constant(np.float32(0)), self.constant(np.float32(6))]
        self.add("Clip", [self.name, *bounds], np.clip(self.y, 0, 6), exact=False)
        self.add("Mul", [x, self.name], value * self.y, exact=False)
        return self.add("Div", [self.name, self.constant(np.float32(6))], self.y / 6, exact=False)

    def residual(self) -> Net:
        x, value = self.name, self.y
        self.conv(value.shape[1], 3)
        return self.add("Add", [x, self.name], value + self.y, exact=False)

    def gate(self) -> Net:
        x, value = self.name, self.y
        channels = value.shape[1]
        mean = value.mean((2, 3), keepdims=True)
        if channels % 3:
            self.add("GlobalAveragePool", [x], mean, exact=False)
        else:
            self.add("ReduceMean", [x, self.constant(np.array([2, 3]))], mean, exact=False, keepdims=1)
        self.conv(max(channels // 4, 2)).relu().conv(channels)
        self.add("HardSigmoid", [self.name], np.clip(0.2 * self.y + 0.5, 0, 1), exact=False)
        return self.add("Mul", [x, self.name], value * self.y, exact=False)

    def scale(self) -> Net:
        factor = self.rng.uniform(0.5, 1.5, (self.y.shape[1], 1, 1)).astype(np.float32)
        return self.add("Mul", [self.name, self.constant(factor)], self.y * factor, exact=False)

    def concat(self) -> Net:
        x, value = self.name, self.y
        self.conv(WIDE)
        return self.add("Concat", [x, self.name], np.concatenate([value, self.y], 1), exact=False, axis=1)

    def split(self) -> Net:
        """Send one half through a convolution, and put all parts together: the C2f block of YOLOv8."""
        value, half = self.y, self.y.shape[1] // 2
        names = [f"v{len(self.nodes)}.{part}" for part in range(2)]
        sizes = self.constant(np.array([half, value.shape[1] - half]))
        self.nodes.append(helper.make_node("Split", [self.name, sizes], names, f"Split.{len(self.nodes)}", axis=1))
        self.name, self.y = names[1], value[:, half:]
        self.conv(half, 3).silu()
        every = np.concatenate([value, self.y], 1)
        return self.add("Concat", [*names, self.name], every, exact=False, axis=1)

    def resize(self) -> Net:
        y = self.y.repeat(2, 2).repeat(2, 3)
        way = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.add("Resize", [self.name, "", self.constant(np.float32([1, 1, 2, 2]))], y, exact=False, **way)

    def max_pool(self) -> Net:
        y = sliding_window_view(self.y, (2, 2), axis=(2, 3))[:, :, ::2, ::2].max((-1, -2))
        return self.add("MaxPool", [self.name], y, exact=False, kernel_shape=[2, 2], strides=[2, 2])

    def exit(self) -> Net:
        """Give the value to a reader without blocks as well: a Transpose, of which the mean is added in the end."""
        x, value = self.name, self.y
        self.add("Transpose", [x], value.transpose(0, 2, 3, 1), perm=[0, 2, 3, 1])
        self.add("ReduceMean", [self.name], self.y.mean(keepdims=True), keepdims=1)
        return self.add("Add", [x, self.name], value + self.y)

    def proto(self) -> onnx.ModelProto:
        side = [IMAGE, IMAGE] if self.static else ["h", "w"]
        dims = [BATCH if self.static else "n", self.x.shape[1], *side]
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
            [helper.make_tensor_value_info(self.name, TensorProto.FLOAT, None)],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=harness.IR_VERSION)


STEPS: dict[str, Callable[[Net], Net]] = {
    "relu": Net.relu,
    "gelu": Net.gelu,
    "silu": Net.silu,
    "hard_swish": Net.hard_swish,
    "residual": Net.residual,
    "gate": Net.gate,
    "scale": Net.scale,
    "concat": Net.concat,
    "max_pool": Net.max_pool,
    "split": Net.split,
    "resize": Net.resize,
    "exit": Net.exit,
    "conv": lambda net: net.conv(WIDE, 3),
    "strided": lambda net: net.conv(WIDE, 3, 2),
    "odd": lambda net: net.conv(WIDE - 4, 3),
}


def net_of(steps: list[str], seed: int = 0, *, stored: str | None = None, static: bool = True) -> Net:
    net = Net(seed, stored=stored, static=static).conv(WIDE, 3)
    for step in steps:
        size = net.y.shape[2]
        if (step in ("max_pool", "strided") and size < 4) or (step == "resize" and size > 2 * IMAGE):
            continue
        net = STEPS[step](net)
    return net.conv(WIDE)


def options_of() -> onnxruntime.SessionOptions:
    """Without what ONNX Runtime does to float weights between quantised tensors: it rounds them to 8 bits."""
    options = harness.session_options("cpu")
    disable_optimizer(options, "WeightBiasQuantization")
    return options


@functools.cache
def block() -> int:
    size = nchwc.block_size()
    assert size is not None
    return size


def moved(net: Net) -> ir.Model | None:
    result = rewritten(load_model(net.proto()), "custom-op", Treatment(fold_weights="session"))
    return nchwc.blocked(result.model, options_of())


def reorders(model: ir.Model) -> int:
    return sum(node.op_type in ("ReorderInput", "ReorderOutput") for node in model.graph)


def tolerance(net: Net) -> float:
    """Of quantised networks some steps: what one of them moved, moves others."""
    steps = 0 if net.stored is None else 8 / (TYPES[net.stored][1] - TYPES[net.stored][0])
    return max(1.0, float(np.abs(net.y).max())) * (2e-5 + steps)


def assert_right(net: Net, got: Array) -> None:
    assert got.shape == net.y.shape
    np.testing.assert_allclose(got, net.y, rtol=0, atol=tolerance(net))


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    stored=st.sampled_from([None, *TYPES]),
    static=st.booleans(),
    seed=st.integers(0, 999),
)
@pytest.mark.every_isa
def test_sessions_compute_the_same(steps: list[str], stored: str | None, static: bool, seed: int) -> None:
    if "exit" in steps and stored in ("int8", CLIPPED):
        stored = "uint8"  # ONNX Runtime 1.32 does not load the Transpose of int8: it makes uint8 of one pair around it
    net = net_of(steps, seed, stored=stored, static=static)
    session = normfuse.InferenceSession(net.proto(), options_of())
    (got,) = session.run(None, {"x": net.x})
    assert_right(net, got)
    plain = normfuse.InferenceSession(net.proto(), options_of(), blocked_layout=False)
    (other,) = plain.run(None, {"x": net.x})
    np.testing.assert_allclose(got, other, rtol=0, atol=tolerance(net))


@pytest.mark.parametrize("stored", ["uint16", CLIPPED])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    "steps",
    [
        ["hard_swish"],
        ["silu", "conv"],
        ["residual"],
        ["gate"],
        ["scale"],
        ["concat"],
        ["max_pool"],
        ["silu", "split"],
        ["silu", "resize", "conv"],
        ["residual", "resize", "concat", "split", "split"],
        ["strided", "silu"],
    ],
    ids="-".join,
)
def test_no_reorder_is_left_among_quantised(steps: list[str], static: bool, stored: str) -> None:
    net = net_of(steps, stored=stored, static=static)
    model = moved(net)
    assert model is not None
    # One for the network's result; the first convolution, of three channels, reads its input without blocks. The
    # product inside of a gate has too few channels for a block.
    assert reorders(model) <= (3 if "gate" in steps else 1)


def test_onnx_runtime_alone_computes_the_same_on_the_moved_model() -> None:
    steps = ["hard_swish", "residual", "exit", "gate", "odd", "silu", "conv", "concat", "max_pool", "scale"]
    steps += ["split", "resize"]
    net = net_of(steps, stored="uint16")
    model = moved(net)
    assert model is not None
    options = options_of()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.register_custom_ops_library(normfuse.get_library_path())
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    (got,) = session.run(None, {"x": net.x})
    assert_right(net, got)


def test_the_numbers_of_pairs_are_those_of_the_model_that_reorders() -> None:
    """What rounds and does not sum gives the same bits in any layout."""
    net = net_of(["relu", "hard_swish", "residual", "strided", "hard_swish"], stored="uint16")
    (got,) = normfuse.InferenceSession(net.proto(), options_of()).run(None, {"x": net.x})
    (other,) = normfuse.InferenceSession(net.proto(), options_of(), blocked_layout=False).run(None, {"x": net.x})
    np.testing.assert_array_equal(got, other)


def test_padding_that_may_not_stay_finite_is_left_alone() -> None:
    """With channels that fill no block, 0 / 0 = NaN in the padding would reach every sum."""
    net = Net(3, stored="uint16").conv(WIDE, 3).conv(WIDE - 4)
    x, value = net.name, net.y
    assert np.all(value)
    net.add("Abs", [x], np.abs(value))
    net.add("Add", [net.name, net.constant(np.float32(0))], net.y)
    net.add("Div", [x, net.name], np.sign(value))
    net.conv(WIDE)
    (got,) = normfuse.InferenceSession(net.proto(), options_of()).run(None, {"x": net.x})
    assert_right(net, got)


def test_a_gate_whose_integers_are_read_without_blocks_as_well() -> None:
    """The QuantizeLinear runs twice: on the view with the gate's product, and for the Cast."""
    net = Net(5, stored="uint16").conv(WIDE, 3)
    x, value = net.name, net.y
    net.add("GlobalAveragePool", [x], value.mean((2, 3), keepdims=True), exact=False)
    gate, factor = net.name, net.y
    scale, zero = (numpy_helper.to_array(constant).astype(np.float64) for constant in net.constants[-2:])
    net.add("Cast", [net.nodes[-1].input[0]], factor / scale + zero, to=TensorProto.FLOAT)
    net.add("Mul", [net.name, net.constant(np.float32(2**-16))], net.y * 2**-16)
    integers, summand = net.name, net.y
    net.add("Mul", [x, gate], value * factor, exact=False).conv(WIDE)
    net.add("Add", [net.name, integers], net.y + summand)
    model = moved(net)
    assert model is not None
    assert sum(node.op_type == "Reshape" for node in model.graph) > 0
    (got,) = normfuse.InferenceSession(net.proto(), options_of()).run(None, {"x": net.x})
    assert_right(net, got)


def test_a_session_without_a_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    net = net_of(["silu"], stored="uint16")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    (got,) = normfuse.InferenceSession(net.proto(), options_of()).run(None, {"x": net.x})
    assert_right(net, got)


def test_blocks_of_a_quantisation_that_are_the_whole_tensor() -> None:
    """Their scale [1, 1, 1, 1] is one number, and does not fit the view that the factors want."""
    net = Net(4, stored="uint16")
    net.x = net.x[:1, :, :1, :1]
    net.y = net.x.astype(np.float64)
    net.conv(WIDE).scale().conv(WIDE)
    model = net.proto()
    for constant in model.graph.initializer:
        if not constant.dims:
            constant.dims.extend([1, 1, 1, 1])
    for node in model.graph.node:
        if "quantize" in node.op_type.lower():
            blocks = {"axis": 1, "block_size": WIDE}
            node.attribute.extend(helper.make_attribute(name, number) for name, number in blocks.items())
    del model.graph.input[0].type.tensor_type.shape.dim[:]
    for size in net.x.shape:
        model.graph.input[0].type.tensor_type.shape.dim.add().dim_value = size
    (got,) = normfuse.InferenceSession(model, options_of()).run(None, {"x": net.x})
    assert_right(net, got)


def test_an_empty_batch() -> None:
    net = net_of(["gate", "hard_swish"], stored="uint16", static=False)
    session = normfuse.InferenceSession(net.proto(), options_of())
    (got,) = session.run(None, {"x": net.x[:0]})
    assert got.shape == (0, *net.y.shape[1:])


def test_another_image_size_than_the_first() -> None:
    net = net_of(["gate", "silu"], stored="uint16", static=False)
    session = normfuse.InferenceSession(net.proto(), options_of())
    x = np.random.default_rng(1).normal(size=(3, 3, 9, 17)).astype(np.float32)
    (got,) = session.run(None, {"x": x})
    (other,) = harness.create_session(net.proto(), "cpu", options_of()).run(None, {"x": x})
    np.testing.assert_allclose(got, other, rtol=0, atol=tolerance(net))


def test_float_networks_whose_activations_stay_inside_of_convolutions_are_left_alone() -> None:
    assert moved(net_of(["relu", "residual"])) is None


def test_networks_with_products_of_integers_are_left_alone() -> None:
    net = net_of(["silu"], stored="uint8")
    assert moved(net) is not None
    weights = np.random.default_rng(0).integers(-64, 65, (WIDE, WIDE, 1, 1), np.int8)
    scale = np.float32(1 / 256)
    x, value = net.name, net.y
    net.add("DequantizeLinear", [net.constant(weights), net.constant(scale), net.constant(np.int8(0))], weights * scale)
    y = np.einsum("nchw,oc->nohw", value, weights[:, :, 0, 0] * np.float64(scale))
    net.add("Conv", [x, net.name], y, exact=False)
    assert moved(net) is None


def test_a_constant_between_pairs_is_no_product_of_integers() -> None:
    """As the grid of a detector's places, whose QuantizeLinear ONNX Runtime folds."""
    net = net_of(["silu", "conv"], stored="uint16")
    x, value = net.name, net.y
    ends = [net.constant(np.float32(end)) for end in (0, IMAGE, 1)]
    net.add("Range", ends, np.arange(IMAGE, dtype=np.float64), exact=False)
    net.add("Add", [x, net.name], value + net.y, exact=False)
    assert moved(net) is not None
    assert_right(net, normfuse.InferenceSession(net.proto(), options_of()).run(None, {"x": net.x})[0])


def test_a_chain_of_floats_is_moved() -> None:
    model = moved(net_of(["gelu", "conv"]))
    assert model is not None
    assert reorders(model) <= 1
    assert "FusedActivation" in {node.op_type for node in model.graph}


def test_options_are_given_back() -> None:
    """The same options serve a network that may leave its pairs and one whose products run in integers."""
    options = normfuse.session_options(options_of())  # with providers, and so not copied
    pairs, products = net_of(["silu"], stored="uint16"), net_of(["silu"])
    normfuse.InferenceSession(pairs.proto(), options)
    assert options.get_session_config_entry("session.disable_quant_qdq") == "1"
    session = normfuse.InferenceSession(products.proto(), options)
    assert options.get_session_config_entry("session.disable_quant_qdq") == "0"
    assert_right(products, session.run(None, {"x": products.x})[0])


def test_what_the_user_asks_of_optimisations_holds() -> None:
    source = load_model(net_of(["silu"], stored="uint16").proto())
    options = options_of()
    assert session_model(source, options, Choices()).layout == "blocked"
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert session_model(source, options, Choices()).layout == "as given"


def test_a_graph_without_reorders_stays() -> None:
    model = load_model(net_of(["relu"]).proto()).model.clone()
    before = ir.to_proto(model).SerializeToString()
    assert move_reorders(model, block()) == 0
    assert ir.to_proto(model).SerializeToString() == before


def test_equal_splits_into_other_numbers_of_parts_stay_apart() -> None:
    """Before opset 18 two nodes say by their outputs alone how many equal parts they make."""
    net = Net(5).conv(WIDE).gelu()
    x, value = net.name, net.y
    for count in (2, 4):
        names = [f"parts.{count}.{part}" for part in range(count)]
        net.nodes.append(helper.make_node("Split", [x], names, f"Split.{count}", axis=1))
        net.y = np.concatenate([net.y, value], 1)
    names = [x, *(name for node in net.nodes[-2:] for name in node.output)]
    net.add("Concat", names, net.y, axis=1).conv(WIDE)
    proto = net.proto()
    proto.opset_import[0].version = 17
    options = options_of()
    disable_optimizer(options, "CommonSubexpressionElimination")  # of ONNX Runtime, which takes one for the other
    (got,) = normfuse.InferenceSession(proto, options).run(None, {"x": net.x})
    assert_right(net, got)


def test_a_part_of_no_channels_stays_without_blocks(recwarn: pytest.WarningsRecorder) -> None:
    net = Net(6, stored="uint16").conv(WIDE, 3).silu()
    x, value = net.name, net.y
    net.nodes.append(helper.make_node("Split", [x, net.constant(np.array([WIDE, 0]))], ["all", "none"], axis=1))
    net.name = "all"
    net.conv(WIDE)
    proto = net.proto()
    proto.graph.output.append(helper.make_tensor_value_info("none", TensorProto.FLOAT, None))
    got, none = normfuse.InferenceSession(proto, options_of()).run(None, {"x": net.x})
    assert_right(net, got)
    assert none.shape == (*value.shape[:1], 0, *value.shape[2:])
    assert not recwarn.list  # the session is on the model as it was prepared
