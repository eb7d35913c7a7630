"""The error of one result relative to another.

The *error* of a floating-point output is the largest ``|b - a| / max(|a|, rms(a))``; ``a`` is the reference, ``b``
the result under test and ``rms(a)`` the root mean square of the whole reference tensor: relative for elements of usual
size, and not amplified by those that happen to be near zero; of a reference of zeros it is absolute. Elements that are
larger than all others by far, such as the -1e9 of a mask, are ignored. A NaN equals a NaN, an infinity the same
infinity.

Quantised models jump by whole steps at the slightest difference in rounding; ONNX Runtime's own optimisation levels
differ by as much. Their error is ``max |b - a| / min(1, max |a|)``; for quantised outputs it counts steps, and one is
what rounding explains.

These numbers are reported. They decide only where the user sets a limit, and where sites cannot be judged by themselves
(:mod:`normfuse.verification.site_comparison`): many a model amplifies rounding errors on any runtime.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.documents import Share
from normfuse.files.model_files import tensors

# Some 16 to 1,000 units in the last place: the rounding of a whole model, not of one operator, adds up.
_TOLERANCES = {
    ir.DataType.BFLOAT16: 8e-2,
    ir.DataType.FLOAT16: 2e-2,
    ir.DataType.FLOAT: 1e-4,
    ir.DataType.DOUBLE: 1e-9,
}
# Least ratio of fill values to a tensor's other numbers, and the least share of the latter.
_GAP, _OWN_SHARE = 1000.0, 0.01
QUANTIZED_TOLERANCE = 1e-3
QUANTIZED_TYPES = ("int8", "uint8", "int16", "uint16")
_QUANTIZING = {
    *("QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"),
    *("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QAttention", "QGemm"),
}


@dataclasses.dataclass(frozen=True)
class OutputComparison:
    """One output of a model, over all samples."""

    name: str
    dtype: str
    max_abs: float
    """Largest absolute difference."""
    max_rel: float
    """Largest difference relative to the reference's own element."""
    max_ulp: float | None
    """Largest difference in units in the last place of the output's type; None for other than floating point."""
    error: float
    """The number that is compared with ``tolerance``, see the module's description."""
    tolerance: float
    top1: Share | None
    """Share of rows whose largest element is at the same place, for outputs [N, C]; None for other shapes."""
    passed: bool
    note: str = ""


@dataclasses.dataclass
class Difference:
    """Collects the error of one output against its reference, sample by sample."""

    name: str
    quantized: bool
    dtype: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float | None = None
    error: float = 0.0
    note: str = ""
    rows: int = 0
    rows_agreeing: int = 0
    margin_lost: float = 0.0
    """Largest lead, relative as ``error``, that the reference's top element had in a row that disagrees."""

    def add(self, reference: Any, result: Any) -> None:
        """Add one sample."""
        expected, got = np.asarray(reference), np.asarray(result)
        self.dtype = str(expected.dtype)
        if expected.shape != got.shape or expected.dtype != got.dtype:
            self._fail(f"is {got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}")
        elif expected.dtype.kind in "OSU":
            if not np.array_equal(expected, got):
                self._fail("holds other texts")
        elif expected.size:
            self._add_numbers(expected, got)

    def compared(self, tolerance: float) -> OutputComparison:
        """Return the result for a tolerance."""
        passed = self.error <= tolerance and self.margin_lost <= tolerance
        return OutputComparison(
            name=self.name,
            dtype=self.dtype,
            max_abs=self.max_abs,
            max_rel=self.max_rel,
            max_ulp=self.max_ulp,
            error=self.error,
            tolerance=tolerance,
            top1=self.rows_agreeing / self.rows if self.rows else None,
            passed=passed,
            note=self.note,
        )

    def _fail(self, note: str) -> None:
        self.error = self.max_abs = self.max_rel = np.inf
        self.note = note

    def _add_numbers(self, expected: np.ndarray, got: np.ndarray) -> None:
        floating = expected.dtype.kind == "f"
        a, b = expected.astype(np.float64), got.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore", over="ignore"):
            delta = np.where(same, 0.0, np.abs(b - a))
        delta[np.isnan(delta)] = np.inf  # a NaN or an infinity on one side only
        size = np.where(np.isfinite(a), np.abs(a), 0.0)
        tiny = float(np.finfo(expected.dtype).tiny) if floating else 1.0
        self.max_abs = max(self.max_abs, float(delta.max()))
        self.max_rel = max(self.max_rel, float((delta / np.maximum(size, tiny)).max()))
        if not floating or not size.any():
            scale: Any = 1.0  # there is nothing to be relative to
        elif self.quantized:
            scale = min(1.0, float(size.max()))
        else:
            scale = np.maximum(size, usual_size(size))
        scale = np.maximum(scale, tiny)
        self.error = max(self.error, float((delta / scale).max()))
        if floating:
            self.max_ulp = max(self.max_ulp or 0.0, _ulp_distance(expected, got, same))
            if expected.ndim == 2 and expected.shape[1] > 1:
                self._add_rows(a, b, np.broadcast_to(scale, a.shape))

    def _add_rows(self, a: np.ndarray, b: np.ndarray, scale: np.ndarray) -> None:
        top = np.argmax(a, axis=1)
        other = np.argmax(b, axis=1)
        row = np.arange(len(a))
        lead = (a[row, top] - a[row, other]) / scale[row, top]
        self.rows += len(a)
        self.rows_agreeing += int(np.count_nonzero(top == other))
        disagreeing = lead[(top != other) & np.isfinite(lead)]
        self.margin_lost = max(self.margin_lost, float(disagreeing.max(initial=0.0)))


