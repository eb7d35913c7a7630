"""Small networks in QDQ form as quantisers other than onnxruntime's write them.

A convolution network and a transformer, drawn with a fixed seed, are run once in float for the ranges of their tensors,
and then written in the manner of

* ``tensorrt`` (TensorRT's toolkits for quantisation-aware training): symmetric int8, pairs only where a product reads a
  tensor, for each reader its own; biases in float;
* ``qcdq`` (Brevitas): QuantizeLinear -> Clip -> DequantizeLinear of activations and weights, to -127 ... 127; biases in
  float;
* ``tflite`` (LiteRT's converters): int8 with a zero point and one pair behind everything; biases are int32;
* ``blocks``: weights of 4 bits with a scale for each block of 32 rows, activations in float.

Weights are at most 64, so that sums of uint8 x int8 do not saturate on a processor without VNNI.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import families
import harness
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from families import Family
from onnx import TensorProto, helper, numpy_helper

from normfuse.meaning import Array
from normfuse.models import GraphBuilder
from normfuse.models.spellings import layer_norm

F32 = np.float32
PRODUCTS = ("Conv", "Gemm", "MatMul")
BLOCK = 32
LARGEST_WEIGHT = 64
OPSET_OF_BLOCKS = 21
CHANNELS, HIDDEN, HEADS, TOKENS = 32, 128, 4, 64


class Builder(GraphBuilder):
    """A float network, node by node."""

    def __init__(self, opset: int, *shape: int) -> None:
        super().__init__(opset)
        self.generator = np.random.default_rng(3)
        self.input("x", shape)

    def weights(self, *shape: int) -> Array:
        return (self.generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(F32)

    def conv(self, x: str, channels: int, kernel: int, *, inputs: int = CHANNELS, **attributes: object) -> str:
        groups = int(str(attributes.get("group", 1)))
        weights, bias = self.weights(channels, inputs // groups, kernel, kernel), 0.1 * self.weights(channels, 1)[:, 0]
        return self.add("Conv", x, weights, bias, pads=[kernel // 2] * 4, **attributes)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        product = self.add("MatMul", x, np.ascontiguousarray(self.weights(outputs, inputs).T))
        return self.add("Add", product, 0.1 * self.weights(outputs, 1)[:, 0])

    def ending(self, y: str, *shape: int) -> onnx.ModelProto:
        self.output(y, shape)
        return self.model("network")


def convolutions(opset: int) -> onnx.ModelProto:
    """Residual blocks, SiLU, a depthwise convolution with HardSwish, squeeze and excitation, and a Gemm."""
    b = Builder(opset, 1, 3, 96, 96)
    x = b.add("Relu", b.conv("x", CHANNELS, 3, inputs=3, strides=[2, 2]))
    for _ in range(2):
        inner = b.add("Relu", b.conv(x, CHANNELS, 3))
        x = b.add("Relu", b.add("Add", b.conv(inner, CHANNELS, 3), x))
    inner = b.conv(x, CHANNELS, 1)
    x = b.add("Mul", inner, b.add("Sigmoid", inner))
    inner = b.conv(x, CHANNELS, 3, group=CHANNELS)
    x = b.add("Mul", inner, b.add("HardSigmoid", inner, alpha=1 / 6, beta=0.5))
    gate = b.add("Relu", b.conv(b.add("GlobalAveragePool", x), 8, 1))
    x = b.add("Mul", x, b.add("Sigmoid", b.conv(gate, CHANNELS, 1, inputs=8)))
    flat = b.add("Flatten", b.add("GlobalAveragePool", x))
    y = b.add("Gemm", flat, b.weights(40, CHANNELS), 0.1 * b.weights(40, 1)[:, 0], transB=1)
    return b.ending(y, 1, 40)


def transformer(opset: int) -> onnx.ModelProto:
    """Two layers of an encoder that normalises behind its sums; LayerNormalization is written out before opset 17."""
    b = Builder(opset, 1, TOKENS, HIDDEN)
    x = "x"
    heads, size = np.array([0, 0, HEADS, HIDDEN // HEADS]), F32(1 / np.sqrt(HIDDEN // HEADS))
    for _ in range(2):
        query, key, value = (
            b.add("Transpose", b.add("Reshape", b.linear(x, HIDDEN, HIDDEN), heads), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        weights = b.add("Softmax", b.add("Mul", b.add("MatMul", query, key), size), axis=-1)
        context = b.add("Transpose", b.add("MatMul", weights, value), perm=[0, 2, 1, 3])
        context = b.add("Reshape", context, np.array([0, 0, HIDDEN]))
        x = _normalized(b, b.add("Add", b.linear(context, HIDDEN, HIDDEN), x))
        inner = b.linear(x, HIDDEN, 4 * HIDDEN)
        erf = b.add("Erf", b.add("Div", inner, F32(np.sqrt(2))))
        inner = b.add("Mul", b.add("Mul", inner, b.add("Add", erf, F32(1))), F32(0.5))
        x = _normalized(b, b.add("Add", b.linear(inner, 4 * HIDDEN, HIDDEN), x))
    return b.ending(x, 1, TOKENS, HIDDEN)


def _normalized(b: Builder, x: str) -> str:
    scale, bias = b.generator.uniform(0.5, 1.5, HIDDEN).astype(F32), 0.1 * b.weights(HIDDEN, 1)[:, 0]
    spelling = "canonical" if b.opset >= 17 else "pow_div"
    return layer_norm(b, x, b.constant(scale), b.constant(bias), spelling=spelling)


def picture(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Smooth, of mean 0, with an edge and some grain."""
    smooth, edge = (families.fill(Family(name), rng, shape, F32) for name in ("smooth", "step"))
    return (smooth - 1 + 0.3 * edge + 0.05 * rng.standard_normal(shape)).astype(F32)


