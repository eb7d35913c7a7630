"""Whose fault it is that a rule fails: a node that breaks the schema of its operator, or the rule."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

# More than any pattern covers.
_MOST_NODES = 64


def broken_node(root: ir.Node, opsets: Mapping[str, int], ir_version: int) -> tuple[ir.Node, str] | None:
    """Return the first node from `root` backwards that breaks its schema, and what is wrong with it; or None."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = ir_version, dict(opsets)
    seen = [root]
    for node in seen:
        if node.domain == "":
            try:
                onnx.checker.check_node(ir.to_proto(node), context)
            except Exception as error:  # the checker's, or from writing what cannot be written
                return node, str(error).strip().splitlines()[0]
        if len(seen) < _MOST_NODES:
            producers = [value.producer() for value in node.inputs if value is not None]
            seen += [node for node in dict.fromkeys(producers) if node is not None and node not in seen]
    return None
