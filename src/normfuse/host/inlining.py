"""When ONNX Runtime inlines the functions of a model: as it loads the model, or where no execution provider wants them.

By default it inlines while it loads. Before that it shows the model to each execution provider once more, and for a
plug-in provider it copies every weight that is stored in the file: that is the peak of the session's memory. Inlining
later avoids the copy, but after ONNX Runtime's basic optimisations, which bodies then do not get. Those of normfuse's
own functions lose little (a bias that ONNX Runtime would have fused with the MatMul before it, see limits.md); other
functions may, and so may operators of ONNX without a kernel in ONNX Runtime, which it inlines along with the functions
(CastLike in models from PyTorch, say). And if the condition of an If is folded to a constant, ONNX Runtime moves the
branch into the outer graph and forgets which nodes call functions: a call that no provider claims then has no
implementation. So functions are inlined late only if all of them are normfuse's, no such operator is present, and no
If contains a call.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from normfuse.host.config_entries import INLINE_LATE, choose_entry, users_entry
from normfuse.host.model_forms import ModelForm, ask_model
from normfuse.host.wire_format import GRAPH_NODE, MODEL_GRAPH, fields, read
from normfuse.spec import HOST_OPERATORS, OPERATOR_DOMAIN

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir
    import onnxruntime

INLINED = frozenset(HOST_OPERATORS["inlined"].names)
"""Operators that ONNX defines by a body, but for those that ONNX Runtime's CPU provider always has a kernel for."""

_LARGEST_NODE = 1 << 20  # bytes; a larger one has weights, which must not be read
# Fields of onnx.proto.
_MODEL_FUNCTIONS, _FUNCTION_DOMAIN = 25, 10
_NODE_OP_TYPE, _NODE_ATTRIBUTE, _NODE_DOMAIN, _ATTRIBUTE_GRAPHS = 4, 5, 7, (6, 11)
# The quick way to see that none of the names is in a node or its subgraphs.
_NAMES = re.compile("|".join(sorted({*INLINED, "If"})).encode())


def choose_inlining(options: onnxruntime.SessionOptions, model: ModelForm) -> None:
    """Let ONNX Runtime inline a model's functions late if :func:`inlines_late`; a user's own entry is not changed.

    Raises:
        InvalidModelError: The file cannot be read.
    """
    if users_entry(options, INLINE_LATE) is None:
        choose_entry(options, INLINE_LATE, "1" if inlines_late(model) else "0")


def inlines_late(model: ModelForm) -> bool:
    """Whether a model has functions, and inlining them late loses nothing. Weights are not read.

    Raises:
        InvalidModelError: The file cannot be read.
    """
    return ask_model(model, _file_inlines_late, _proto_inlines_late, _graph_inlines_late)


def _proto_inlines_late(model: onnx.ModelProto) -> bool:
    domains = {function.domain for function in model.functions}
    return domains == {OPERATOR_DOMAIN} and not any(
        node.ByteSize() > _LARGEST_NODE or _inlines_early(node.SerializeToString()) for node in model.graph.node
    )


def _graph_inlines_late(model: ir.Model) -> bool:
    domains = {function.domain for function in model.functions.values()}
    return domains == {OPERATOR_DOMAIN} and not any(
        node.op_type in INLINED or (node.op_type == "If" and _holds_call(node))
        for graph in model.graphs()
        for node in graph
    )


def _holds_call(node: ir.Node) -> bool:
    branches = (attribute.as_graph() for attribute in node.attributes.values() if attribute.type.name == "GRAPH")
    return any(inner.domain == OPERATOR_DOMAIN for branch in branches for inner in branch.all_nodes())


def _file_inlines_late(file: BinaryIO) -> bool:
    """Data that is no model reads as one without functions, or as a part: ONNX Runtime has the message for it."""
    domains, graphs = set(), []
    for field, start, end in fields(file, 0, file.seek(0, os.SEEK_END)):
        if field == _MODEL_FUNCTIONS:
            parts = [part[1:] for part in fields(file, start, end) if part[0] == _FUNCTION_DOMAIN]
            domains.add(read(file, *parts[-1]) if parts else b"")
        elif field == MODEL_GRAPH:
            graphs.append((start, end))
    if domains != {OPERATOR_DOMAIN.encode()}:
        return False
    nodes = (part[1:] for graph in graphs for part in fields(file, *graph) if part[0] == GRAPH_NODE)
    return not any(end - start > _LARGEST_NODE or _inlines_early(read(file, start, end)) for start, end in nodes)


def _inlines_early(node: bytes) -> bool:
    """Whether a serialised node, or one in its subgraphs, is one of these operators or an If with a call inside."""
    return _NAMES.search(node) is not None and any(
        op_type in INLINED or (op_type == "If" and any(domain == OPERATOR_DOMAIN for _, domain, _ in _nodes(inner)))
        for op_type, _, inner in _nodes(node)
    )


def _nodes(node: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Yield operator, domain and serialised form of a serialised node and of all nodes in its subgraphs."""
    file, op_type, domain = io.BytesIO(node), "", ""
    graphs: list[tuple[int, int]] = []
    for field, start, end in fields(file, 0, len(node)):
        if field == _NODE_OP_TYPE:
            op_type = read(file, start, end).decode(errors="replace")
        elif field == _NODE_DOMAIN:
            domain = read(file, start, end).decode(errors="replace")
        elif field == _NODE_ATTRIBUTE:
            graphs += [part[1:] for part in fields(file, start, end) if part[0] in _ATTRIBUTE_GRAPHS]
    yield op_type, domain, node
    for graph in graphs:
        for field, start, end in fields(file, *graph):
            if field == GRAPH_NODE:
                yield from _nodes(read(file, start, end))
