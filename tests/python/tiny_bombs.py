"""Models of a few kilobytes from which shape inference, or folding of constants, would make terabytes.

As a program: looks at each in turn with little memory, and prints what was found as a line of JSON.
"""

import itertools
import json
import resource
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from normfuse import inspect

_BYTES = 4 << 30


def function(name: str, body: str) -> str:
    return f'<opset_import: ["": 17, "own": 1], domain: "own"> {name} (p) => (q) {{ {body} }}'


def model(nodes: str = "", functions: Iterable[str] = (), opset: int = 17, **weights: np.ndarray) -> onnx.ModelProto:
    """A model that also has a normalisation and an activation behind it, to be fused whatever stands beside."""
    norm = "n = LayerNormalization <axis = -1> (x, w, b)" if opset >= 17 else "n = InstanceNormalization (x3, w, b)"
    inputs = "float[n, 8] x" + ", float[n, 8, 5] x3" * (opset < 17)
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}, "own": 1]> tiny ({inputs}) => (float[] y) '
        f"{{ {nodes} {norm} y = Relu (n) }} {' '.join(functions)}"
    )
    arrays = {"w": np.ones(8, np.float32), "b": np.zeros(8, np.float32)} | weights
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    if nodes:
        last = made.graph.node[-3].output[0]
        made.graph.output.append(helper.make_tensor_value_info(last, TensorProto.INT64, None))
    return made


def repeated(count: int, node: str) -> str:
    """A node so many times, each of which may read what the one before it gives: {i} and {j} are i and i + 1."""
    return " ".join(node.format(i=i, j=i + 1) for i in range(count))


def constant(name: str, *numbers: float, kind: str = "int64") -> str:
    return f"{name} = Constant <value = {kind}[{len(numbers)}] {{{', '.join(map(str, numbers))}}}> ()"


def doubling(levels: int = 41) -> str:
    """A shape that is joined to itself again and again."""
    return repeated(levels, "s{j} = Concat <axis = 0> (s{i}, s{i})")


SHAPE, SCALARS = "s0 = Shape (x)", "yes = Constant <value = bool {1}> () count = Constant <value = int64 {41}> ()"
#: The last dimension of x, which only inference knows: 8.
DIMENSION = f"s = Shape (x) {constant('last', 1)} d = Gather (s, last)"
#: What makes inference keep each element of a tensor with one dimension.
USED = "c = Cast <to = 7> (r) u = Add (c, c)"
DOUBLES = "Concat <axis = 0> (p, p)"


def _functions() -> dict[str, onnx.ModelProto]:
    once, levels = function("f0", f"q = {DOUBLES}"), range(1, 41)
    before = [once, *(function(f"f{i}", f"t = {DOUBLES} q = own.f{i - 1} (t)") for i in levels)]
    behind = [once, *(function(f"f{i}", f"t = own.f{i - 1} (p) q = Concat <axis = 0> (t, t)") for i in levels)]
    squares = [function("f0", "q = Mul (p, p)")]
    squares += [function(f"f{i}", f"t = own.f{i - 1} (p) q = own.f{i - 1} (t)") for i in range(1, 4)]
    deep = "s = Shape (x) z = own.f40 (s)"
    return {
        "functions, doubled before the call": model(deep, before),
        "functions in the other order": model(deep, before[::-1]),
        "functions, doubled behind the call": model(deep, behind),
        "functions that square": model(f"{DIMENSION} size = own.f3 (d) r = ConstantOfShape (size) {USED}", squares),
    }


def _bodies() -> dict[str, onnx.ModelProto]:
    """Doubling inside of If, Loop and Scan, and a Loop that doubles what it carries."""
    given = "(int64 i, bool go, int64[?] c) => (bool go2, int64[?] c2"
    loops = {
        "If": "r = If (yes) <then_branch = t () => (int64[?] s41) { DOUBLING }, "
        "else_branch = e () => (int64[?] e) { e = Identity (s0) }>",
        "Loop that doubles": f"r = Loop (count, yes, s0) <body = b {given}) "
        "{ c2 = Concat <axis = 0> (c, c) go2 = Identity (go) }>",
        "Loop": f"r0, r = Loop (count, yes, s0) <body = b {given}, int64[?] s41) "
        "{ DOUBLING go2 = Identity (go) c2 = Identity (c) }>",
        "Scan": "r0, r = Scan (s0) <num_scan_inputs = 1, body = b (int64 v) => (int64 v2, int64[?] s41) "
        "{ DOUBLING v2 = Identity (v) }>",
    }
    return {name: model(f"{SHAPE} {SCALARS} {text.replace('DOUBLING', doubling())}") for name, text in loops.items()}