def usual_size(sizes: np.ndarray) -> float:
    """Return the root mean square of absolute values, without the values that fill a tensor, such as masks."""
    largest = float(sizes.max(initial=0.0))
    if largest > _GAP:
        is_own = sizes <= largest / _GAP
        # All others are as large as the fill; rounding errors of zeros do not count as numbers.
        if (
            is_own.mean() > _OWN_SHARE
            and sizes[is_own].max() > 1 / _GAP
            and not ((sizes < largest / 2) & ~is_own).any()
        ):
            sizes = sizes[is_own]
    return float(np.sqrt(np.mean(np.square(sizes, dtype=np.float64)))) if sizes.size else 0.0


def flatten(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    """Yield the tensors of an output: itself, or the elements of a sequence or map."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from flatten(f"{name}[{key}]", value[key])
    elif isinstance(value, list):
        for index, element in enumerate(value):
            yield from flatten(f"{name}[{index}]", element)
    elif value is not None:
        yield name, value


def differences(
    expected: Iterable[dict[str, Any]], results: Iterable[dict[str, Any]], quantized: bool
) -> list[Difference]:
    """Return the error of each output against its reference, over all samples."""
    found: dict[str, Difference] = {}
    for reference, result in zip(expected, results, strict=True):
        for name, value in reference.items():
            pairs = zip(flatten(name, value), flatten(name, result[name]), strict=False)
            for (label, a), (_, b) in pairs:
                found.setdefault(label, Difference(label, quantized)).add(a, b)
    return list(found.values())


def is_quantized(model: ir.Model) -> bool:
    """Return whether activations are quantised anywhere in the model."""
    return any(
        node.op_type in _QUANTIZING or node.op_type.startswith("QLinear")
        for graph in (*model.graphs(), *model.functions.values())
        for node in graph
    )


def model_precision(model: ir.Model) -> ir.DataType:
    """Return the least precise floating-point type that the model stores or casts anything in (float32 if none)."""
    dtypes = {value.dtype for value in (*model.graph.inputs, *model.graph.outputs)}
    nodes = (node for graph in (*model.graphs(), *model.functions.values()) for node in graph)
    return lowest_precision(dtypes | {tensor.dtype for tensor in tensors(model)}, nodes)


def lowest_precision(dtypes: Iterable[ir.DataType | None], nodes: Iterable[ir.Node]) -> ir.DataType:
    """Return the least precise floating-point type of these and those that nodes read or cast to (float32 if none)."""
    found = set(dtypes)
    for node in nodes:
        found |= {
            value.const_value.dtype for value in node.inputs if value is not None and value.const_value is not None
        }
        if node.op_type == "Cast":
            found.add(ir.DataType(node.attributes.get_int("to", ir.DataType.FLOAT)))
    return next((dtype for dtype in _TOLERANCES if dtype in found), ir.DataType.FLOAT)


def type_tolerance(dtype: ir.DataType) -> float:
    """Return the error that rounding in this type explains."""
    return _TOLERANCES[dtype]


def _ulp_distance(a: np.ndarray, b: np.ndarray, same: np.ndarray) -> float:
    """Largest number of representable values between corresponding elements (float16, float32, float64)."""
    if same.all():
        return 0.0
    integer = np.dtype(f"int{8 * a.dtype.itemsize}")

    def ordered(x: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(x).view(integer).astype(np.int64)
        return np.where(bits < 0, np.int64(-(2 ** (8 * integer.itemsize - 1))) - bits, bits)

    first, second = ordered(a)[~same], ordered(b)[~same]
    # The difference of two 64-bit numbers wraps around to the right unsigned one.
    distance = np.where(first > second, first - second, second - first).view(np.uint64).astype(np.float64)
    one_sided = (np.isnan(a) != np.isnan(b))[~same]
    return float(np.where(one_sided, np.inf, distance).max())
