"""Values that samples do not bring to a site: faint ones, outliers beyond any bound, rows of a table, other branches.

A sample reaches what lies deep in a model as numbers of usual size: they show neither another epsilon nor another bound
of a Clip, nor one wrong row of thousands, and a lone condition is False in all of them. A site is a function of what it
reads, and so it can be given other values, as long as those of which one follows from another still fit: what one of
the two graphs computes on the way is computed from the others by the original.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.sessions.creation import open_session
from normfuse.verification.between import run_part
from normfuse.verification.budget import Budget
from normfuse.verification.diff_sites import DiffSite, constant, part_model, reads, slice_of
from normfuse.verification.exact_values import quantizer_inputs

Values = Mapping[str, Any]

_FAINT = 1e-5
# One element of so many becomes an outlier, or each of four parts of a small tensor has one: the first of these times
# its size, the next the second one, and so on.
_EVERY, _PARTS, _FIRST = 131, 4, 5
_OUTLIERS = 1e2, 1e4, 1e6
# So many conditions are inverted alone as well, as an If within another one asks for.
_MOST_ALONE = 8
# Operators that can give any number; of others, such as Sigmoid or a quantiser, a rewrite may know the range.
_FREE = {
    *("Add", "Conv", "ConvTranspose", "Div", "Einsum", "Gather", "Gemm", "MatMul", "Mul", "ReduceMean", "ReduceSum"),
    *("Sub", "Sum", "BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization"),
    *("RMSNormalization", "SimplifiedLayerNormalization"),
}
_SELECTING = {"Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
_INDICES = ("int32", "int64")
_PASSES_ON = ("Cast", "DequantizeLinear", "Identity")


class Stress:
    """Makes other values for the sites of one original.

    Attributes:
        sites: Those that can be given other values.
        conditions: Names of the values that say which branch is taken.
    """

    def __init__(self, sites: Iterable[DiffSite], original: ir.Model, known: Values) -> None:
        """Determine which values can be replaced; ``known`` are the original's values."""
        theirs = {value.name: value for node in original.graph for value in node.outputs}
        self.sites: list[DiffSite] = []
        follows: dict[str, set[str]] = {}
        for site in sites:
            own = _following(site, theirs)
            roots = [_roots(names, own) for names in (site.inputs, site.original_inputs)]
            if roots[0] == roots[1]:
                self.sites.append(site)
                follows |= own
        read = {name for site in self.sites for name in (*site.inputs, *site.original_inputs)}
        self._replaced = {name: known[name] for name in sorted(read - follows.keys())}
        self._free = {name for name in self._replaced if _is_free(theirs.get(name))}
        # Wherever they come from, conditions that both graphs read decide in both.
        self.conditions = {
            name
            for name, array in self._replaced.items()
            if _is_condition(array)
            and all((name in site.inputs) == (name in site.original_inputs) for site in self.sites)
        }
        self._follows = follows.keys()
        self._rows = {name: rows for site in self.sites for rows in _rows(site) for name in site.inputs}
        if self.sites:
            between = {name for site in self.sites for name in quantizer_inputs(site) if name in theirs} - read
            wanted = sorted({site.value for site in self.sites} | between | follows.keys())
            part = part_model(original, wanted, self._replaced)
            self._session = open_session(part, "a part of the original", level="disable")

    def other_branch(self, site: DiffSite, known: Values, read: Values) -> bool:
        """Whether a site takes another branch on these values than on the known ones."""
        return any(name in self.conditions and read[name] != known[name] for name in site.inputs)

    def values(self, budget: Budget) -> Iterator[tuple[Values, Values]]:
        """Yield, for each kind, values that the sites read, and the original's results.

        Raises:
            VerificationError: The original refuses the values.
            OutOfTime: The time is over.
        """
        kinds: list[Callable[[str, np.ndarray], np.ndarray]] = [
            lambda name, array: _faint(array) if name in self._free else array,
            lambda name, array: _with_outliers(array) if name in self._free else array,
            # A bound is one of large numbers or of small ones.
            lambda name, array: _negative(_with_outliers(array)) if name in self._free else array,
        ]
        kinds += [lambda name, array: _filled(array, self._rows.get(name))] if self._rows else []
        # Last, since the other branch may not take the values that belong to this one.
        alone = [{name} for name in sorted(self.conditions)[:_MOST_ALONE]] if len(self.conditions) > 1 else []
        kinds += [_inverting(names) for names in ([self.conditions, *alone] if self.conditions else [])]
        for kind in kinds if self.sites else ():
            read = {name: np.asarray(kind(name, array)) for name, array in self._replaced.items()}
            computed = run_part(self._session, read, budget)
            yield read | {name: computed[name] for name in self._follows}, computed


