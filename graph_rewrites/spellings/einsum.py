"""Einsum written as MatMul, behind Transposes where needed: with `subtractions.py` all that is changed and not fused.

ONNX Runtime's Einsum on the CPU makes transposed copies of its operands; Transposes in front of a MatMul become part of
it (FusedMatMul). The factors stay on their sides, as in ONNX Runtime's Einsum: so the product is the same one, and so
are its bits. docs/decisions/0024-einsum-as-matmul.md has the measurements behind the lines drawn here.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping

import onnx_ir as ir

from normfuse.graph_rewrites.engine.constants import Dimension
from normfuse.graph_rewrites.engine.facts import Facts, name_of
from normfuse.graph_rewrites.engine.host_fusions import is_dequantized
from normfuse.graph_rewrites.engine.names import Names
from normfuse.graph_rewrites.engine.passes import Context
from normfuse.graph_rewrites.engine.traversal import graphs_of

# Sizes from which MatMul is not slower: of what a Transpose moves and of the result's columns, of a leading dimension
# that a Transpose moves, and of the columns where the right operand is one matrix.
_LEAST, _LEAST_LEADING, _LEAST_WIDTH = 8, 2, 64

_EQUATION = re.compile(r"([A-Za-z]+),([A-Za-z]+)(?:->([A-Za-z]+))?")


def write_products(home: ir.Graph, context: Context) -> int:
    """Write every Einsum of a graph and its subgraphs that MatMul computes faster as MatMul; return how many."""
    count, names = 0, Names(home)
    for graph in graphs_of(home):
        for node in tuple(graph):
            product = _product(node, context.facts)
            if product is not None:
                _write(node, product, context.facts, names)
                count += 1
    return count


@dataclasses.dataclass(frozen=True)
class _Product:
    """An equation that says a matrix product, out[leads, m, n] = sum over k of left[leads, m, k] * right[leads, k, n].

    Each of the three may have its labels in another order; `right` may lack all of `leads`.
    """

    left: str
    right: str
    out: str
    leads: str
    m: str
    k: str
    n: str

    @property
    def orders(self) -> tuple[tuple[str, str], tuple[str, str], tuple[str, str]]:
        """The labels of left, right and out: as the equation has them, and as MatMul does."""
        leads = "".join(label for label in self.leads if label in self.right)
        return (
            (self.left, self.leads + self.m + self.k),
            (self.right, leads + self.k + self.n),
            (self.out, self.leads + self.m + self.n),
        )

    @property
    def turns_result(self) -> bool:
        """True if a Transpose has to follow."""
        return self.out != self.orders[-1][1]


def _read(equation: str) -> _Product | None:
    """Return the matrix product that an equation says, if it says one."""
    match = _EQUATION.fullmatch(equation.replace(" ", ""))
    if match is None:
        return None
    left, right, out = match.groups()
    if out is None:
        if not (equation.islower() or equation.isupper()):
            return None  # which letters come first is not the same everywhere
        out = "".join(sorted(set(left) ^ set(right)))
    summed = (set(left) & set(right)) - set(out)
    repeated = any(len(set(labels)) < len(labels) for labels in (left, right, out))
    if repeated or len(summed) != 1 or set(left) | set(right) != set(out) | summed:
        return None
    rows = [label for label in out if label not in right]
    columns = [label for label in out if label not in left]
    if len(columns) != 1 or not rows or (len(rows) > 1 and len(right) > len("kn")):
        return None
    leads = "".join(label for label in out if label not in (rows[-1], columns[0]))
    product = _Product(left, right, out, leads, rows[-1], summed.pop(), columns[0])
    in_order = all(_leading(labels, leads) == _leading(order, leads) for labels, order in product.orders)
    return product if in_order else None


def _leading(labels: str, leads: str) -> list[str]:
    return [label for label in labels if label in leads]


def _product(node: ir.Node, facts: Facts) -> _Product | None:
    """Return the matrix product that an Einsum is; None: it is none, or for one reason or another remains."""
    if node.op_type != "Einsum" or node.domain != "" or len(node.inputs) != 2 or len(node.outputs) != 1:
        return None
    equation = node.attributes.get("equation")
    if equation is None or equation.is_ref() or equation.type != ir.AttributeType.STRING or len(node.attributes) > 1:
        return None
    product = _read(equation.as_string())
    if product is None or any(map(is_dequantized, node.inputs)):
        return None
    dtypes = {facts.dtype(value) for value in node.inputs}
    # A result of float64 takes longer in Transpose than in Einsum; a Transpose of float16 in front of a MatMul makes
    # ONNX Runtime end the process for some models.
    if dtypes != {ir.DataType.FLOAT} and (dtypes != {ir.DataType.DOUBLE} or product.turns_result):
        return None
    sizes = _sizes(product, node, facts)
    return product if sizes is not None and _is_faster(product, sizes) else None


def _sizes(product: _Product, node: ir.Node, facts: Facts) -> Mapping[str, Dimension] | None:
    """Return label -> its size; None where the operands may differ in one: Einsum then repeats what is 1."""
    given = []
    for value, labels in zip(node.inputs, (product.left, product.right), strict=True):
        dimensions = None if value is None else facts.dimensions(value)
        if dimensions is None or len(dimensions) != len(labels):
            return None
        given.append(dict(zip(labels, dimensions, strict=True)))
    left, right = given
    if left[product.k] != right[product.k]:
        return None
    # MatMul repeats leading dimensions of 1 as well: they may be unknown.
    shared = [(left[label], right[label]) for label in product.leads if label in right]
    if any(a != b for a, b in shared if isinstance(a, int) and isinstance(b, int)):
        return None
    numbers = {label: size for sizes in given for label, size in sizes.items() if isinstance(size, int)}
    return {**left, **right, **numbers}


def _is_faster(product: _Product, sizes: Mapping[str, Dimension]) -> bool:
    """True if MatMul is at least as fast as far as the sizes are known; others are taken for large ones."""
    known = {label: size for label, size in sizes.items() if isinstance(size, int)}
    (left, left_order), (right, _), _ = product.orders
    if right in (product.k + product.n, product.n + product.k):
        if known.get(product.n, 0) < _LEAST_WIDTH:
            return False  # constant columns are packed, which costs more than it brings where they are few
        if product.leads and (left != left_order or product.turns_result):
            return False  # one product of all rows, of which ONNX Runtime would make one for each of the leading ones
    if left[-1] != product.k and product.m not in known:
        return False  # a single row, which a decoder has, is multiplied slowly where it was a column
    moved = {label for labels, order in product.orders for label in _moved(labels, order)}
    if any(known.get(label, 0) < _LEAST_LEADING for label in moved.intersection(product.leads)):
        return False
    others = moved.union(product.n).difference(product.leads)
    return all(known.get(label, _LEAST) >= _LEAST for label in others)


def _moved(labels: str, order: str) -> str:
    """Return the labels behind those that stay in place."""
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(labels, order, strict=True)))
    return labels[same:]


def _write(node: ir.Node, product: _Product, facts: Facts, names: Names) -> None:
    """Make an Einsum the MatMul that it is: the node keeps its name, what it says of itself, and its result."""
    graph, dtype = node.graph, facts.dtype(node.inputs[0])
    assert graph is not None
    assert dtype is not None
    *operands, (out, out_order) = product.orders
    for index, (labels, order) in enumerate(operands):
        if labels != order:
            value = node.inputs[index]
            turn = _transpose(labels, order, names.new(f"{name_of(node)}.transposed_{index}"))
            turn.replace_input_with(0, value)
            turn.outputs[0].dtype, turn.outputs[0].shape = dtype, facts.shape(value)
            _reorder(turn.outputs[0], labels, order)
            graph.insert_before(node, turn)
            node.replace_input_with(index, turn.outputs[0])
    node.op_type = "MatMul"
    node.attributes.clear()
    if out != out_order:
        y = node.outputs[0]
        turn = _transpose(out_order, out, names.new(f"{name_of(node)}.transposed"))
        shape = facts.shape(y)
        _hand_over(y, turn.outputs[0])
        turn.replace_input_with(0, y)
        y.name, y.dtype, y.shape = names.new(f"{name_of(node)}.product"), dtype, shape
        _reorder(y, out, out_order)
        graph.insert_after(node, turn)


def _transpose(labels: str, order: str, name: str) -> ir.Node:
    """Return a Transpose of a value with these labels, still to be given, that puts them in another order."""
    perm = [labels.index(label) for label in order]
    node = ir.Node("", "Transpose", [None], [ir.AttrInt64s("perm", perm)], name=name)
    node.outputs[0].name = name
    return node


def _reorder(value: ir.Value, labels: str, order: str) -> None:
    """Give a value, whose shape is that of these labels, the shape of them in another order."""
    shape = value.shape
    if shape is not None:
        known = len(shape) == len(labels)  # a model may say anything
        value.shape = ir.Shape([shape[labels.index(label)] for label in order]) if known else None


def _hand_over(y: ir.Value, result: ir.Value) -> None:
    """Let another value be what y was."""
    result.name, result.type, result.shape = y.name, y.type, y.shape
    result.metadata_props.update(y.metadata_props)
    y.metadata_props.clear()
    y.replace_all_uses_with(result, replace_graph_outputs=True)
