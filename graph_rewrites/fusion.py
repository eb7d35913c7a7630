"""Fuses what the rules find: first the spellings, then the chains, then the target's form.

Rules are tried only where they can match: each is indexed by the operator that its pattern ends in and by the operators
that must come before. A fused node carries, until the end, the names of the nodes it stands for (``Node.meta``).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import onnx_ir as ir

from normfuse._version import __version__
from normfuse.errors import InvalidModelError
from normfuse.graph_rewrites.engine.describe import description_of, kind_of
from normfuse.graph_rewrites.engine.facts import CASTS, Facts, is_float, label, merged_shape, name_of, subgraphs
from normfuse.graph_rewrites.engine.fused import Fused, is_fused, operator_of
from normfuse.graph_rewrites.engine.identity_nodes import IdentityNodes
from normfuse.graph_rewrites.engine.labels import dtype_of
from normfuse.graph_rewrites.engine.matching import USED_DEVIATION, USED_STATISTICS, is_dead, operator_name, vanishing
from normfuse.graph_rewrites.engine.names import Names
from normfuse.graph_rewrites.engine.options import RewriteOptions, TargetByProducts
from normfuse.graph_rewrites.engine.passes import Context, Home
from normfuse.graph_rewrites.engine.pattern import AnyOf, Output, ValuePattern
from normfuse.graph_rewrites.engine.rule import FusionRule, Replacement, pattern_of
from normfuse.graph_rewrites.engine.schema import broken_node
from normfuse.graph_rewrites.engine.sites import Declined, Reason, Site
from normfuse.graph_rewrites.engine.traversal import graphs_of
from normfuse.graph_rewrites.forms.functions import FunctionLibrary, NoStandardForm, Types, configuration, function_of
from normfuse.graph_rewrites.forms.standard import is_written, names_written, original_name, write_out
from normfuse.graph_rewrites.rules import ACTIVATION_SEEDS, CHAINS, SEEDS
from normfuse.graph_rewrites.unfused_sites import QUANTIZATION, UnfusedSites
from normfuse.spec import OPERATOR_DOMAIN, OPERATORS, OPSET_VERSION

_Result = TypeVar("_Result")

# Node.meta keys, which are never written to a file.
_NODES = "normfuse.nodes"
_RULES = "normfuse.rules"
# Keys of the node metadata that is.
_METADATA_VERSION = "normfuse.version"
_METADATA_RULES = "normfuse.rules"

_SHARE_OF_SEEDS = 0.7
_SECONDS_BETWEEN_REPORTS = 0.1

# Stands among the rules of a node for which a requantisation inside the chain was removed.
_REQUANTIZATION = "requantization removed"

# Quantisations in a row that a chain is followed through, where these may be removed.
_MOST_QUANTIZATIONS = 8

# ONNX's own domain has two names, and onnx_ir gives nodes the short one.
_LONG_NAME = "ai.onnx"

# Model-local functions exist from this IR version on.
_FUNCTION_IR_VERSION = 8


def _removed_with(delta: Replacement) -> set[ir.Node]:
    """Return the nodes of a match, and those that only they need: all that goes when it is replaced."""
    matched = set(delta.match.nodes)
    # A fused node that grows keeps its further outputs: they are carried over.
    given = [value for node in matched for value in (node.outputs[:1] if is_fused(node) else node.outputs)]
    inner = [value for value in given if value not in delta.match.outputs]
    uses = {use for value in inner for use in value.consumers() if use not in matched}
    # The new nodes read already what they will read.
    return matched.union(*(vanishing(use, matched.union(delta.nodes)) or () for use in uses))


@dataclasses.dataclass(frozen=True)
class _Indexed:
    """A compiled rule, and the operators that must be among the producers of its root's inputs."""

    rule: FusionRule
    required: tuple[frozenset[str], ...]
    outermost_first: bool

    def may_match(self, root: ir.Node) -> bool:
        """True unless the operators before the root rule a match out."""
        producers = {
            operator_name(producer)
            for value in root.inputs
            if value is not None and (producer := value.producer()) is not None
        }
        return bool(producers & _TRANSPARENT) or all(producers & required for required in self.required)


