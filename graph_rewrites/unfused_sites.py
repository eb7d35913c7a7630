"""The sites that were left, each with the one reason why.

While rules are tried, the deepest failed match of every node is kept; at the end it tells why the node was left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts, label, name_of
from normfuse.graph_rewrites.engine.fused import Fused, is_fused
from normfuse.graph_rewrites.engine.pattern import Match
from normfuse.graph_rewrites.engine.sites import Declined, Reason, Site
from normfuse.graph_rewrites.spellings.activations import is_activation

_NORMALIZATIONS = {
    "": (
        *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization"),
        *("LpNormalization", "MeanVarianceNormalization", "RMSNormalization", "SimplifiedLayerNormalization"),
    ),
    "com.microsoft": ("GroupNorm", "SkipGroupNorm", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
}
_KINDS = {
    "GroupNorm": "GroupNormalization",
    "SimplifiedLayerNormalization": "RMSNormalization",
    "SkipGroupNorm": "GroupNormalization",
    "SkipSimplifiedLayerNormalization": "SkipLayerNormalization",
}
# Rules whose steps may be operators that are activations elsewhere.
_OF_ROWS = ("DecomposedLayerNormalization", "DecomposedRMSNormalization", "MultipleOfNormalization")
QUANTIZATION = ("DequantizeLinear", "QuantizeLinear")
_COPIES = ("Cast", "Identity", *QUANTIZATION)
# What stands between a mean of squares and the root of it, and how much of it is looked through.
_BEFORE_ROOT = (
    *(*_COPIES, "Abs", "Add", "Clip", "Div", "Expand", "Log", "Max", "Min", "Mul", "Neg", "Reciprocal", "Relu"),
    *("Reshape", "Squeeze", "Sub", "Sum", "Unsqueeze", "Where"),
)
_MOST_BEFORE_ROOT = 9
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceSumSquare")
# What is recognised by what it computes: it looks like an activation, though no node of it may be one.
_OF_FORMULAS = ("DecomposedActivation", "DecomposedSoftplus")
_FEW = 3


@dataclasses.dataclass(frozen=True)
class _Failure:
    rule: str
    reason: str
    nodes: tuple[ir.Node, ...]


class UnfusedSites:
    """Collects failed matches and turns what was left into sites."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._deepest: dict[ir.Node, _Failure] = {}
        self._failed: dict[ir.Node, Reason] = {}

    def note(self, rule: str, match: Match) -> None:
        """Keep a failed match for the nodes that it covered, unless a deeper one is known."""
        nodes = tuple(match.nodes)
        if len(nodes) < _FEW and not isinstance(match.reason, Reason):
            return
        failure = _Failure(rule, match.reason or "", nodes)
        for node in nodes:
            known = self._deepest.get(node)
            if known is None or _depth(failure) > _depth(known):
                self._deepest[node] = failure

    def fail(self, node: ir.Node, reason: Reason) -> None:
        """Keep that a rule failed on the node, which is a site then whatever it is."""
        self._failed[node] = reason

    def site(self, node: ir.Node, path: str) -> Site | None:
        """Return the site that a node is which was not fused; None for a node that is not the pass's subject."""
        if is_fused(node):
            return self._unreadable(node, path)
        kind = self._kind(node)
        if node in self._failed:
            return _site(node, kind or node.op_type, path, (node,), self._failed[node])
        failure = self._deepest.get(node)
        if kind is None:
            return self._formula(node, path)
        if is_activation(node) and failure is not None and failure.rule in _OF_ROWS:
            return None  # the normalisation that it is a step of is listed
        if failure is not None and isinstance(failure.reason, Reason):
            reason = failure.reason
        elif failure is not None and kind not in QUANTIZATION and not is_activation(node):
            reason = Reason("different_formula", node=label(node), kind=kind, detail=failure.reason)
        else:
            reason = self._by_neighbours(node)
        nodes = failure.nodes if failure is not None and not is_activation(node) else (node,)
        return _site(node, kind, path, nodes, reason)

    def _formula(self, node: ir.Node, path: str) -> Site | None:
        """Return the site of what ends in this node and looks like an activation, if no node of it is a site itself."""
        failure = self._deepest.get(node)
        if failure is None or failure.rule not in _OF_FORMULAS or not isinstance(failure.reason, Reason):
            return None
        if failure.nodes[-1] is not node or any(self._kind(part) is not None for part in failure.nodes):
            return None
        return _site(node, "Activation", path, failure.nodes, failure.reason)

    def stop(self, node: ir.Node, description: str) -> str:
        """Return where the chain of a fused node stops although it looks as if it went on, and why; "" if it does not.

        It does at a modulation or an affine behind it, an activation or a quantisation.
        """
        y = node.outputs[0]
        for consumer in list(dict.fromkeys(y.consumers()))[:_FEW]:
            if consumer.domain != "" or not self._goes_on(consumer, y):
                continue
            failure = self._deepest.get(consumer)
            if failure is not None and isinstance(failure.reason, Reason) and node in failure.nodes:
                reason: str = failure.reason
            else:
                reason = Reason("unsupported_operator", op_type=consumer.op_type, where=f"behind {description}")
            return f"it stops before {label(consumer)}: {reason}"
        return ""

    def _goes_on(self, consumer: ir.Node, y: ir.Value) -> bool:
        if is_activation(consumer) or consumer.op_type == "QuantizeLinear":
            return True
        if consumer.op_type not in ("Add", "Div", "Mul", "Sub") or len(consumer.inputs) != 2:
            return False
        (other, *_) = [value for value in consumer.inputs if value is not y] or [y]
        shape, whole = self._facts.static_shape(other), self._facts.shape(y)
        smaller = shape is not None and whole is not None and (len(shape) < len(whole) or 1 in shape)
        return self._facts.is_constant(other) or smaller

    def _kind(self, node: ir.Node) -> str | None:
        if node.op_type in _NORMALIZATIONS.get(node.domain, ()):
            return _KINDS.get(node.op_type, node.op_type)
        if node.op_type in QUANTIZATION and node.domain in ("", "com.microsoft"):
            return node.op_type
        if is_activation(node):
            return "Activation"
        if node.domain != "":
            return None
        if node.op_type == "Erf":
            return "Activation"
        if node.op_type == "ReduceL2" and node in self._deepest:  # a root by itself; something was divided by it
            return "LayerNormalization" if self._is_deviation(node.inputs[0]) else "RMSNormalization"
        if self._is_root(node):
            return self._kind_of_mean_square(node.inputs[0])
        return None

    def _is_root(self, node: ir.Node) -> bool:
        """True for a root, written as such or as a power."""
        if node.op_type == "Pow":
            return any(self._facts.equals(node.inputs[1], power) for power in (0.5, -0.5))
        return node.op_type in ("Sqrt", "Exp")

    def _kind_of_mean_square(self, value: ir.Value | None, depth: int = _MOST_BEFORE_ROOT) -> str | None:
        """Return the kind of normalisation that a mean of squares before a root makes; None: there is none."""
        node = value.producer() if value is not None else None
        if node is None or node.domain != "" or depth == 0:
            return None
        if node.op_type in _REDUCTIONS:
            if node.op_type != "ReduceSumSquare":
                node = node.inputs[0].producer() if node.inputs[0] is not None else None
                while node is not None and node.op_type in _COPIES and node.inputs[0] is not None:
                    node = node.inputs[0].producer()
                if node is None or node.op_type not in ("Mul", "Pow"):
                    return None
            of_deviation = self._is_deviation(node.inputs[0])
            return "LayerNormalization" if of_deviation else "RMSNormalization"
        if node.op_type not in _BEFORE_ROOT:
            return None
        found = [self._kind_of_mean_square(operand, depth - 1) for operand in node.inputs]
        # The square of the mean is taken off the mean of the squares.
        return "LayerNormalization" if node.op_type == "Sub" and any(found) else next(filter(None, found), None)

    def _is_deviation(self, value: ir.Value | None) -> bool:
        node = value.producer() if value is not None else None
        while node is not None and node.op_type in (*_COPIES, "Abs") and node.inputs[0] is not None:
            node = node.inputs[0].producer()
        return node is not None and node.op_type == "Sub"

    def _by_neighbours(self, node: ir.Node) -> Reason:
        if node.op_type == "BatchNormalization" and node.attributes.get_int("training_mode", 0) != 0:
            return Reason("training_mode", node=label(node))
        if self._is_root(node):
            kind = self._kind_of_mean_square(node.inputs[0])
            detail = self._behind_root(node, "a deviation from the mean" if kind == "LayerNormalization" else "x")
            return Reason("different_formula", node=label(node), kind=kind, detail=detail)
        source = node.inputs[0] if node.inputs else None
        return Reason("nothing_to_fuse", node=label(node), before=_before(source), behind=_behind(node))

    def _behind_root(self, root: ir.Node, wanted: str) -> str:
        """Return in which way the nodes around a root make no normalisation of it."""
        chosen = self._choice_before(root.inputs[0])
        if chosen is not None:
            return f"{label(chosen)} stands between its mean square and the root"
        inverse = root.op_type == "Pow" or root.op_type == "Exp"
        value = root.outputs[0]
        for consumer in value.consumers():
            if consumer.domain == "" and consumer.op_type == "Reciprocal":
                inverse, value = True, consumer.outputs[0]
        for consumer in value.consumers():
            if consumer.domain == "" and consumer.op_type in ("Div", "Mul") and len(consumer.inputs) == 2:
                divided = [other for other in consumer.inputs if other is not None and other is not value]
                if divided and (consumer.op_type == "Mul") == inverse and (inverse or consumer.inputs[1] is value):
                    return f"{label(consumer)} divides {label(divided[0])} by its root, which is not {wanted}"
        return f"what follows its root, {_behind(root)}, divides no tensor by it"

    def _choice_before(self, value: ir.Value | None) -> ir.Node | None:
        """Return the Where between a mean of squares and its root; None: there is none."""
        for _ in range(_MOST_BEFORE_ROOT):
            node = value.producer() if value is not None else None
            if node is None or node.domain != "" or node.op_type not in _BEFORE_ROOT:
                return None
            if node.op_type == "Where":
                return node
            value = next((one for one in node.inputs if self._kind_of_mean_square(one) is not None), None)
        return None

    def _unreadable(self, node: ir.Node, path: str) -> Site | None:
        try:
            Fused.read(node)
        except Declined as declined:
            return _site(node, node.op_type, path, (node,), declined.reason)
        return _site(node, node.op_type, path, (node,), self._failed[node]) if node in self._failed else None


def _depth(failure: _Failure) -> tuple[int, bool]:
    return len(failure.nodes), isinstance(failure.reason, Reason)


def _site(node: ir.Node, kind: str, path: str, nodes: Sequence[ir.Node], reason: Reason) -> Site:
    return Site(
        name=name_of(node),
        kind=kind,
        graph=path,
        nodes=tuple(name_of(part) for part in nodes),
        fused_into=None,
        description=node.op_type,
        reason=reason.code,
        message=str(reason),
        advice=reason.advice,
    )


def _before(value: ir.Value | None) -> str:
    if value is None:
        return "nothing"
    node = value.producer()
    if node is not None:
        return label(node)
    return f"the constant {label(value)}" if value.is_initializer() else f"the input {label(value)}"


def _behind(node: ir.Node) -> str:
    def names() -> Iterator[str]:
        for output in node.outputs:
            if output.is_graph_output():
                yield f"the output {label(output)}"
            for consumer in output.consumers():
                yield label(consumer)

    found = list(dict.fromkeys(names()))
    if len(found) > _FEW:
        return ", ".join(found[:_FEW]) + f" and {len(found) - _FEW} more"
    return ", ".join(found[:-1]) + " and " + found[-1] if len(found) > 1 else "".join(found) or "nothing"
