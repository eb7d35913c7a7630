"""What share of a model's kernel time its chains take, the fused nodes, and each operator, by ONNX Runtime's profiler.

A session on the original runs what ONNX Runtime's optimiser made of it, so each of its nodes is traced back to the
original nodes that it stands for. It is part of a chain if all of those are.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from normfuse.host.native_library import EP_NAME
from normfuse.host.versions import import_host
from normfuse.sessions.creation import open_session
from normfuse.sessions.session_model import SessionModel
from normfuse.verification import Sample

if TYPE_CHECKING:
    import onnxruntime

_WARM_UP_RUNS = 2
_RUNS = 5, 100
_SECONDS = 0.5
_SUFFIX = "_kernel_time"
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
"""Their time is that of the nodes in them, which are counted themselves."""
_SHAPES = frozenset({"Constant", "Shape", "Size"})

FUSED = "normfuse"
"""Stands for all nodes of the execution provider among the operators."""

_Event = dict[str, Any]
_Key = tuple[str, str]
"""Name and operator of a node."""


@dataclasses.dataclass(frozen=True)
class KernelTime:
    """Where a session's kernel time goes."""

    share: float
    """What was asked for: the part of it that chains or fused nodes take, 0 to 1."""
    operators: Mapping[str, float]
    """Operator -> milliseconds of a run, the median of several."""
    nodes: Mapping[str, int]
    """Operator -> how many of its nodes a run executes, those of a loop each time."""


def time_in_chains(model: ir.Model, name: str, sample: Sample, *, threads: int) -> KernelTime:
    """Return the kernel time without normfuse, and the share of the nodes in it which the rewriting pass fuses.

    Nodes that ONNX Runtime inserts, such as those that change a layout, count as others.

    Args:
        model: The original; it is not changed.
        name: What it is called in messages.
        sample: What it is run on.
        threads: Threads inside an operator; 0: ONNX Runtime's default.

    Raises:
        InvalidModelError: ONNX Runtime cannot load the model.
    """
    from normfuse.graph_rewrites import rewrite

    original = _renamed(model)
    sites = rewrite(original.clone()).sites
    fused = {node for site in sites if site.fused_into is not None for node in site.nodes}
    with tempfile.TemporaryDirectory() as folder:
        events = _events(open_session(original, name, threads=threads, sess_options=_profiled_options(folder)), sample)
        weights = _weights(original, _extended(original, name, folder), fused)
    share = _median_share(events, lambda event: weights.get(_key(event), 0.0))
    return KernelTime(share, _by_operator(events), _node_counts(events))