# A producer that may be seen through says nothing about what is behind it.
_TRANSPARENT = frozenset({"Identity", "Dropout", "DequantizeLinear", *CASTS})


class _Index:
    """Rules by the operator that their patterns end in."""

    def __init__(self, rules: Iterable[type[FusionRule]], facts: Facts, through_quantization: bool) -> None:
        self._rules: list[tuple[Sequence[str], _Indexed]] = []
        self._by_root: dict[str, list[_Indexed]] = collections.defaultdict(list)
        for rule_type in rules:
            for spelling in rule_type.spellings:
                rule = rule_type(facts, spelling, through_quantization)
                indexed = _Indexed(rule, _required(rule_type, spelling), rule_type.outermost_first)  # type: ignore[arg-type]  # mypy asks the class for its instances' __hash__
                roots = rule.graph_pattern.root.op_types
                self._rules.append((roots, indexed))
                for name in roots:
                    self._by_root[name].append(indexed)

    def __len__(self) -> int:
        """Return how many rules there are, each spelling counted."""
        return len(self._rules)

    def __iter__(self) -> Iterator[tuple[Sequence[str], _Indexed]]:
        """Yield the rules in order, with the operators that they end in."""
        return iter(self._rules)

    def candidates(self, node: ir.Node) -> Iterator[FusionRule]:
        """Yield the rules that may match with this node as the last one."""
        return (indexed.rule for indexed in self._by_root.get(operator_name(node), ()) if indexed.may_match(node))


@functools.cache
def _required(rule_type: type[FusionRule], spelling: str) -> tuple[frozenset[str], ...]:
    """Return, for each input of a rule's root that not anything may produce, the operators that may."""
    root = pattern_of(rule_type, spelling).root  # type: ignore[arg-type]  # mypy asks the class for its instances' __hash__
    operands = (*root.inputs, *root.tensors.values())
    return tuple(names for operand in operands if (names := _operators(operand)) is not None)


def _operators(operand: ValuePattern | None) -> frozenset[str] | None:
    """Return the operators that can produce the operand; None: it may be anything."""
    if isinstance(operand, Output):
        return frozenset(operand.node.op_types)
    if isinstance(operand, AnyOf):
        sets = [_operators(choice) for choice in operand.alternatives]
        return None if any(names is None for names in sets) else frozenset().union(*sets)  # type: ignore[arg-type]
    return None