ONE, MATRIX = constant("one", 1), "flat = Concat <axis = 0> (one, size) m = ConstantOfShape (flat)"
TO_ROWS = "r = ReduceMax <axes = [0], keepdims = 0>"
FROM_SIZE = {
    "ConstantOfShape": "r = ConstantOfShape (size)",
    "Expand": f"{ONE} r = Expand (one, size)",
    "Tile": f"{ONE} r = Tile (one, size)",
    "Range": "from = Constant <value = int64 {0}> () step = Constant <value = int64 {1}> () to = Squeeze (size) "
    "r = Range (from, to, step)",
    "Pad": f"{ONE} pads = Concat <axis = 0> (size, size) r = Pad (one, pads)",
    "OneHot": f"index = Constant <value = int64 {{1}}> () {constant('values', 0, 1)} r = OneHot (index, size, values)",
    "Resize": f'{constant("f", 1.0, kind="float")} r = Resize <mode = "nearest"> (f, "", "", size)',
    "Reshape": f"{ONE} {MATRIX} {constant('all', -1)} r = Reshape (m, all)",
    "reduction": f"{ONE} {MATRIX} {TO_ROWS} (m)",
    "Squeeze": f"{ONE} {MATRIX} {constant('axis', 0)} r = Squeeze (m, axis)",
    "Split": "m = ConstantOfShape (size) r, r2 = Split <axis = 0> (m)",
    "EyeLike": f"both = Concat <axis = 0> (size, size) m = ConstantOfShape (both) e = EyeLike (m) {TO_ROWS} (e)",
    "sequence": "m = ConstantOfShape (size) q = SequenceConstruct (m, m) at = Constant <value = int64 {0}> () "
    "r = SequenceAt (q, at)",
}


def _from_shapes(squarings: int) -> dict[str, onnx.ModelProto]:
    """Sizes that are computed from a dimension, 8 squared so often: 2^24, 2^48 elements."""
    names = ["d", *(f"d{i}" for i in range(squarings - 1)), "size"]
    size = " ".join([DIMENSION, *(f"{b} = Mul ({a}, {a})" for a, b in itertools.pairwise(names))])
    return {f"{name} of 8^{2**squarings}": model(f"{size} {text} {USED}") for name, text in FROM_SIZE.items()}


def _ranks() -> dict[str, onnx.ModelProto]:
    """Thousands of dimensions for each of thousands of values."""
    ones, row = constant("ones", *[1] * 5000), repeated(8000, "r{j} = Relu (r{i})")
    unsqueezed = repeated(4000, "r{j} = Unsqueeze (r{i}, axes)").replace("(r0,", "(x,")
    return {
        "rank by Reshape": model(f"{ones} r0 = Reshape (x, ones) {row}"),
        "rank by ConstantOfShape": model(f"{ones} r0 = ConstantOfShape (ones) {row}"),
        "rank by Unsqueeze": model(f"{constant('axes', *range(64))} {unsqueezed}"),
    }


def _many() -> dict[str, onnx.ModelProto]:
    """Each tensor small enough, and thousands of them."""
    casts = repeated(2000, "r{j} = Cast <to = 7> (r{i})")
    matrix = f"{constant('shape', 2, 1_000_000)} m = ConstantOfShape (shape) {TO_ROWS} (m)".replace("r =", "r0 =")
    scaled = repeated(2000, "m{i} = Neg (r0)") + repeated(2000, " k{i} = Mul (x, m{i})")
    gathered = f"s = Shape (x) {constant('zeros', *[0] * 65536)} {repeated(3000, 'r{i} = Gather (s, zeros)')}"
    return {
        "casts": model(f"{constant('n0', 60_000)} r0 = ConstantOfShape (n0) {casts}"),
        "casts of a reduction": model(f"{matrix} {casts}"),
        "Gather": model(gathered),
        "Gather beyond the end": model(f"s = Shape (x) {constant('i', 1 << 62)} r = Gather (s, i)"),
        "constants": model(f"{constant('n0', 1 << 18)} r0 = ConstantOfShape (n0) {scaled}"),
    }


def _upsampled() -> onnx.ModelProto:
    numbers = constant("f0", 1.0, kind="float") + constant(" scales", 2.0**20, kind="float")
    upsampled = repeated(3, "f{j} = Upsample (f{i}, scales)")
    return model(f"{numbers} {upsampled} r = Cast <to = 7> (f3) {USED}", opset=9)


BOMBS = {
    "Concat": lambda: {"Concat": model(f"{SHAPE} {doubling()}")},
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