def time_in_fused_nodes(
    model: ir.Model | SessionModel, name: str, sample: Sample, *, threads: int, ep_options: Mapping[str, Any]
) -> KernelTime:
    """Return the kernel time with normfuse, and the share of the execution provider's nodes in it.

    See :func:`time_in_chains`; ``model`` and ``ep_options`` are as :func:`open_session` takes them.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = _profiled_options(folder)
        session = open_session(model, name, ep_options=dict(ep_options), threads=threads, sess_options=options)
        events = _events(session, sample)
    share = _median_share(events, lambda event: float(_is_fused(event)))
    return KernelTime(share, _by_operator(events), _node_counts(events))


# --- the profiler ----------------------------------------------------------------------------------------------------


def _profiled_options(folder: str) -> onnxruntime.SessionOptions:
    options = import_host().SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(Path(folder) / "profile")
    return options


def _events(session: onnxruntime.InferenceSession, sample: Sample) -> list[list[_Event]]:
    """Return the kernel events of each run but the first ones."""
    start = time.perf_counter()
    for _ in range(_WARM_UP_RUNS):
        session.run(None, sample)
    one = (time.perf_counter() - start) / _WARM_UP_RUNS
    least, most = _RUNS
    for _ in range(max(least, min(most, int(_SECONDS / one)))):
        session.run(None, sample)
    profile = Path(session.end_profiling())
    events = json.loads(profile.read_text(encoding="utf-8"))
    starts = sorted(event["ts"] for event in events if event["name"] == "model_run")[_WARM_UP_RUNS:]
    kernels = [
        event
        for event in events
        if event["cat"] == "Node"
        and event["name"].endswith(_SUFFIX)
        and event["args"]["op_name"] not in _CONTROL_FLOW
        and event["ts"] >= starts[0]
    ]
    kernels.sort(key=lambda event: event["ts"])
    return list(_split(kernels, starts))


def _split(events: list[_Event], starts: list[int]) -> Iterator[list[_Event]]:
    position = 0
    for end in (*starts[1:], math.inf):
        first = position
        while position < len(events) and events[position]["ts"] < end:
            position += 1
        yield events[first:position]


def _median_share(runs: list[list[_Event]], weight: Callable[[_Event], float]) -> float:
    shares = []
    for events in runs:
        total = sum(event["dur"] for event in events)
        shares.append(sum(event["dur"] * weight(event) for event in events) / total if total else 0.0)
    return statistics.median(shares)


def _is_fused(event: _Event) -> bool:
    return bool(event["args"]["provider"] == EP_NAME)


def _by_operator(runs: list[list[_Event]]) -> dict[str, float]:
    sums: list[collections.Counter[str]] = []
    for events in runs:
        sums.append(collections.Counter())
        for event in events:
            sums[-1][_operator(event)] += event["dur"]
    operators = dict.fromkeys(name for one in sums for name in one)
    return {name: statistics.median(one[name] for one in sums) / 1e3 for name in operators}


def _node_counts(runs: list[list[_Event]]) -> dict[str, int]:
    return dict(collections.Counter(_operator(event) for event in runs[-1]))


def _operator(event: _Event) -> str:
    return FUSED if _is_fused(event) else str(event["args"]["op_name"])


# --- which node of the optimised model belongs to a chain ------------------------------------------------------------


def _renamed(model: ir.Model) -> ir.Model:
    """Return a copy without functions in which every node and every value that a node makes has a name of its own."""
    copy = InlinePass()(model.clone()).model if model.functions else model.clone()
    kept = set(copy.graph.outputs)
    for number, node in enumerate(copy.graph.all_nodes()):
        node.name = f"node {number}"
        for index, value in enumerate(node.outputs):
            if value.name and value not in kept:
                value.name = f"value {number} {index}"
    return copy


def _extended(model: ir.Model, name: str, folder: str) -> ir.Model:
    """Return the model as ONNX Runtime optimises it before it changes layouts, which gives values other names."""
    options = import_host().SessionOptions()
    options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
    open_session(model, name, level="extended", sess_options=options)
    return ir.load(options.optimized_model_filepath)


def _key(event: _Event) -> _Key:
    return event["name"].removesuffix(_SUFFIX), event["args"]["op_name"]


def _weights(original: ir.Model, optimized: ir.Model, fused: Collection[str]) -> dict[_Key, float]:
    """Return what part of the nodes of a name and operator in ``optimized`` stand for nodes in ``fused`` alone.

    Names are given once, but ONNX Runtime gives none to some of the nodes that it makes.
    """
    nodes = {str(node.name): node for node in original.graph.all_nodes()}
    makers = {str(value.name): node for node in nodes.values() for value in node.outputs if value.name}
    costless = _costless(original.graph)
    found: dict[_Key, list[bool]] = {}
    for node in optimized.graph.all_nodes():
        before = nodes.get(str(node.name))
        if before is not None and before.op_type == node.op_type:
            covered = {str(before.name)}
        else:
            covered = {str(part.name) for part in _covered(node, makers) if part not in costless}
        within = bool(covered) and covered <= set(fused)
        found.setdefault((str(node.name or ""), node.op_type), []).append(within)
    return {key: statistics.fmean(within) for key, within in found.items()}


def _costless(graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes that ONNX Runtime takes out: those of constants and shapes alone, and those that only repeat."""
    constant: set[ir.Node] = set()
    for node in graph.all_nodes():
        inputs = [value for value in node.inputs if value is not None]
        if node.op_type in _SHAPES or (
            inputs and all(value.is_initializer() or value.producer() in constant for value in inputs)
        ):
            constant.add(node)
    return constant | {node for node in graph.all_nodes() if node.op_type == "Identity"}


def _covered(node: ir.Node, makers: Mapping[str, ir.Node]) -> set[ir.Node]:
    """Return the original nodes from a node's outputs back to its inputs."""
    borders = {_known(value, makers) for value in node.inputs if value is not None}
    open_ends = [str(value.name) for value in node.outputs]
    covered: set[ir.Node] = set()
    while open_ends:
        maker = makers.get(open_ends.pop())
        if maker is None or maker in covered:
            continue
        covered.add(maker)
        open_ends += [str(value.name) for value in maker.inputs if value is not None and value.name not in borders]
    return covered


def _known(value: ir.Value, makers: Mapping[str, ir.Node]) -> str | None:
    """Return the name of the original value that a value holds: that itself, or what an inserted node was given."""
    producer = value.producer()
    while value.name not in makers and producer is not None and producer.inputs and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    return value.name
