"""Changes of a model as passes: all have onnx_ir's signature, and one context of what is known, wanted and done."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts
from normfuse.graph_rewrites.engine.options import AS_GIVEN, RewriteOptions
from normfuse.spec import OPERATOR_DOMAIN

_CONTEXT = "normfuse.context"  # key of Model.meta, which is never written to a file


class Home(NamedTuple):
    """The main graph of a model, or the body of one of its own functions."""

    graph: ir.Graph
    path: str
    """What reports call it; "": the main graph."""
    opsets: dict[str, int]


@dataclasses.dataclass
class FoldedWeights:
    """What was done about quantised weights."""

    folded: int = 0
    """DequantizeLinear of constants that were done once."""
    lookups: int = 0
    """Tables that Gather reads as integers."""
    left: int = 0
    """DequantizeLinear that were left because ONNX Runtime would make integers of the weights again."""
    requantizable: int = 0
    """Those that were done once although it would: a session must switch that off."""
    host_quantizes: bool = False
    """Products run in integers because ONNX Runtime makes integers of float weights or a float bias."""
    bytes_added: int = 0
    """By which the model's weights grew."""


@dataclasses.dataclass(frozen=True)
class KeptPair:
    """A QuantizeLinear that stays."""

    name: str
    reason: str


@dataclasses.dataclass
class RemovedQuantization:
    """What became of the quantised activations."""

    removed: int = 0
    clipped: int = 0
    """Of the removed ones, those in whose place a Clip stands."""
    kept: list[KeptPair] = dataclasses.field(default_factory=list)
    unclipped: list[str] = dataclasses.field(default_factory=list)
    """QuantizeLinear in whose place nothing stands: values are at most half a step beyond what they can represent."""


class Context:
    """What is known of a model, what is to become of it, and what the passes did to it."""

    def __init__(self, model: ir.Model, options: RewriteOptions = AS_GIVEN) -> None:
        self.model, self.options = model, options
        self.facts = Facts(model, options)
        #: Name of a pass or rule -> how often it changed something.
        self.counts: collections.Counter[str] = collections.Counter()
        self.weights, self.quantization = FoldedWeights(), RemovedQuantization()
        #: Names of the nodes of redundant Q/DQ pairs.
        self.dropped: list[str] = []
        #: Products run in integers, where that was asked.
        self.in_integers = False
        #: The rest of the passes is left out.
        self.stops = False
        #: What is being rewritten.
        self.home = Home(model.graph, "", model.graph.opset_imports)

    @property
    def opset(self) -> int:
        """The version of ONNX's operators in the graph that is being rewritten."""
        return self.home.opsets.get("", 1)

    def homes(self) -> Iterator[Home]:
        """Yield the main graph and the bodies of the model's own functions."""
        yield Home(self.model.graph, "", self.model.graph.opset_imports)
        for function in tuple(self.model.functions.values()):
            if function.domain != OPERATOR_DOMAIN:
                path = f"function '{function.domain}::{function.name}'"
                yield Home(function.graph, path, function.opset_imports)

    def run(self, *passes: Pass) -> int:
        """Run passes on the model; return in how many places they changed it."""
        before = self.counts.total()
        self.model.meta[_CONTEXT] = self
        try:
            for each in passes:
                if not self.stops:
                    each(self.model)
        finally:
            del self.model.meta[_CONTEXT]
        return self.counts.total() - before


@dataclasses.dataclass(frozen=True)
class Pass(ir.passes.InPlacePass):
    """One change of a model, with its name in the report's counts, where users are told of it."""

    name: str
    change: Callable[[ir.Graph, Any], int]
    """Changes a graph and its subgraphs by what the `Context` says; returns in how many places."""
    runs: Callable[[Any], bool] = lambda context: True
    """Whether the options, and what was found so far, ask for it."""
    in_functions: bool = True
    """Also in the bodies of functions; False: it adds constants, which these cannot hold, or looks at all graphs."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Change the graphs of a model that has a context."""
        context: Context = model.meta[_CONTEXT]
        count = 0
        for home in [*context.homes()][: None if self.in_functions else 1] if self.runs(context) else ():
            context.home, context.facts.opsets = home, home.opsets
            count += self.change(home.graph, context)
        context.counts[self.name] += count
        return ir.passes.PassResult(model, modified=count > 0)