NETWORKS = {"convolutions": convolutions, "transformer": transformer}


@dataclass(frozen=True)
class File:
    """A network in the manner of a quantiser."""

    network: str
    style: str
    per_channel: bool
    opset: int

    @property
    def name(self) -> str:
        return f"{self.network}-{self.style}-{'channel' if self.per_channel else 'tensor'}-{self.opset}"

    def feeds(self) -> dict[str, Array]:
        """A picture with an edge and some grain; or tokens, the last ones padding."""
        rng = np.random.default_rng(5)
        if self.network == "convolutions":
            return {"x": picture(rng, (1, 3, 96, 96))}
        x = rng.standard_normal((1, TOKENS, HIDDEN)).astype(F32)
        x[:, -TOKENS // 4 :] = 0
        return {"x": x}

    def model(self) -> onnx.ModelProto:
        source = NETWORKS[self.network](self.opset)
        if self.style == "blocks":
            return _Writer(source, self, {}).blocks()
        return _Writer(source, self, _values(source, self.feeds())).quantized()


_OPSETS = {"tensorrt": (13, 17), "qcdq": (13, 20), "tflite": (15, 23)}
FILES = [
    File(network, style, per_channel, opsets[per_channel])
    for network in NETWORKS
    for style, opsets in _OPSETS.items()
    for per_channel in (False, True)
] + [File("transformer", "blocks", per_channel=True, opset=opset) for opset in (21, 23)]


def _values(source: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor of a float network."""
    model = harness.with_outputs(source, [node.output[0] for node in source.graph.node])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return {**feeds, **dict(zip(names, session.run(None, feeds), strict=True))}


@dataclass
class _Writer:
    """Copies a float network, with pairs."""

    source: onnx.ModelProto
    file: File
    values: Mapping[str, Array]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    behind: dict[str, str] = field(default_factory=dict)  # tensor -> what stands for it, where all readers read a pair
    scales: dict[str, Array] = field(default_factory=dict)  # of what was quantised, by the name of the result

    def __post_init__(self) -> None:
        self.given = {each.name: numpy_helper.to_array(each) for each in self.source.graph.initializer}

    def quantized(self) -> onnx.ModelProto:
        everything = self.file.style == "tflite"
        if everything:
            self.behind["x"] = self.pair("x")
        for node in self.source.graph.node:
            names = [self.behind.get(name, name) for name in node.input]
            if node.op_type in PRODUCTS:
                names = self.of_product(node, names)
            copied = onnx.NodeProto()
            copied.CopyFrom(node)
            copied.input[:] = names
            self.nodes.append(copied)
            if everything:
                self.behind[node.output[0]] = self.pair(node.output[0])
        return self.model({name: self.behind.get(name, name) for name in self.outputs})

    @property
    def outputs(self) -> list[str]:
        return [each.name for each in self.source.graph.output]

    def blocks(self) -> onnx.ModelProto:
        for node in self.source.graph.node:
            if node.op_type == "MatMul" and node.input[1] in self.given:
                node.input[1] = self.block_weights(self.given[node.input[1]])
            self.nodes.append(node)
        return self.model({name: name for name in self.outputs})

    def of_product(self, node: onnx.NodeProto, names: list[str]) -> list[str]:
        x = names[0] if names[0] in self.scales else self.pair(names[0], shared=self.file.style == "qcdq")
        weights = self.given.get(node.input[1])
        if weights is None:  # of two activations
            return [x, names[1] if names[1] in self.scales else self.pair(names[1])]
        rows_last = node.op_type == "MatMul"
        factor = self.weights(weights, axis=weights.ndim - 1 if rows_last else 0)
        biases = [self.bias(self.given[name], x, factor) for name in node.input[2:]]
        return [x, factor, *biases]

    def put(self, array: Array) -> str:
        name = f"q{len(self.constants)}"
        self.constants[name] = array
        return name

    def add(self, op_type: str, inputs: list[str], **attributes: int) -> str:
        output = f"{inputs[0]}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], f"{op_type}_of_{output}", **attributes))
        return output

    def pair(self, name: str, *, shared: bool = False) -> str:
        """A pair behind a tensor; `shared`: all that reads it reads the pair."""
        low, high = min(float(self.values[name].min()), 0.0), max(float(self.values[name].max()), 0.0)
        if self.file.style == "tflite":
            scale = F32((high - low) / 255 or 1)
            zero = np.array(np.clip(round(-128 - low / scale), -128, 127), np.int8)
        else:
            scale, zero = F32(max(-low, high) / 127 or 1), np.array(0, np.int8)
        parameters = [self.put(np.array(scale)), self.put(zero)]
        result = self.add(
            "DequantizeLinear", [self.clipped(self.add("QuantizeLinear", [name, *parameters])), *parameters]
        )
        self.scales[result] = np.array(scale)
        if shared:
            self.behind[name] = result
        return result

    def clipped(self, quantized: str) -> str:
        if self.file.style != "qcdq":
            return quantized
        return self.add("Clip", [quantized, self.put(np.array(-127, np.int8)), self.put(np.array(127, np.int8))])

    def weights(self, weights: Array, axis: int) -> str:
        """The dequantised weights of a product; Brevitas leaves them in float, with all three nodes behind them."""
        axes = tuple(i for i in range(weights.ndim) if i != axis) if self.file.per_channel else None
        scale = (np.abs(weights).max(axes) / LARGEST_WEIGHT).astype(F32)
        zero = np.zeros(scale.shape, np.int8)
        parameters = [self.put(scale), self.put(zero)]
        attributes = {"axis": axis} if self.file.per_channel else {}
        if self.file.style == "qcdq":
            quantized = self.clipped(self.add("QuantizeLinear", [self.put(weights), *parameters], **attributes))
        else:
            shape = [-1 if i == axis else 1 for i in range(weights.ndim)] if self.file.per_channel else []
            quantized = self.put(np.rint(weights / scale.reshape(shape)).astype(np.int8))
        result = self.add("DequantizeLinear", [quantized, *parameters], **attributes)
        self.scales[result] = scale
        return result

    def bias(self, bias: Array, x: str, weights: str) -> str:
        if self.file.style != "tflite":
            return self.put(bias)
        scale = (self.scales[x] * self.scales[weights]).astype(F32)
        zero = np.zeros(scale.shape, np.int32)
        names = [self.put(np.rint(bias / scale).astype(np.int32)), self.put(scale), self.put(zero)]
        return self.add("DequantizeLinear", names, **({"axis": 0} if scale.ndim else {}))

    def block_weights(self, weights: Array) -> str:
        rows, columns = weights.shape
        blocks = weights.reshape(rows // BLOCK, BLOCK, columns)
        scale = (np.abs(blocks).max(1) / 7).astype(F32)
        quantized = np.rint(blocks / scale[:, None]).reshape(rows, columns).astype(ml_dtypes.int4)
        zero = np.zeros(scale.shape, ml_dtypes.int4)
        names = [self.put(quantized), self.put(scale), self.put(zero)]
        return self.add("DequantizeLinear", names, axis=0, block_size=BLOCK)

    def model(self, outputs: Mapping[str, str]) -> onnx.ModelProto:
        used = {name for node in self.nodes for name in node.input}
        constants = {name: array for name, array in {**self.given, **self.constants}.items() if name in used}
        graph = helper.make_graph(
            self.nodes,
            self.file.name,
            self.source.graph.input,
            [helper.make_tensor_value_info(outputs[name], TensorProto.FLOAT, None) for name in self.outputs],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        )
        return helper.make_model(graph, opset_imports=self.source.opset_import, ir_version=10)


OF_INTEGERS = ("ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "QGemm", "QLinearConv", "QLinearMatMul")


def options(folder: Path | None = None) -> onnxruntime.SessionOptions:
    """Of a session on one thread; with a folder: a profiled one."""
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = 1
    made.log_severity_level = 4
    # Threads that wait for work of one session must not take the processor from the next one.
    made.add_session_config_entry("session.force_spinning_stop", "1")
    if folder is not None:
        made.enable_profiling = True
        made.profile_file_prefix = str(folder / "profile")
    return made


def plain(model: bytes, sess_options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, sess_options, providers=["CPUExecutionProvider"])


def products_of_integers(
    create: Callable[[bytes, onnxruntime.SessionOptions], onnxruntime.InferenceSession],
    model: bytes,
    feeds: Mapping[str, Array],
) -> dict[str, int]:
    """How many of each kind a session runs."""
    with tempfile.TemporaryDirectory() as folder:
        session = create(model, options(Path(folder)))
        session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    ran = Counter(event["args"]["op_name"] for event in events if event["name"].endswith("kernel_time"))
    return {name: ran[name] for name in OF_INTEGERS if ran[name]}
