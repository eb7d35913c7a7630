"""Models whose quantised activations were taken out: what to compare them with, and how far they are from the original.

Such a model does not compute what the original computes, so there are two questions. Is it the original without its
rounding? That is compared as strictly as any model, with :func:`unrounded`. And how much does the rounding matter? That
is measured, and judged by nobody.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from normfuse.documents import Document, Share
from normfuse.errors import NormfuseError
from normfuse.meaning import INTEGER_RANGE, Array, dtype_code
from normfuse.sessions.creation import open_session
from normfuse.verification.budget import Budget, run_as_fits
from normfuse.verification.comparison import differences
from normfuse.verification.samples import reference

if TYPE_CHECKING:
    from normfuse.files.model_files import Source
    from normfuse.graph_rewrites.engine.passes import KeptPair, RemovedQuantization
    from normfuse.verification import Comparing

_SHARE = 0.9
_SAMPLES = 16
_OUTPUTS_NAMED = 3


@dataclasses.dataclass(frozen=True)
class OutputDifference:
    """How far an output is from the quantised original's, over all samples."""

    name: str
    dtype: str
    max_abs: float
    """Largest absolute difference."""
    relative: float
    """Largest difference relative to the original's element or to the root mean square of the output, whichever is
    larger."""
    top1: Share | None
    """Share of rows whose largest element is at the same place, for outputs [N, C]; None for other shapes."""


@dataclasses.dataclass(frozen=True)
class RemovalReport(Document):
    """What became of quantised activations where :func:`normfuse.optimize` was to remove them."""

    removed: int
    """Pairs of QuantizeLinear and DequantizeLinear."""
    clipped: int
    """Those of them in whose place a Clip stands, because their saturation may matter."""
    kept: tuple[KeptPair, ...]
    """Every QuantizeLinear that stays, with the reason."""
    samples: int = 0
    """Inputs on which the differences were measured; 0: they were not."""
    differences: tuple[OutputDifference, ...] = ()

    @property
    def message(self) -> str:
        """The result in a few sentences."""
        clips = f", {self.clipped} of them with a Clip in their place" if self.clipped else ""
        text = f"{self.removed} quantisations of activations were removed{clips}; {len(self.kept)} stay."
        if not self.samples:
            return f"{text} How far that moves the results was not measured."
        return f"{text} On {self.samples} samples that moves {self._moved}."

    @property
    def _moved(self) -> str:
        moved = sorted((one for one in self.differences if one.max_abs), key=lambda one: -one.relative)
        if not moved:
            return "no output"
        shown = [f"'{one.name}' by up to {one.max_abs:.3g} ({one.relative:.2%})" for one in moved[:_OUTPUTS_NAMED]]
        if moved[len(shown) :]:
            shown.append(f"and {len(moved) - len(shown)} more outputs by less")
        return "; ".join(shown)


def measure_removal(source: Source, result: ir.Model, done: RemovedQuantization, comparing: Comparing) -> RemovalReport:
    """Run both models on the same inputs, with normfuse where that can be, and say how far they are apart."""
    report = RemovalReport(done.removed, done.clipped, tuple(done.kept))
    budget, name = Budget(comparing.seconds), source.name
    try:
        fed, expected = reference(source.model, name, comparing.inputs, _SAMPLES, 0, budget=budget)
        session = open_session(result, name, ep_options={})
        got = run_as_fits(session, fed, budget, share=_SHARE, tell=lambda _: None, label=name)
    except NormfuseError:
        return report
    found = differences(expected[: len(got)], got, quantized=False)
    return dataclasses.replace(
        report,
        samples=len(got),
        differences=tuple(
            OutputDifference(
                name=one.name,
                dtype=one.dtype,
                max_abs=one.max_abs,
                relative=one.error,
                top1=one.rows_agreeing / one.rows if one.rows else None,
            )
            for one in found
        ),
    )


def unrounded(model: ir.Model, kept: Collection[str] = (), unclipped: Collection[str] = ()) -> ir.Model:
    """Return a copy in which every QuantizeLinear saturates, but does not round.

    Written independently of the rewriting pass: each node is replaced by its own formula, in double precision.

    Args:
        model: The model; it is not changed.
        kept: Names of QuantizeLinear that stay.
        unclipped: Names of those that are said to saturate nothing: what rounds to an end of their range stays.
    """
    from normfuse.graph_rewrites.engine.facts import Facts, name_of

    copy = model.clone()
    facts = Facts(copy)
    facts.infer()
    for graph in copy.graphs():
        for node in tuple(graph):
            if node.op_type == "QuantizeLinear" and name_of(node) not in kept:
                _unround(node, facts.rank(node.inputs[0]), is_wide=name_of(node) in unclipped)
            elif node.op_type == "DequantizeLinear" and facts.is_constant(node.inputs[0]):
                _saturate(node)
    return copy