def _following(site: DiffSite, theirs: Mapping[str | None, ir.Value]) -> dict[str, set[str]]:
    """Values that only one graph reads and that the original computes from the others, and those others."""
    read: set[str | None] = {*site.inputs, *site.original_inputs}
    found = {}
    for name in set(site.inputs) ^ set(site.original_inputs):
        if name in theirs:
            ends, nodes = slice_of([theirs[name]], read - {name})
            others = {value for node in nodes for value in reads(node) if value.name not in ends}
            if ends and not any(value.is_graph_input() for value in others):
                found[name] = set(ends)
    return found


def _roots(names: Iterable[str], follows: Mapping[str, Collection[str]]) -> set[str]:
    roots = set()
    for name in names:
        roots |= _roots(follows[name], follows) if name in follows else {name}
    return roots


def _is_free(value: ir.Value | None) -> bool:
    """Whether a value (None: an input) may be any number."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in _SELECTING:
            return node.op_type in _FREE
        value = node.inputs[0]
    return True


def _is_condition(array: np.ndarray) -> bool:
    return array.dtype.kind == "b" and array.size == 1


def _inverting(names: Collection[str]) -> Callable[[str, np.ndarray], np.ndarray]:
    return lambda name, array: np.logical_not(array) if name in names else array


def _faint(array: np.ndarray) -> np.ndarray:
    return (array * _FAINT).astype(array.dtype) if array.dtype.kind == "f" else array


def _negative(array: np.ndarray) -> np.ndarray:
    return -array if array.dtype.kind == "f" else array


def _with_outliers(array: np.ndarray) -> np.ndarray:
    """The same array, but a few elements are very large."""
    if not array.size or array.dtype.kind != "f":
        return array
    changed = np.array(array, order="C")
    few = changed.reshape(-1)[_FIRST % array.size :: min(_EVERY, array.size // _PARTS | 1)]
    largest = float(np.finfo(array.dtype).max) / 2
    few[:] = np.clip(few.astype(np.float64) * np.resize(_OUTLIERS, few.size), -largest, largest)
    return changed


def _filled(array: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    return (
        array if rows is None or array.dtype.name not in _INDICES else np.resize(rows, array.shape).astype(array.dtype)
    )


def _rows(site: DiffSite) -> Iterator[np.ndarray]:
    """Yield the rows of a table in both graphs that differ, the largest differences first."""
    ours = list(_tables(site.optimized_nodes))
    for axis, table in _tables(site.nodes):
        for other_axis, other in ours:
            alike = axis == other_axis and table.dtype == other.dtype and table.shape == other.shape
            if table is other or not alike or table.tobytes() == other.tobytes():
                continue
            first, second = (np.moveaxis(t.numpy(), axis, 0).astype(np.float64) for t in (table, other))
            far = np.abs(first - second).reshape(len(first), -1).max(axis=1)
            yield np.argsort(-far, kind="stable")[: np.count_nonzero(far)]


def _tables(nodes: Iterable[ir.Node]) -> Iterator[tuple[int, ir.TensorProtocol]]:
    """Yield constant tables that nodes gather from, and the dimension."""
    for node in nodes:
        if node.op_type == "Gather":
            table = node.inputs[0]
            while table is not None and (producer := table.producer()) and producer.op_type in _PASSES_ON:
                table = producer.inputs[0]
            tensor = None if table is None else constant(table)
            if tensor is not None and len(tensor.shape) > 0:
                yield node.attributes.get_int("axis", 0), tensor