class Fusion(Context):
    """One run of the rules over one model."""

    def __init__(
        self, model: ir.Model, options: RewriteOptions, progress: Callable[[int, int], None] | None = None
    ) -> None:
        super().__init__(model, options)
        for home in self.homes():
            if _LONG_NAME in home.opsets:
                home.opsets.setdefault("", home.opsets.pop(_LONG_NAME))
        self.facts.infer()
        #: That of the nodes; None: it is not chosen yet.
        self.target = None if isinstance(options.target, TargetByProducts) else options.target
        self.sites: list[Site] = []
        self._removes_quantization = options.allow_requantization_removal
        self._seeds = _Index(SEEDS, self.facts, self._removes_quantization)
        self._probes = _Index(() if self._removes_quantization else SEEDS, self.facts, True)
        self._activations = _Index(ACTIVATION_SEEDS, self.facts, self._removes_quantization)
        self._chains = _Index(CHAINS, self.facts, self._removes_quantization)
        self._progress = progress
        self._done, self._total = 0.0, sum(graph.num_nodes() for graph in self._graphs())
        self._reported = time.monotonic()
        self._unfused = UnfusedSites(self.facts)
        self._identities = IdentityNodes(self.facts)
        self._writable: set[object] = set()
        self._places: list[Home] = []

    def _graphs(self) -> Iterator[ir.Graph]:
        for home in self.homes():
            yield from graphs_of(home.graph)

    # Models that were optimised before

    def lift(self) -> int:
        """Turn calls of our functions back into plain nodes, so that they can grow and take another target's form."""
        calls = [
            (node, opsets)
            for home, _, opsets in self.homes()
            for graph in graphs_of(home)
            for node in graph
            if is_fused(node)
        ]
        lifted = set()
        for node, self.facts.opsets in calls:
            operator = operator_of(node)
            assert operator is not None
            try:
                Fused.read(node)
                for value in (*node.inputs, node.outputs[0]):
                    if value is not None:
                        self.facts.require_allowed(value, node)
            except Declined:
                continue  # reported with the sites that are left, or a function that the target does without
            writable = functools.partial(self._is_writable, node, node.outputs[0])
            if not self._attempt("of the target's form", node, writable):
                continue
            lifted.add(node.op_type)
            node.op_type = operator
            node.resize_outputs(len(OPERATORS[operator].outputs))
            node.meta[_NODES] = (name_of(node),)
        still_called = {node.op_type for graph in self._graphs() for node in graph if is_fused(node)}
        for identifier in [key for key in self.model.functions if key[0] == OPERATOR_DOMAIN]:
            if identifier[1] in lifted and identifier[1] not in still_called:
                del self.model.functions[identifier]
        return len(lifted)

    # Fusing

    def bypass(self, graph: ir.Graph) -> int:
        """Take the nodes out of the way that only repeat a tensor, until the model is finished."""
        self.facts.enter(graph)
        self._identities.bypass(graphs_of(graph), self.opset)
        return 0

    def fuse(self, graph: ir.Graph, path: str) -> int:
        """Fuse everything in a graph and its subgraphs; return how many nodes that made."""
        before = sum(self.counts.values())
        self._places.append(Home(graph, path, self.facts.opsets))
        size = graph.num_nodes()
        self._try_everywhere(self._seeds, graph, _SHARE_OF_SEEDS * size)
        for node in tuple(graph):
            for where, subgraph in subgraphs(node):
                inner = f"{where} of {node.op_type} '{name_of(node)}'"
                self.fuse(subgraph, f"{path} / {inner}" if path else inner)
        self._probe(graph)
        for operator in ("FusedNormalization", "FusedActivation"):
            if operator == "FusedActivation":
                self._try_everywhere(self._activations, graph, 0)
            fused = [node for node in graph if node.domain == OPERATOR_DOMAIN and node.op_type == operator]
            for node in fused:
                if node.graph is graph:
                    self._grow(graph, node)
                self._advance((1 - _SHARE_OF_SEEDS) / 2 * size / len(fused))
            if not fused:
                self._advance((1 - _SHARE_OF_SEEDS) / 2 * size)
        return sum(self.counts.values()) - before

    def _advance(self, nodes: float) -> None:
        """Report that so many more nodes are done, if it is time to."""
        self._done += nodes
        now = time.monotonic()
        if self._progress is not None and now - self._reported >= _SECONDS_BETWEEN_REPORTS:
            self._reported = now
            self._progress(min(round(self._done), self._total), self._total)

    def _try_everywhere(self, index: _Index, graph: ir.Graph, size: float) -> None:
        """Try each rule in turn on all nodes that it can end in; all that is reported as `size` nodes."""
        nodes: dict[str, list[ir.Node]] = collections.defaultdict(list)
        for node in graph:
            nodes[operator_name(node)].append(node)
        for roots, indexed in index:
            ends = [node for root in roots for node in nodes.get(root, ())]
            for node in sorted(ends, key=self.facts.order, reverse=indexed.outermost_first):
                if node.graph is graph and indexed.may_match(node):
                    self._apply(indexed.rule, graph, node)
            self._advance(size / len(index))

    def _probe(self, graph: ir.Graph) -> None:
        """Find the chains that only a requantisation inside of them keeps apart, for their reason."""
        nodes = [node for node in graph if node.domain == ""]
        if not any(node.op_type == "QuantizeLinear" for node in nodes):
            return
        for node in nodes:
            for rule in self._probes.candidates(node):
                match = self._attempt(rule.name, node, functools.partial(rule.match, node))
                if match:
                    match.fail(Reason("changes_rounding", node=label(node)))
                    self._unfused.note(rule.name, match)

    def _grow(self, graph: ir.Graph, node: ir.Node) -> None:
        grown: ir.Node | None = node
        while grown is not None:
            node = grown
            grown = self._try(self._chains, graph, node)
            if grown is None:
                grown = self._try_behind(graph, node.outputs[0])

    def _try_behind(self, graph: ir.Graph, value: ir.Value) -> ir.Node | None:
        """Try the chains that end in a consumer of the value, or behind one that only repeats it or clips integers."""
        # Whether what is behind it was tried, how many quantisations are before it, and the consumer.
        waiting = [(False, 0, consumer) for consumer in _first_consumers(graph, value)]
        while waiting:
            tried, quantized, consumer = waiting.pop()
            requantizes = (
                self._removes_quantization and consumer.op_type in QUANTIZATION and quantized < _MOST_QUANTIZATIONS
            )
            passes = self.facts.transparent(consumer) or self._clips_integers(consumer)
            if not tried and (requantizes or passes):
                waiting.append((True, quantized, consumer))
                further = _first_consumers(graph, consumer.outputs[0])
                waiting += ((False, quantized + requantizes, behind) for behind in further)
                continue
            grown = self._try(self._chains, graph, consumer)
            if grown is not None:
                return grown
        return None

    def _clips_integers(self, node: ir.Node) -> bool:
        """Whether a node is the Clip that may stand in a pair of QuantizeLinear and DequantizeLinear."""
        return node.domain == "" and node.op_type == "Clip" and not is_float(self.facts.dtype(node.inputs[0]))

    def _try(self, index: _Index, graph: ir.Graph, node: ir.Node) -> ir.Node | None:
        for rule in index.candidates(node):
            fused = self._apply(rule, graph, node)
            if fused is not None:
                return fused
        return None

    def _apply(self, rule: FusionRule, graph: ir.Graph, node: ir.Node) -> ir.Node | None:
        delta = self._attempt(rule.name, node, lambda: self._replacement(rule, node))
        if delta is None:
            return None
        y = delta.match.outputs[0]
        assert y is not None
        removed = _removed_with(delta)
        operands = (value for new in delta.nodes for value in new.inputs if value is not None)
        # A parameter of the chain that is computed by the chain itself is no parameter.
        circular = any(self.facts.unwrap(value).producer() in removed for value in operands)
        writable = circular or self._attempt(rule.name, node, lambda: self._is_writable(delta.nodes[0], y))
        hidden = self._hides_shape(delta.nodes[0], y)
        new = None if circular or hidden or not writable else self._replace(graph, node, delta, rule.name)
        if new is not None:
            self.counts[rule.name] += 1
            return new
        for unused in delta.nodes:
            for index in range(len(unused.inputs)):
                unused.replace_input_with(index, None)
        if writable:
            unknown = Reason("unknown_type_or_rank", tensor=label(y))
            reason = unknown if hidden else Reason("not_connected", node=label(node))
            self._unfused.note(rule.name, delta.match.fail(reason))
        return None

    def _hides_shape(self, new: ir.Node, y: ir.Value) -> bool:
        """Whether ONNX Runtime would take the result of a custom operator, whose rank is not known, for one number.

        An operator that says nothing of its result has the type of its last input; where it is to have another one,
        ONNX Runtime knows no way of giving that without a shape.
        """
        if self.facts.rank(y) is not None:
            return False
        last = self.facts.dtype(next((value for value in reversed(new.inputs) if value is not None), None))
        result = self.facts.dtype(y)
        return last is not None and result is not None and last != result

    def _replacement(self, rule: FusionRule, node: ir.Node) -> Replacement | None:
        """Return what a rule puts in the place of the nodes that end in this one; None, noted, if it declines."""
        match = rule.match(node)
        delta = rule.replacement(match) if match else None
        if not match:
            self._unfused.note(rule.name, match)
        return delta

    def _attempt(self, rule: str, node: ir.Node, attempt: Callable[[], _Result]) -> _Result | None:
        """Return what a rule returns; None where it fails, and then the node is left with that as its reason."""
        try:
            return attempt()
        except NoStandardForm as error:
            self._unfused.fail(node, Reason("no_standard_form", node=label(node), detail=error))
        except Exception as error:  # whatever it is, the rest of the model can be rewritten
            broken = broken_node(node, self.facts.opsets, self.model.ir_version)
            if broken is not None:
                message = f"{label(broken[0])} breaks the schema of its operator: {broken[1]}"
                raise InvalidModelError(message) from error
            detail = f"{type(error).__name__}: {error}"
            self._unfused.fail(node, Reason("rule_failed", node=label(node), rule=rule, detail=detail))
        return None

    def _is_writable(self, new: ir.Node, y: ir.Value) -> bool:
        """Write a fused node whose result is `y` in the target's form, once for each configuration, to see it work."""
        if self.target == "custom-op":
            return True
        fused, opset = Fused.read(new), self.facts.opsets.get("", 1)
        types = Types.of(fused, y, self.facts)
        if types.rank is None and not fused.has("residual", "residual_bias"):
            types = dataclasses.replace(types, rank=self.facts.rank(fused.inputs["X"]))  # as `_refine_shape` does
        key = configuration(fused, types, 1, opset)
        if key not in self._writable:
            function_of(fused, types, 1, opset)
            self._writable.add(key)
        return True

    def _replace(self, graph: ir.Graph, root: ir.Node, delta: Replacement, rule: str) -> ir.Node | None:
        """Put the new node in the place of the matched ones; None if there is no place for it."""
        (new,) = delta.nodes
        matched = list(dict.fromkeys(delta.match.nodes))
        old_to_new = self._replaced_values(matched, delta)
        for index, value in enumerate(new.inputs):
            if value is not None and (source := self.facts.unwrap(value)) is not value:
                new.replace_input_with(index, source)
        # Behind all that it reads, before all that reads it; the root's place is the latest possible.
        olds = [old for old, _ in old_to_new]
        olds += [delta.match.bindings[USED_DEVIATION]] if USED_DEVIATION in delta.match.bindings else []
        place = min([self.facts.order(root), *(self.facts.first_use(graph, old, matched) - 0.5 for old in olds)])
        if any(value is not None and self.facts.before(graph, value) >= place for value in new.inputs):
            return None
        self._describe(new, matched, root, rule)
        for initializer in delta.initializers:
            if (name := initializer.name) and name in graph.initializers:  # of an earlier run
                initializer.name = Names(graph).new(name)
            graph.register_initializer(initializer)
        before = root if place == self.facts.order(root) else self.facts.first_consumer(graph, olds, matched)
        graph.insert_before(before, new)
        self.facts.place(new, place)
        if (deviation := delta.match.bindings.get(USED_DEVIATION)) is not None:
            old_to_new.append((deviation, self._deviation_of(new, deviation, place)))
        for old, value in old_to_new:
            value.type, value.shape, value.name = old.type, old.shape, old.name
            value.metadata_props.update(old.metadata_props)
            old.replace_all_uses_with(value, replace_graph_outputs=True)
        self._refine_shape(new)
        uses = [use for node in matched for output in node.outputs for use in output.consumers() if use not in matched]
        dead = [node for use in uses for node in vanishing(use, set(matched)) or ()]
        removed = self._remove(graph, list(dict.fromkeys([*matched, *dead])))
        dequantized = [name_of(node) for node in removed if node.op_type == "DequantizeLinear"]
        new.meta[_NODES] = tuple(dict.fromkeys([*dequantized, *new.meta[_NODES]]))
        return new

    def _deviation_of(self, new: ir.Node, old: ir.Value, place: float) -> ir.Value:
        """Return the standard deviation of a FusedNormalization for what used another one, by a node behind it."""
        root, inverse = old.producer(), new.outputs[USED_STATISTICS["used_inverse"]]
        node = ir.Node("", "Reciprocal", (inverse,), name=root.name if root is not None else "")
        new.graph.insert_after(new, node)  # type: ignore[union-attr]
        self.facts.place(node, place)
        return node.outputs[0]

    @staticmethod
    def _replaced_values(matched: Sequence[ir.Node], delta: Replacement) -> list[tuple[ir.Value, ir.Value]]:
        """Return the old values that stay in use, with the new ones that replace them."""
        (new,) = delta.nodes
        pairs = zip(delta.match.outputs, delta.outputs, strict=True)
        replaced = [(old, value) for old, value in pairs if old is not None]
        for node in matched:
            if node.domain == OPERATOR_DOMAIN and node.op_type == new.op_type:
                further = zip(node.outputs[1:], new.outputs[1:], strict=True)
                replaced += [(old, value) for old, value in further if old.uses() or old.is_graph_output()]
        for name, index in USED_STATISTICS.items():
            if name in delta.match.bindings:
                replaced.append((delta.match.bindings[name], new.outputs[index]))
        return replaced

    def _refine_shape(self, node: ir.Node) -> None:
        """Give Y the shape of X where inference, which cannot see through the replaced nodes, knew less."""
        y, fused = node.outputs[0], Fused.read(node)
        shape = self.facts.shape(fused.inputs["X"])
        if shape is not None and not fused.has("residual", "residual_bias"):
            y.shape = shape if y.shape is None else merged_shape(y.shape, shape)
        for statistic in node.outputs[2:]:
            # The one before may have been that of a reshaped tensor.
            statistic.shape = _reduced(shape, fused["axes"]) if statistic.type is not None else None

    def _describe(self, new: ir.Node, matched: Sequence[ir.Node], root: ir.Node, rule: str) -> None:
        anchor = next((node for node in matched if is_fused(node) and node.op_type == "FusedNormalization"), root)
        new.name = original_name(anchor, matched)
        new.doc_string = anchor.doc_string
        new.metadata_props.update(anchor.metadata_props)
        nodes: dict[str, None] = {}
        rules: list[str] = []
        if self._removes_quantization and any(node is not root and self._is_removed(node, new) for node in matched):
            rules.append(_REQUANTIZATION)
        for node in sorted({*matched, *self._identities.between(set(matched))}, key=self.facts.order):
            nodes.update(dict.fromkeys(node.meta.get(_NODES, (name_of(node),))))
            rules += node.meta.get(_RULES, ())
        new.meta[_NODES] = tuple(nodes)
        # What an earlier run wrote out keeps the rules by which that one found it.
        ours = all(is_fused(node) or is_written(node, _METADATA_RULES) for node in matched)
        for key in (_METADATA_VERSION, _METADATA_RULES):
            if key in root.metadata_props:
                new.metadata_props[key] = root.metadata_props[key]
        ours = ours and (root.domain == "" or root.meta.get(_RULES) == ())
        new.meta[_RULES] = tuple(rules) if ours else (*rules, rule)

    def _is_removed(self, node: ir.Node, new: ir.Node) -> bool:
        """Whether a node quantises, and no step of the new one does that."""
        scale = node.inputs[1] if node.op_type == "QuantizeLinear" else None
        return scale is not None and self.facts.unwrap(scale) not in new.inputs

    def _remove(self, graph: ir.Graph, nodes: Sequence[ir.Node]) -> list[ir.Node]:
        """Remove nodes, and what only they used: constants, constant subgraphs, dequantisation. Return all of them."""
        removed = list(nodes)
        unused = [value for node in nodes for value in node.inputs if value is not None]
        graph.remove(nodes, safe=True)
        while unused:
            value = unused.pop(0)
            node = self._unused_producer(value)
            if node is not None and node.graph is not None:
                inputs = [operand for operand in node.inputs if operand is not None]
                node.graph.remove(node, safe=True)
                removed.append(node)
                unused = [*inputs, *unused]
        return removed

    def _unused_producer(self, value: ir.Value) -> ir.Node | None:
        """Return the node that is to go because nothing uses the value; an initialiser goes at once."""
        if value.uses() or value.is_graph_output() or value.is_graph_input():
            return None
        node, graph = value.producer(), value.graph
        if node is None and graph is not None and value.is_initializer() and value.name is not None:
            graph.initializers.pop(value.name)
        if node is None or graph is None or node.graph is not graph or not is_dead(node) or any(subgraphs(node)):
            return None
        return node if node.domain == "" or node.op_type == "DequantizeLinear" else None

    # The target's form

    def write_form(self) -> int:
        """Report the sites, and give all fused nodes the form of the target; return how many."""
        self._identities.restore()
        if self._progress is not None:
            self._progress(self._total, self._total)
        fused = [(node, opsets) for graph, path, opsets in self._places for node in self._survey(graph, path, opsets)]
        if self.target == "portable" and fused:
            library = FunctionLibrary(self.model, self.facts)
            for node, opsets in fused:
                library.call(node, opsets.get("", 1))
            self.model.ir_version = max(self.model.ir_version, _FUNCTION_IR_VERSION)
        elif self.target == "standard":
            graphs = {node.graph for node, _ in fused if node.graph is not None}
            taken = {graph: names_written(graph) for graph in graphs}
            for node, opsets in fused:
                assert node.graph is not None
                write_out(node, opsets, self.facts, taken[node.graph])
        elif fused:
            self._type_calls()
        self._import_domain()
        return len(fused)

    def _type_calls(self) -> None:
        """Say in the model what its own functions give: a custom operator in the body of one hides it."""
        calls = (node for graph, _, _ in self._places for node in graph if node.op_identifier() in self.model.functions)
        for value in (value for node in calls for value in node.outputs):
            dtype = self.facts.dtype(value)
            if value.dtype is None and dtype is not None:
                value.dtype = dtype
            if value.shape is None:
                value.shape = self.facts.shape(value)

    def _import_domain(self) -> None:
        """Import our domain exactly where nodes of it are."""
        used = [any(is_fused(node) for node in graph) for graph, _, _ in self._places]
        for _, _, opsets in self._places:
            opsets.pop(OPERATOR_DOMAIN, None)
        # A graph shares the imports of the graph or function that it is in.
        for (_, _, opsets), here in zip(self._places, used, strict=True):
            if here:
                opsets[OPERATOR_DOMAIN] = OPSET_VERSION
        if any(used):
            self.model.graph.opset_imports[OPERATOR_DOMAIN] = OPSET_VERSION

    def _survey(self, graph: ir.Graph, path: str, opsets: dict[str, int]) -> list[ir.Node]:
        """Report the sites of a graph and complete its fused nodes, which are returned."""
        self.facts.opsets = opsets
        fused = []
        for node in graph:
            site = self._unfused.site(node, path)
            if site is None and is_fused(node):
                self._complete(node)
                site = self._site(node, path)
                fused.append(node)
            if site is not None:
                self.sites.append(site)
        return fused

    def _complete(self, node: ir.Node) -> None:
        """Write the last details of a fused node: operator, result type, outputs, provenance."""
        fused = Fused.read(node)
        y = node.outputs[0]
        only_activates = not (fused.affine or fused.further or fused.quantizes)
        if fused.op_type == "FusedActivation" and fused.first is not None and only_activates:
            fused.op_type = node.op_type = "FusedDequantizeLinear"
        default = self._default_type(fused)
        dtype = self.facts.dtype(y)
        if dtype is None:
            dtype = fused.y_type or default
        fused.y_type = None if dtype == default else dtype
        fused.write(node)
        used = _drop_unused_outputs(node)
        if y.dtype is None and dtype is not None:
            y.dtype = dtype
        if y.shape is None:
            y.shape = self.facts.shape(y) or self._shape_of_result(fused)
        self._type_further_outputs(node, fused, [index for index in used if index > 0])
        if rules := node.meta.get(_RULES):
            node.metadata_props[_METADATA_VERSION] = __version__
            node.metadata_props[_METADATA_RULES] = ",".join(rules)

    def _type_further_outputs(self, node: ir.Node, fused: Fused, used: Iterable[int]) -> None:
        """Say in the model what the outputs behind Y are: ONNX Runtime before 1.28 does not ask a custom operator."""
        shape = node.outputs[0].shape
        for index in used:
            value = node.outputs[index]
            dtype = self.facts.dtype(value) or (self._type_of_sum(fused) if index == 1 else ir.DataType.FLOAT)
            if value.dtype is None and dtype is not None:
                value.dtype = dtype
            if value.shape is None:
                # Inference knows the mean by its name, which may have been that of a reshaped tensor.
                reduced = _reduced(shape, fused["axes"]) if index > 1 else None
                value.shape = reduced or self.facts.shape(value) or (shape if index == 1 else None)

    def _type_of_sum(self, fused: Fused) -> ir.DataType | None:
        dtype = dtype_of(fused.total)
        if dtype is not None:
            return dtype
        if fused.has("sum_scale"):
            zero_point = fused.inputs.get("sum_zero_point")
            return ir.DataType.UINT8 if zero_point is None else self.facts.dtype(zero_point)
        return self.facts.dtype(fused.inputs.get("x_scale", fused.inputs["X"]))

    def _shape_of_result(self, fused: Fused) -> ir.Shape | None:
        """Return the shape of Y where nothing but the inputs tells it."""
        shape = self.facts.shape(fused.inputs["X"])
        same = all(self.facts.shape(fused.inputs[name]) == shape for name in ("residual",) if fused.has(name))
        return shape if same else None

    def _default_type(self, fused: Fused) -> ir.DataType | None:
        if fused.quantizes:
            zero_point = fused.inputs.get("y_zero_point")
            return ir.DataType.UINT8 if zero_point is None else self.facts.dtype(zero_point)
        return self.facts.dtype(fused.inputs.get("x_scale", fused.inputs["X"]))

    def _site(self, node: ir.Node, path: str) -> Site:
        fused = Fused.read(node)
        description = description_of(fused)
        removed = _REQUANTIZATION if _REQUANTIZATION in node.metadata_props.get(_METADATA_RULES, "") else ""
        messages = (removed, self._unfused.stop(node, description))
        return Site(
            name=name_of(node),
            kind=kind_of(fused),
            graph=path,
            nodes=node.meta.get(_NODES, (name_of(node),)),
            fused_into=fused.op_type,
            description=description,
            message="; ".join(message for message in messages if message),
        )


def _first_consumers(graph: ir.Graph, value: ir.Value) -> list[ir.Node]:
    """Return the first consumers of a value in its graph, the last of them first.

    Several mean that no chain can go on; trying the first few all the same gives them their reason.
    """
    return [consumer for consumer in value.consumers()[:4] if consumer.graph is graph][::-1]


def _drop_unused_outputs(node: ir.Node) -> list[int]:
    """Leave off the outputs behind the last used one, take the names of others away, and return the used ones."""
    used = [index for index, value in enumerate(node.outputs) if value.uses() or value.is_graph_output()]
    node.resize_outputs(max(used, default=0) + 1)
    for index, value in enumerate(node.outputs):
        if index not in used and index > 0:
            value.name = ""
    return used


def _reduced(shape: ir.Shape | None, axes: Sequence[int]) -> ir.Shape | None:
    if shape is None or not axes:
        return None
    normalised = {axis % len(shape) for axis in axes}
    return ir.Shape([1 if axis in normalised else dim for axis, dim in enumerate(shape)])