def _unround(quantizer: ir.Node, rank: int | None, *, is_wide: bool) -> None:
    """Replace a QuantizeLinear, a Clip of its result and the DequantizeLinear nodes that follow by their formulas.

    `is_wide`: what rounds to an end of the range stays.
    """
    replaced, readers = [quantizer], _readers(quantizer)
    scale, zero, code = _parameters(quantizer, rank)
    beyond = 0.5 if is_wide else 0.0
    low: float
    high: float
    low, high = INTEGER_RANGE[code]
    quotient = [("Cast", ir.DataType.DOUBLE), ("Div", scale), ("Add", zero)]
    codes = _insert(quantizer.inputs[0], [*quotient, *_between(low - beyond, high + beyond)], quantizer)
    if readers and readers[0].op_type == "Clip":
        (clip,) = readers
        given = [None if value is None else float(_array(value).item()) for value in clip.inputs[1:]]
        low, high = (
            limit if end is None else end for end, limit in zip((*given, None, None), (-np.inf, np.inf), strict=False)
        )
        codes = _insert(codes, _between(min(low, high) - beyond, high + beyond), clip)
        replaced, readers = [clip, quantizer], _readers(clip)
    for reader in readers:
        scale, zero, _ = _parameters(reader, rank)
        dtype = ir.DataType.from_numpy(_array(reader.inputs[1]).dtype)
        value = _insert(codes, [("Sub", zero), ("Mul", scale), ("Cast", dtype)], reader)
        result = reader.outputs[0]
        if result.is_graph_output():
            # Behind the last node nothing has the name that the graph gives its output.
            value.name, result.name = result.name, f"{result.name} rounded"
            value.type, value.shape = result.type, result.shape
        result.replace_all_uses_with(value, replace_graph_outputs=True)
    for node in (*readers, *replaced):
        assert node.graph is not None
        node.graph.remove(node, safe=True)


def _readers(node: ir.Node) -> list[ir.Node]:
    return list(dict.fromkeys(use.node for use in node.outputs[0].uses()))


def _saturate(node: ir.Node) -> None:
    """Let a constant that overflows be the largest number instead of infinity."""
    largest = np.finfo(_array(node.inputs[1]).dtype).max
    uses = tuple(node.outputs[0].uses())
    x = _insert(node.outputs[0], _between(-largest, largest), node, behind=True)
    for use in uses:
        use.node.replace_input_with(use.idx, x)


def _between(low: Any, high: Any) -> list[tuple[str, Any]]:
    return [("Max", np.asarray(low)), ("Min", np.asarray(high))]


def _parameters(node: ir.Node, rank: int | None) -> tuple[Array, Array, int]:
    """Return scale and zero point of a QuantizeLinear or DequantizeLinear in double, and the quantised type."""
    scale = _array(node.inputs[1])
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        zero = _array(node.inputs[2])
    else:
        zero = np.zeros((), ir.DataType(node.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8).numpy())
    along = [1] * (rank or 0)
    if scale.size > 1:
        along[node.attributes.get_int("axis", 1)] = -1
    scale_along, zero_along = (
        each.astype(np.float64).reshape(() if each.size == 1 else along) for each in (scale, zero)
    )
    return scale_along, zero_along, dtype_code(zero)


def _insert(x: ir.Value | None, steps: Iterable[tuple[str, Any]], place: ir.Node, *, behind: bool = False) -> ir.Value:
    """Insert nodes in front of a node, or behind it, each of what was before and a constant or a type."""
    graph = place.graph
    assert isinstance(graph, ir.Graph)
    assert x is not None
    nodes: list[ir.Node] = []
    for number, (op_type, operand) in enumerate(steps):
        name = f"{place.outputs[0].name} unrounded {number}"
        if isinstance(operand, ir.DataType):
            node = ir.Node("", op_type, [x], [ir.AttrInt64("to", int(operand))], name=name)
        else:
            constant = ir.Value(name=f"{name} operand")
            constant.const_value = ir.tensor(operand, name=constant.name)
            graph.register_initializer(constant)
            node = ir.Node("", op_type, [x, constant], name=name)
        x = node.outputs[0]
        x.name = name
        nodes.append(node)
    (graph.insert_after if behind else graph.insert_before)(place, nodes)
    return x


def _array(value: ir.Value | None) -> Array:
    assert value is not None
    node = value.producer()
    tensor = value.const_value if node is None else ir.convenience.get_const_tensor(value)
    assert tensor is not None
    return tensor.numpy()
