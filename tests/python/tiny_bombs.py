"""Models of a few kilobytes from which shape inference, or folding of constants, would make terabytes.

As a program: looks at each in turn with little memory, and prints what was found as a line of JSON.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from normfuse import inspect

Nodes = list[onnx.NodeProto]

_node = helper.make_node
_BYTES = 4 << 30


def call(name: str, given: str = "p", result: str = "q") -> onnx.NodeProto:
    return _node(name, [given], [result], domain="own")


def function(name: str, *nodes: onnx.NodeProto) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["p"], ["q"], nodes, opsets)


def model(
    nodes: Nodes,
    initializers: dict[str, np.ndarray] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    """A model that also has a normalisation and an activation behind it, to be fused whatever stands beside."""
    weights = {"w": np.ones(8, np.float32), "b": np.zeros(8, np.float32)} | (initializers or {})
    norm = [
        _node("InstanceNormalization", ["x3", "w", "b"], ["n"], name="norm")
        if opset < 17
        else _node("LayerNormalization", ["x", "w", "b"], ["n"], name="norm", axis=-1),
        _node("Relu", ["n"], ["y"], name="relu"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])]
    if opset < 17:
        inputs.append(helper.make_tensor_value_info("x3", TensorProto.FLOAT, ["n", 8, 5]))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    outputs += [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.INT64, None)] if nodes else []
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([*nodes, *norm], "tiny", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)


def doubling(levels: int = 41, first: str = "s0") -> Nodes:
    """A shape that is joined to itself again and again."""
    names = [first, *(f"s{i}" for i in range(1, levels + 1))]
    return [_node("Concat", [a, a], [b], axis=0) for a, b in itertools.pairwise(names)]


def _constant(name: str, value: Any, dtype: Any = np.int64) -> onnx.NodeProto:
    return _node("Constant", [], [name], value=numpy_helper.from_array(np.array(value, dtype), name))


def _body(nodes: Nodes, inputs: dict[str, Any], outputs: dict[str, Any]) -> onnx.GraphProto:
    infos = [[helper.make_tensor_value_info(n, *given) for n, given in part.items()] for part in (inputs, outputs)]
    return helper.make_graph(nodes, "body", *infos)


def _functions() -> dict[str, onnx.ModelProto]:
    once = _node("Concat", ["p", "p"], ["q"], axis=0)
    before = [
        function(f"f{i}", _node("Concat", ["p", "p"], ["t"], axis=0), call(f"f{i - 1}", "t")) for i in range(1, 41)
    ]
    behind = [
        function(f"f{i}", call(f"f{i - 1}", "p", "t"), _node("Concat", ["t", "t"], ["q"], axis=0)) for i in range(1, 41)
    ]
    deep = [_node("Shape", ["x"], ["s"]), call("f40", "s", "z")]
    squares = [function("f0", _node("Mul", ["p", "p"], ["q"]))]
    squares += [function(f"f{i}", call(f"f{i - 1}", "p", "t"), call(f"f{i - 1}", "t", "q")) for i in range(1, 4)]
    squared = [*_dimension(), call("f3", "d", "n2"), _node("ConstantOfShape", ["n2"], ["r"]), *_used("r")]
    return {
        "functions, doubled before the call": model(deep, functions=[function("f0", once), *before]),
        "functions in the other order": model(deep, functions=[function("f0", once), *before][::-1]),
        "functions, doubled behind the call": model(deep, functions=[function("f0", once), *behind]),
        "functions that square": model(squared, functions=squares),
    }


def _bodies() -> dict[str, onnx.ModelProto]:
    """Doubling inside of If, Loop and Scan, and a Loop that doubles what it carries."""
    shape, yes, count = _node("Shape", ["x"], ["s0"]), _constant("yes", True, np.bool_), _constant("count", 41)
    number, flag, open_ = (TensorProto.INT64, []), (TensorProto.BOOL, []), (TensorProto.INT64, [None])
    other = _body([_node("Identity", ["s0"], ["e"])], {}, {"e": open_})
    kept = [_node("Identity", ["go"], ["go2"])]
    carried = _body(
        [_node("Concat", ["c", "c"], ["c2"], axis=0), *kept],
        {"i": number, "go": flag, "c": open_},
        {"go2": flag, "c2": open_},
    )
    stacked = _body(
        [*doubling(), *kept, _node("Identity", ["c"], ["c2"])],
        {"i": number, "go": flag, "c": open_},
        {"go2": flag, "c2": open_, "s41": open_},
    )
    scanned = _body([*doubling(), _node("Identity", ["v"], ["v2"])], {"v": number}, {"v2": number, "s41": open_})
    return {
        "If": model(
            [
                shape,
                yes,
                _node("If", ["yes"], ["r"], then_branch=_body(doubling(), {}, {"s41": open_}), else_branch=other),
            ]
        ),
        "Loop that doubles": model([shape, yes, count, _node("Loop", ["count", "yes", "s0"], ["r"], body=carried)]),
        "Loop": model([shape, yes, count, _node("Loop", ["count", "yes", "s0"], ["r0", "r"], body=stacked)]),
        "Scan": model([shape, _node("Scan", ["s0"], ["r0", "r"], body=scanned, num_scan_inputs=1)]),
    }


def _dimension() -> Nodes:
    """The last dimension of x, which only inference knows: 8."""
    return [_node("Shape", ["x"], ["s"]), _constant("last", [1]), _node("Gather", ["s", "last"], ["d"])]


def _used(value: str) -> Nodes:
    """What makes inference keep each element of a tensor with one dimension."""
    return [
        _node("Cast", [value], [f"{value} cast"], to=TensorProto.INT64),
        _node("Add", [f"{value} cast"] * 2, [f"{value} sum"]),
    ]


def _from_shapes(squarings: int) -> dict[str, onnx.ModelProto]:
    """Sizes that are computed from a dimension, 8 squared so often: 2^24, 2^48 elements."""
    names = ["d", *(f"d{i}" for i in range(squarings))]
    size = [*_dimension(), *(_node("Mul", [a, a], [b]) for a, b in itertools.pairwise(names))]
    n = names[-1]
    one, flat = _constant("one", [1]), _node("Concat", ["one", n], ["one n"], axis=0)
    matrix = [one, flat, _node("ConstantOfShape", ["one n"], ["m"])]
    makers: dict[str, Nodes] = {
        "ConstantOfShape": [_node("ConstantOfShape", [n], ["r"])],
        "Expand": [one, _node("Expand", ["one", n], ["r"])],
        "Tile": [one, _node("Tile", ["one", n], ["r"])],
        "Range": [
            *(_constant("from", 0), _constant("step", 1), _node("Squeeze", [n], ["to"])),
            _node("Range", ["from", "to", "step"], ["r"]),
        ],
        "Pad": [one, _node("Concat", [n, n], ["pads"], axis=0), _node("Pad", ["one", "pads"], ["r"])],
        "OneHot": [_constant("index", 1), _constant("values", [0, 1]), _node("OneHot", ["index", n, "values"], ["r"])],
        "Resize": [_constant("f", [1.0], np.float32), _node("Resize", ["f", "", "", n], ["r"], mode="nearest")],
        "Reshape": [*matrix, _constant("all", [-1]), _node("Reshape", ["m", "all"], ["r"])],
        "reduction": [*matrix, _node("ReduceMax", ["m"], ["r"], axes=[0], keepdims=0)],
        "Squeeze": [*matrix, _constant("axis", [0]), _node("Squeeze", ["m", "axis"], ["r"])],
        "Split": [_node("ConstantOfShape", [n], ["m"]), _node("Split", ["m"], ["r", "r2"], axis=0)],
        "EyeLike": [
            *(_node("Concat", [n, n], ["n n"], axis=0), _node("ConstantOfShape", ["n n"], ["m"])),
            *(_node("EyeLike", ["m"], ["e"]), _node("ReduceMax", ["e"], ["r"], axes=[0], keepdims=0)),
        ],
        "sequence": [
            *(_node("ConstantOfShape", [n], ["m"]), _node("SequenceConstruct", ["m", "m"], ["q"])),
            *(_constant("at", 0), _node("SequenceAt", ["q", "at"], ["r"])),
        ],
    }
    return {f"{name} of 8^{2**squarings}": model([*size, *nodes, *_used("r")]) for name, nodes in makers.items()}


def _ranks() -> dict[str, onnx.ModelProto]:
    """Thousands of dimensions for each of thousands of values."""
    row = [_node("Relu", [f"r{i}"], [f"r{i + 1}"]) for i in range(8000)]
    ones = _constant("ones", np.ones(5000))
    axes = _constant("axes", np.arange(64))
    unsqueezed = [_node("Unsqueeze", [f"r{i}" if i else "x", "axes"], [f"r{i + 1}"]) for i in range(4000)]
    return {
        "rank by Reshape": model([ones, _node("Reshape", ["x", "ones"], ["r0"]), *row]),
        "rank by ConstantOfShape": model([ones, _node("ConstantOfShape", ["ones"], ["r0"]), *row]),
        "rank by Unsqueeze": model([axes, *unsqueezed]),
    }


def _many() -> dict[str, onnx.ModelProto]:
    """Each tensor small enough, and thousands of them."""
    casts = [_node("Cast", [f"r{i}"], [f"r{i + 1}"], to=TensorProto.INT64) for i in range(2000)]
    zeros = _constant("zeros", np.zeros(1 << 16))
    gathered = [_node("Gather", ["s", "zeros"], [f"r{i}"]) for i in range(3000)]
    matrix = [_constant("shape", [2, 1_000_000]), _node("ConstantOfShape", ["shape"], ["m"])]
    negated = [_node("Neg", ["r0"], [f"m{i}"]) for i in range(2000)]
    scaled = [_node("Mul", ["x", f"m{i}"], [f"k{i}"]) for i in range(2000)]
    return {
        "casts": model([_constant("n0", [60_000]), _node("ConstantOfShape", ["n0"], ["r0"]), *casts]),
        "casts of a reduction": model([*matrix, _node("ReduceMax", ["m"], ["r0"], axes=[0], keepdims=0), *casts]),
        "Gather": model([_node("Shape", ["x"], ["s"]), zeros, *gathered]),
        "Gather beyond the end": model(
            [_node("Shape", ["x"], ["s"]), _constant("i", [1 << 62]), _node("Gather", ["s", "i"], ["r"])]
        ),
        "constants": model([_constant("n0", [1 << 18]), _node("ConstantOfShape", ["n0"], ["r0"]), *negated, *scaled]),
    }


def _upsampled() -> onnx.ModelProto:
    scales = _constant("scales", [2.0**20], np.float32)
    nodes = [_constant("f", [1.0], np.float32), scales]
    nodes += [_node("Upsample", [f"f{i}" if i else "f", "scales"], [f"f{i + 1}"]) for i in range(3)]
    return model([*nodes, _node("Cast", ["f3"], ["r"], to=TensorProto.INT64), *_used("r")], opset=9)


BOMBS = {
    "Concat": lambda: {"Concat": model([_node("Shape", ["x"], ["s0"]), *doubling()])},
    "functions": _functions,
    "bodies": _bodies,
    "2^24": lambda: _from_shapes(3),
    "2^48": lambda: _from_shapes(4),
    "Upsample": lambda: {"Upsample": _upsampled()},
    "ranks": _ranks,
    "many": _many,
    # Of each of these the quickest.
    "rank": lambda: {"rank by Unsqueeze": _ranks()["rank by Unsqueeze"]},
    "casts": lambda: {"casts": _many()["casts"]},
}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    for group in sys.argv[1:]:
        for name, bomb in BOMBS[group]().items():
            fused = "FusedNormalization" in [site.fused_into for site in inspect(bomb)]
            print(json.dumps({"name": name, "fused": fused}), flush=True)
    # Far from the limit: a failed allocation was not just caught and forgotten.
    # Not ru_maxrss: a process inherits that from the one that started it.
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM:"))
    print(json.dumps({"name": "peak", "kilobytes": int(peak)}))
