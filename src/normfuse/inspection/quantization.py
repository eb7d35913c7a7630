"""The kind of quantisation of a model, its products that ONNX Runtime runs in integers here, and their cost."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import onnx_ir as ir

from normfuse.documents import Document
from normfuse.errors import NormfuseError
from normfuse.files.model_files import Source
from normfuse.host.integer_products import IntegerProducts, integer_products
from normfuse.host.versions import import_host
from normfuse.inspection.claims import PairNodes, pair_nodes
from normfuse.sessions import AllowedChanges
from normfuse.sessions.creation import open_session
from normfuse.sessions.exact_products import INTEGER_FACTORS, quantizer_of
from normfuse.sessions.session_model import SessionModel, session_model

PRODUCTS = frozenset([
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "Einsum",
    "FusedConv", "FusedGemm", "FusedMatMul", "GRU", "Gemm", "GroupQueryAttention", "LSTM", "MatMul", "MatMulInteger",
    "MatMulIntegerToFloat", "MatMulNBits", "MultiHeadAttention", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul",
    "RNN",
])  # fmt: skip
"""Operators that are products of matrices, convolutions, or made of these: what normfuse leaves to ONNX Runtime."""
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_DYNAMIC = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
_QUANTIZING = _DYNAMIC | {_QUANTIZE}
# A weight in this range is never part of a pair of products that does not fit 16 bits beside uint8. The rewriting pass
# has its own (quantized_products): verification asks this one about what that one did.
_SAFE = (-64, 64)


@dataclasses.dataclass(frozen=True)
class Product:
    """Products of a kind, in the graph that ONNX Runtime's CPU provider runs on this machine."""

    operator: str
    types: str
    """Such as "uint8 x int8"; "float32" where it runs in float, of dequantised tensors."""
    count: int
    cost: float | None
    """Time of such a product / that of one of float32, measured here; None: not measured for these types."""
    saturating: int = 0
    """How many of them have weights with which sums may saturate here."""


@dataclasses.dataclass(frozen=True)
class Quantization(Document):
    """What a model is quantised to, and what that means on this machine."""

    forms: tuple[
        Annotated[str, (("enum", ("QDQ", "QOperator", "dynamic", "integers", "MatMulNBits", "weights alone")),)], ...
    ]
    """Of "QDQ", "QOperator", "dynamic", "integers" (products alone), "MatMulNBits" and "weights alone"."""
    activations: Mapping[str, int]
    """Element type -> number of nodes that quantise to it."""
    weights: Mapping[str, int]
    """Such as "int8 per channel" -> number of tensors."""
    products: tuple[Product, ...]
    advice: tuple[str, ...]
    """What is wrong or slow here, and what would be faster: a sentence or two each."""
    in_session: tuple[Product, ...] = ()
    """Products in the graph of normfuse.InferenceSession, where that was asked."""
    pairs: tuple[PairNodes, ...] = ()
    """What becomes of each QuantizeLinear and DequantizeLinear in normfuse.InferenceSession, where that was asked."""
    moved: float | None = None
    """How far saturating sums move the model's outputs here, on one input, where that was asked: see `saturating`."""
    not_asked: str = ""
    """Why products and Q/DQ pairs could not be read from ONNX Runtime; "": they were."""

    @property
    def summary(self) -> str:
        """The kind of quantisation in one line."""
        parts = [" and ".join(self.forms)]
        for what, counts in (("activations", self.activations), ("weights", self.weights)):
            if counts:
                parts.append(f"{what} {', '.join(f'{kind} ({count})' for kind, count in counts.items())}")
        return "; ".join(parts)

    @property
    def saturating(self) -> int:
        """How many products may be wrong on this machine, because their sums saturate."""
        return sum(product.saturating for product in self.products)


def quantization_of(
    source: Source, *, with_pairs: bool = False, allow_requantization_removal: bool = False
) -> Quantization | None:
    """Return what a model is quantised to, and what ONNX Runtime makes of it here; None: it is not quantised.

    Args:
        source: The model.
        with_pairs: Also ask what becomes of each QuantizeLinear and DequantizeLinear, which takes another session.
        allow_requantization_removal: For these, as :func:`normfuse.InferenceSession` takes it.
    """
    nodes = list(source.model.graph.all_nodes())
    forms = tuple(_forms(nodes))
    if not forms:
        return None
    found = Quantization(forms, dict(Counter(_activations(nodes))), dict(Counter(_weights(nodes))), (), ())
    try:
        here = integer_products()
        products = tuple(_products_here(source.model, source.name, here))
        if with_pairs:
            options = import_host().SessionOptions()
            allowed = AllowedChanges(allow_requantization_removal=allow_requantization_removal)
            made = session_model(source, options, allowed)
            in_session = tuple(_products_here(made, source.name, here))
            found = dataclasses.replace(found, in_session=in_session, pairs=pair_nodes(source, made))
    except NormfuseError as error:
        return dataclasses.replace(found, not_asked=str(error))
    advice = tuple(_advice(products, found.activations, here))
    return dataclasses.replace(found, products=products, advice=advice)


def saturating_products(model: ir.Model, name: str) -> int:
    """Return how many products of a model may be wrong on this machine, because their sums saturate.

    Raises:
        NormfuseError: ONNX Runtime could not be asked.
    """
    here = integer_products()
    return sum(product.saturating for product in _products_here(model, name, here)) if here.saturates else 0


# --- as it is written ------------------------------------------------------------------------------------------------


def _forms(nodes: list[ir.Node]) -> Iterator[str]:
    operators = {node.op_type for node in nodes}
    dequantizers = [node for node in nodes if node.op_type == _DEQUANTIZE and node.inputs]
    if any(quantizer_of(node.inputs[0]) is not None for node in dequantizers):
        yield "QDQ"
    if any(name.startswith("QLinear") or name in ("QGemm", "QAttention") for name in operators):
        yield "QOperator"
    if operators & _DYNAMIC:
        yield "dynamic"
    if operators & {"MatMulInteger", "ConvInteger"} and not operators & _DYNAMIC:
        yield "integers"
    if "MatMulNBits" in operators:
        yield "MatMulNBits"
    if not operators & _QUANTIZING and any(_is_constant(node.inputs[0]) for node in dequantizers):
        yield "weights alone"


def _activations(nodes: list[ir.Node]) -> Iterator[str]:
    for node in nodes:
        if node.op_type == _QUANTIZE and not _is_constant(_at(node, 0)):
            given = ir.DataType(node.attributes.get_int("output_dtype", 0)) or None
            yield _name(_type(_at(node, 2)) or given, "uint8")
        elif node.op_type in _DYNAMIC:
            yield "uint8, found in each run"


def _weights(nodes: list[ir.Node]) -> Iterator[str]:
    for node in nodes:
        if node.op_type == "MatMulNBits":
            bits, size = node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 0)
            yield f"uint{bits} in blocks of {size}"
            continue
        if node.op_type == _DEQUANTIZE:
            weights, scale = _at(node, 0), _at(node, 1)
        elif node.op_type in INTEGER_FACTORS:
            factors = INTEGER_FACTORS[node.op_type][0]
            # Without a scale of its own, the zero point has as many elements.
            weights = _at(node, factors.right)
            scale = _at(node, factors.scale if factors.scale >= 0 else factors.right_zero)
        else:
            continue
        quantizer = quantizer_of(weights)  # of weights that are stored in float, as Brevitas does
        dtype = _type(weights if quantizer is None else _at(quantizer, 2))
        is_constant = _is_constant(weights if quantizer is None else _at(quantizer, 0))
        if not is_constant or dtype in (None, ir.DataType.INT32):  # int32: a bias
            continue
        yield f"{_name(dtype)} {_granularity(node, scale)}"


def _granularity(node: ir.Node, scale: ir.Value | None) -> str:
    size = node.attributes.get_int("block_size", 0) if node.op_type == _DEQUANTIZE else 0
    if size:
        return f"in blocks of {size}"
    tensor = None if scale is None else ir.convenience.get_const_tensor(scale)
    return "per tensor" if tensor is None or tensor.size == 1 else "per channel"


def _at(node: ir.Node, position: int) -> ir.Value | None:
    return node.inputs[position] if 0 <= position < len(node.inputs) else None


def _is_constant(value: ir.Value | None) -> bool:
    return value is not None and ir.convenience.get_const_tensor(value) is not None


def _type(value: ir.Value | None) -> ir.DataType | None:
    if value is None:
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return value.dtype if tensor is None else tensor.dtype


def _name(dtype: ir.DataType | None, otherwise: str = "?") -> str:
    return otherwise if dtype is None else dtype.name.lower()


def _made_by(value: ir.Value) -> str | None:
    """Return the operator that gives a value."""
    producer = value.producer()
    return None if producer is None else producer.op_type


def _reads_dequantized(node: ir.Node) -> bool:
    return any(value is not None and _made_by(value) == _DEQUANTIZE for value in node.inputs)


# --- as ONNX Runtime runs it -----------------------------------------------------------------------------------------


def _products_here(model: ir.Model | SessionModel, name: str, here: IntegerProducts) -> Iterator[Product]:
    """Yield the products of the graph that ONNX Runtime makes, before it changes layouts."""
    with tempfile.TemporaryDirectory(prefix="normfuse.") as folder:
        options = import_host().SessionOptions()
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        open_session(model, name, level="extended", sess_options=options)
        counts: Counter[tuple[str, str]] = Counter()
        saturating: Counter[tuple[str, str]] = Counter()
        for node in ir.load(options.optimized_model_filepath).graph.all_nodes():
            if node.op_type not in PRODUCTS:
                continue
            types = _types_of(node)
            if types is not None:
                key = (node.op_type, types)
                counts[key] += 1
                saturating[key] += here.saturates and types == "uint8 x int8" and _may_saturate(node)
    for (operator, types), count in counts.most_common():
        cost = 1.0 if types == "float32" else here.cost.get(types)
        yield Product(operator, types, count, cost, saturating[operator, types])


def _types_of(node: ir.Node) -> str | None:
    """Return what a product multiplies; None: floats of which none was dequantised."""
    if node.op_type == "MatMulNBits":
        right = f"uint{node.attributes.get_int('bits', 4)}"
        return f"{'int8' if node.attributes.get_int('accuracy_level', 0) == 4 else 'float32'} x {right}"
    if node.op_type not in INTEGER_FACTORS:
        return "float32" if _reads_dequantized(node) else None
    at = INTEGER_FACTORS[node.op_type][0]
    left = _type(_at(node, at.left_zero)) or _type(_at(node, at.left))
    factors = [_name(left, "uint8"), _name(_type(_at(node, at.right_zero)) or _type(_at(node, at.right)))]
    if node.op_type == "ConvInteger":
        factors.reverse()  # its kernel has the weights on the left, where sums do not saturate
    return " x ".join(factors)


def _may_saturate(node: ir.Node) -> bool:
    for factors in INTEGER_FACTORS[node.op_type]:
        value = _at(node, factors.right)
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
        if tensor is None or not tensor.size:
            return True
        weights = tensor.numpy()
        if weights.min() < _SAFE[0] or weights.max() > _SAFE[1]:
            return True
    return False


# --- what would be faster --------------------------------------------------------------------------------------------


def _advice(products: tuple[Product, ...], activations: Mapping[str, int], here: IntegerProducts) -> Iterator[str]:
    saturating = sum(product.saturating for product in products)
    signed, unsigned = here.cost["uint8 x int8"], here.cost["uint8 x uint8"]
    if saturating:
        yield (
            f"This processor has no VNNI: ONNX Runtime's sums of uint8 x int8 saturate. Of these products {saturating} "
            "have weights beyond -64 to 64, with which results may be wrong; quantize_static(reduce_range=True) keeps "
            f"them within, and weights of uint8 are exact (a product takes {unsigned:.2f} instead of {signed:.2f}): "
            "normfuse.InferenceSession(model, exact_products=True) makes them so."
        )
    if any(product.types.startswith("int8 x") and (product.cost or 0) > 1 for product in products):
        yield (
            f"Products of int8 activations are slow here: {here.cost['int8 x int8']:.1f} times the time of float32, "
            f"where those of uint8 take {min(signed, unsigned):.2f}."
        )
    total = sum(product.count for product in products)
    in_float = sum(product.count for product in products if product.types == "float32")
    if in_float and activations:
        wide = any("16" in kind for kind in activations)
        why = "it has none of 16 bits" if wide else "on this processor it takes int8 only where one node reads a tensor"
        if wide or here.cost["int8 x int8"] > 1:
            yield (
                f"ONNX Runtime runs {in_float} of {total} products in float, on dequantised tensors: {why}. With "
                f"activations of uint8 they would run in integers, in {min(signed, unsigned):.2f} of the time."
            )
