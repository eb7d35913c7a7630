"""Measure what the cost model is made of: ``python benchmarks/costs.py``, once for each value of NORMFUSE_ISA.

Prints nanoseconds per element of each activation, normalisation and conversion, alone in a session, on one thread and
in the level-2 cache: ONNX Runtime's own kernels beside the execution provider's (claim=all). What a session costs
without any work is taken off. Then come, in nanoseconds, a LayerNormalization of few rows, a row of few elements, what
further steps behind one cost each row, and what a second thread costs: the time that two take beyond half the time of
one. With names of activations or other rows, only these are measured.
The figures, rounded, stand in ep/spec/activations.toml and prices.toml.
"""

import functools
import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import harness  # noqa: E402
import peers  # noqa: E402

import normfuse  # noqa: E402
from normfuse.graph_rewrites.engine.fused import Activation as FusedKind  # noqa: E402
from normfuse.graph_rewrites.forms.bodies import body_of, write_expression  # noqa: E402
from normfuse.spec import ACTIVATIONS, OPERATOR_DOMAIN, Activation, ProgramStep, write_program  # noqa: E402

Array = np.ndarray[Any, Any]
Call = tuple[Callable[[], None], bool]
"""What runs a session once, and whether the provider that was asked for runs all of it."""

ROWS, WIDTH = 128, 512
IMAGE = (1, 64, 32, 32)  # as many elements
OPSET = 22
INTEGERS = ("uint8", "int8", "uint16", "int16")

LAYER_NORM = "LayerNormalization <axis = -1> (X, scale, bias)"
DEQUANTIZED = "d = DequantizeLinear (X, xs, xz)"
# Nodes from X to Y. Names of constants are those of `constants`, R is a second input, S a scalar that is one.
NORMALIZATIONS = {
    "LayerNorm": f"Y = {LAYER_NORM}",
    "RMSNorm": "Y = RMSNormalization <axis = -1> (X, scale)",
    "Add, LayerNorm": "s = Add (X, R) Y = LayerNormalization <axis = -1> (s, scale, bias)",
    "InstanceNorm": "Y = InstanceNormalization (X, channels, channels)",
    "GroupNorm": "Y = GroupNormalization <num_groups = 16> (X, channels, channels)",
    "MVN": "Y = MeanVarianceNormalization <axes = [2, 3]> (X)",
    "Softmax": "Y = Softmax <axis = -1> (X)",
    "Softmax, IsNaN, Where": "s = Softmax <axis = -1> (X) n = IsNaN (s) Y = Where (n, zero, s)",
    "Where, Softmax": "s = Where (mask, X, lowest) Y = Softmax <axis = -1> (s)",
    "Softmax across": "Y = Softmax <axis = 1> (X)",
    "Softmax of columns": "Y = Softmax <axis = 0> (X)",
    "DQ, Softmax, Q": f"{DEQUANTIZED} r = Softmax (d) Y = QuantizeLinear (r, xs, xz)",
    "Q": "Y = QuantizeLinear (X, xs, xz)",
    "DQ, Relu, Q": f"{DEQUANTIZED} r = Relu (d) Y = QuantizeLinear (r, xs, xz)",
    "DQ, HardSwish, Q": f"{DEQUANTIZED} r = HardSwish (d) Y = QuantizeLinear (r, xs, xz)",
    "LayerNorm, DynQ": f"n = {LAYER_NORM} Y, ys, yz = DynamicQuantizeLinear (n)",
    "Relu": "Y = Relu (X)",
    "Relu, DynQ": "r = Relu (X) Y, ys, yz = DynamicQuantizeLinear (r)",
    "Gelu": "Y = Gelu (X)",
    "Gelu, DynQ": "r = Gelu (X) Y, ys, yz = DynamicQuantizeLinear (r)",
    "Cast, Mul, Relu": "c = Cast <to = 1> (X) d = Mul (c, S) Y = Relu (d)",
    "Cast, Mul, Gelu": "c = Cast <to = 1> (X) d = Mul (c, S) Y = Gelu (d)",
}


def pairs(*operators: str, scales: str = "s s s") -> str:
    """Operators, each with a pair behind it: o0 is the first one's result, and p0 what its pair makes of it."""
    made = ""
    for i, (operator, scale) in enumerate(zip(operators, scales.split(), strict=False)):
        made += (
            f"o{i} = {operator} q{i} = QuantizeLinear (o{i}, {scale}, z) p{i} = DequantizeLinear (q{i}, {scale}, z) "
        )
    return made


def among_pairs(*operators: str, scales: str = "s s s") -> str:
    """Operators of floats as quantisers write them: they read the pair of X as d and e."""
    read = " ".join(f"{name} = DequantizeLinear (q, s, z)" for name in "de")
    return f"q = QuantizeLinear (X, s, z) {read} " + pairs(*operators, scales=scales).replace(
        f"p{len(operators) - 1} =", "Y ="
    )


READ = "d = DequantizeLinear (X, s, z)"
# Three operators that depend on the integers X alone: a table holds their results.
LOOKED_UP = f"{READ} " + pairs("Mul (d, d)", "Add (p0, d)", "Sigmoid (p1)")
# HardSwish, x * (x + 3) / 6, whose sum a pair clips.
HARD_SWISH = "Add (d, three)", "Mul (e, p0)", "Div (p1, six)"
TWO = f"{READ} e = DequantizeLinear (R, s, z)"
AMONG_QUANTISED = {
    "Q": "Y = QuantizeLinear (X, s, z)",
    "table to float": f"{LOOKED_UP} Y = Mul (p2, d)",
    "table, Q": f"{LOOKED_UP} m = Mul (p2, d) Y = QuantizeLinear (m, s, z)",
    "HardSwish among pairs": among_pairs(*HARD_SWISH, scales="s s sixth"),  # the last two pairs are one
    "HardSwish among pairs of other scales": among_pairs(*HARD_SWISH, scales="s s seventh"),
    "SiLU among pairs": among_pairs("Sigmoid (d)", "Mul (e, p0)"),
    "Q, DQ": "q = QuantizeLinear (X, s, z) Y = DequantizeLinear (q, s, z)",
    "DQ, DQ, Add, Q": f"{TWO} o = Add (d, e) Y = QuantizeLinear (o, s, z)",
    "DQ, DQ, Mul, Q": f"{TWO} o = Mul (d, e) Y = QuantizeLinear (o, s, z)",
}


# --- models and sessions ---


def normal(*shape: int, seed: int = 2, mean: float = 0.0, deviation: float = 1.0) -> Array:
    return np.random.default_rng(seed).normal(mean, deviation, shape).astype(np.float32)


def constants(x: Array, integers: str) -> dict[str, Array]:
    numbers = {
        "zero": 0,
        "lowest": -1e9,
        "xs": 0.02,
        "s": 0.9,
        "sixth": 0.9 / 6,
        "seventh": 0.9 / 7,
        "three": 3,
        "six": 6,
    }
    return {name: np.array(value, np.float32) for name, value in numbers.items()} | {
        "xz": np.array(3, np.int8), "z": np.array(3, integers), "mask": np.random.default_rng(3).random(x.shape) < 0.7,
        "scale": normal(x.shape[-1], mean=1), "bias": normal(x.shape[-1]), "channels": normal(IMAGE[1], mean=1),
    }  # fmt: skip


def model(
    nodes: str, inputs: Mapping[str, Array], integers: str = "int8", more: Mapping[str, Array] | None = None
) -> bytes:
    opset = 23 if "RMSNormalization" in nodes else OPSET
    made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> costs () => () {{ {nodes} }}')
    for name, array in inputs.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        made.graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
    made.graph.output.append(helper.make_empty_tensor_value_info("Y"))
    read = {name for node in made.graph.node for name in node.input} - {
        name for node in made.graph.node for name in node.output
    }
    known = constants(inputs["X"], integers) | dict(more or {})
    made.graph.initializer.extend(harness.initializer(name, array) for name, array in known.items() if name in read)
    return bytes(made.SerializeToString())


def call(proto: bytes, inputs: Mapping[str, Array], *, ours: bool, threads: int = 1) -> Call:
    options = normfuse.session_options(claim="all") if ours else onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    providers = None if ours else ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(proto, peers.tuned(options, threads), providers=providers, enable_fallback=0)
    wanted = "NormFuseExecutionProvider" if ours else "CPUExecutionProvider"
    binding = session.io_binding()
    values = {name: harness.to_ort(array) for name, array in inputs.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    (y, *_) = session.run_with_ort_values(["Y"], values)
    binding.bind_ortvalue_output("Y", y)
    is_alone = {each.ep_name for each in session.get_provider_graph_assignment_info()} == {wanted}
    run = functools.partial(session._sess.run_with_iobinding, binding._iobinding, onnxruntime.RunOptions())
    return run, is_alone


def both(nodes: str, inputs: Mapping[str, Array], **options: Any) -> list[Call]:
    """On ONNX Runtime and on normfuse."""
    proto = model(nodes, inputs, **options)
    return [call(proto, inputs, ours=ours) for ours in (False, True)]


def fastest(calls: list[Callable[[], None]], rounds: int = 5, count: int = 40) -> list[float]:
    """Nanoseconds of a call, the calls taking turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, one in enumerate(calls):
            for _ in range(count):
                started = time.perf_counter_ns()
                one()
                best[i] = min(best[i], time.perf_counter_ns() - started)
    return best


def above_empty(calls: list[Call], count: int = 40) -> list[float]:
    """Nanoseconds of calls above an empty session."""
    overhead, *times = fastest([peers.Peer("ORT").overhead(1), *(one for one, _ in calls)], count=count)
    return [each - overhead for each in times]


# --- activations, which have no operator of ONNX's own in many cases ---


class Body:
    """The standard nodes of an activation, as a portable model's function has them."""

    def __init__(self) -> None:
        self.tape = ir.tape.Tape()

    def node(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        return self.tape.op(op_type, inputs, attributes)

    def number(self, value: float) -> ir.Value:
        return self.tape.op("Constant", [], {"value": ir.tensor(np.float32(value))})


def finite_parameters(activation: Activation) -> dict[str, float]:
    """The defaults; the middle of what tests draw from where one is infinite."""
    return {n: p.default if np.isfinite(p.default) else (p.low + p.high) / 2 for n, p in activation.drawn.items()}


def activation_models(name: str) -> tuple[bytes, bytes]:
    """An activation as a portable model's function has it, and as one node of normfuse's own."""
    activation, parameters = ACTIVATIONS[name], finite_parameters(ACTIVATIONS[name])

    def whole(writer: Body, inputs: list[ir.Value], result: ir.Value) -> bytes:
        result.name, result.type = "Y", ir.TensorType(ir.DataType.FLOAT)
        result.shape = ir.Shape([ROWS, WIDTH])
        imports = {"": OPSET, OPERATOR_DOMAIN: 1}
        graph = ir.Graph(inputs, [result], nodes=writer.tape.nodes, name="costs", opset_imports=imports)
        return bytes(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString())

    def inputs_of() -> list[ir.Value]:
        shapes = {"X": [ROWS, WIDTH], **({"slope": [WIDTH]} if activation.has_slope else {})}
        return [ir.Value(name=n, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(s)) for n, s in shapes.items()]

    inputs, writer = inputs_of(), Body()
    body = body_of(FusedKind.of(name, None, **parameters), OPSET)
    if body is not None:
        y = write_expression(body.nodes, {"x": inputs[0], **parameters}, writer)
    else:
        kinds = (s for s in activation.spellings if not s.domain and s.since <= OPSET <= (s.until or OPSET))
        kind = next(kinds)
        numbers = [writer.number(parameters[each]) for each in kind.inputs]
        y = writer.node(kind.op_type, *inputs, *numbers, **{k: parameters[v] for k, v in kind.attributes.items()})
    standard = whole(writer, inputs, writer.node("Identity", y) if y is inputs[0] else y)
    inputs, writer = inputs_of(), Body()
    steps = write_program([ProgramStep(name, "slope" if inputs[1:] else "", parameters)])
    own = writer.tape.op("FusedActivation", inputs, {"steps": steps}, domain=OPERATOR_DOMAIN)
    return standard, whole(writer, inputs, own)


# --- rows of the table ---


def activation_calls(name: str) -> list[Call]:
    inputs = {"X": normal(ROWS, WIDTH)} | ({"slope": normal(WIDTH)} if ACTIVATIONS[name].has_slope else {})
    return [call(proto, inputs, ours=ours) for ours, proto in enumerate(activation_models(name))]  # type: ignore[arg-type]


def normalization_calls(name: str) -> list[Call]:
    nodes = NORMALIZATIONS[name]
    shape = IMAGE if name in ("InstanceNorm", "GroupNorm", "MVN", "Softmax across") else (ROWS, WIDTH)
    x: Array = normal(*shape)
    if name.startswith(("Cast", "DQ")):
        low, kind = (-999, np.int32) if name.startswith("Cast") else (-128, np.int8)
        x = np.random.default_rng(2).integers(low, -low, shape, dtype=kind)
    further = {"R": x, "S": np.array(0.004, np.float32)}  # a scale that is known at run time only
    return both(nodes, {"X": x} | {n: each for n, each in further.items() if f"{n})" in nodes})


def quantised_calls(name: str, stored: str) -> list[Call]:
    """X and Y are of integers, or else of floats."""
    nodes = AMONG_QUANTISED[name]
    kind = stored if nodes.startswith(READ) else np.float32
    values = normal(ROWS, WIDTH, mean=100, deviation=20).astype(kind)
    return both(nodes, dict.fromkeys("XR" if nodes.startswith(TWO) else "X", values), integers=stored)


def dequantization(stored: str, output: str, *, along_row: bool) -> list[Call]:
    """DequantizeLinear; along_row: with a scale for each element of a row."""
    values = np.random.default_rng(2).integers(0, 7, [ROWS, WIDTH]).astype(np.dtype(stored))
    scale = np.full([WIDTH] if along_row else [], 0.02, output)
    return both("Y = DequantizeLinear <axis = 1> (X, scale)", {"X": values}, more={"scale": scale})


# --- single figures ---


def of_rows(label: str, nodes: str, x: Array, rows: int, count: int = 40) -> str:
    """Of a model above an empty session: in all, or a row."""
    theirs, ours = (each / rows for each in above_empty(both(nodes, {"X": x}), count))
    return f"{label}: ORT {theirs:.1f} ns, normfuse {ours:.1f} ns{' a row' * (rows > 1)}"


def row_of_blocks(rows: int = 512, width: int = 64) -> float:
    """Nanoseconds that a row takes more where further steps stand behind a LayerNormalization -> Relu."""
    x = {"X": normal(rows, width)}
    plain, stepped = f"n = {LAYER_NORM} Y = Relu (n)", f"n = {LAYER_NORM} r = Relu (n) Y = Mul (r, scale)"
    without, behind = fastest([call(model(nodes, x), x, ours=True)[0] for nodes in (plain, stepped)], count=200)
    return (behind - without) / rows


def concats() -> str:
    """What a Concat takes for each part, and on ONNX Runtime for each element: chains read these where they lie."""

    def concat(parts: int, width: int, ours: int) -> Callable[[], None]:
        """Alone, or with a pair behind it."""
        names = ["X", *(f"x{i}" for i in range(1, parts))]
        made = f"Concat <axis = 1> ({', '.join(names)})"
        nodes = f"c = {made} q = QuantizeLinear (c, s, z) Y = DequantizeLinear (q, s, z)" if ours else f"Y = {made}"
        inputs = dict.fromkeys(names, normal(1, width, mean=100, deviation=20))
        return both(nodes, inputs, integers="uint16")[ours][0]

    sizes = ((2, 512, 0), (16, 64, 0), (2, 32768, 0), (2, 512, 1), (16, 64, 1))
    few, many, long, few_ours, many_ours = fastest([concat(*each) for each in sizes], count=100, rounds=50)
    each, each_ours, element = (many - few) / 14, (many_ours - few_ours) / 14, (long - few) / (2 * (32768 - 512))
    return f"each part of a Concat: ORT {each:.0f} ns, normfuse {each_ours:.0f} ns; each element: ORT {element:.2f} ns"


def print_repeating() -> None:
    """[6, 11, 288, width] times one number, and times [6, 11, 1, width]."""
    for stored, width in ((s, w) for w in (8, 12) for s in ("float32", "uint8", "uint16")):
        x = normal(6, 11, 288, width, mean=100, deviation=20).astype(stored)
        nodes = "m = Relu (X) Y = Mul (m, R)" if stored == "float32" else AMONG_QUANTISED["DQ, DQ, Mul, Q"]
        operands = (np.full(shape, 3, stored) for shape in ([], [6, 11, 1, width]))
        integers = "int8" if stored == "float32" else stored
        calls = [one for r in operands for one in both(nodes, {"X": x, "R": r}, integers=integers)]
        one_theirs, one_ours, row_theirs, row_ours = above_empty(calls, count=100)
        print(f"[6, 11, 288, {width}] of {stored}: times [6, 11, 1, {width}] takes", end=" ")
        runs = [(row - one) / (6 * 11 * 288) for row, one in ((row_theirs, one_theirs), (row_ours, one_ours))]
        print(
            f"{row_ours / one_ours:.1f} times what one number takes: ORT {runs[0]:.0f} ns, ours {runs[1]:.0f} ns a run"
        )


def hand_off(rows: int) -> float:
    """Nanoseconds that a LayerNormalization of ``rows`` x WIDTH takes on two threads beyond half of one thread's."""
    x = {"X": normal(rows, WIDTH)}
    calls = [call(model(f"Y = {LAYER_NORM}", x), x, ours=True, threads=threads)[0] for threads in (1, 2)]
    overheads = fastest([peers.Peer("ORT").overhead(threads) for threads in (1, 2)])
    one, two = (t - o for t, o in zip(fastest(calls, count=200), overheads, strict=True))
    return two - one / 2


def main() -> None:
    print(f"normfuse {normfuse.__version__}, instruction set: {os.environ.get('NORMFUSE_ISA', 'the best')}")
    overhead = fastest([peers.Peer("ORT").overhead(1)])[0]
    print(f"empty session {overhead:.0f} ns\n\n| operator | ORT ns/element | normfuse | ratio |\n|---|---|---|---|")

    def print_row(name: str, calls: list[Call]) -> None:
        a, b = ((t - overhead) / (ROWS * WIDTH) for t in fastest([one for one, _ in calls]))
        print(f"| {name} | {a:.3f} | {b:.3f} | {a / b:.2f}{'' if calls[1][1] else ' (not claimed)'} |")

    names = sys.argv[1:]
    for of, calls in ((ACTIVATIONS, activation_calls), (NORMALIZATIONS, normalization_calls)):
        for name in of if not names else [each for each in of if each in names]:
            print_row(name, calls(name))
    for name, stored in itertools.product(AMONG_QUANTISED, INTEGERS):
        if not names or name in names:
            print_row(f"{name} of {stored}", quantised_calls(name, stored))
    if names:
        return
    for stored, along_row in itertools.product(("int8", "int16", "int32", "int4", "float8_e4m3fn"), (False, True)):
        print_row(f"DQ of {stored}{', along rows' * along_row}", dequantization(stored, "float32", along_row=along_row))
    print_row("DQ of int8 to float16", dequantization("int8", "float16", along_row=False))
    for rows in (1, 64, 128):
        print(of_rows(f"LayerNorm of {rows} x 768", f"Y = {LAYER_NORM}", normal(rows, 768), 1, count=400))
    short = {name: NORMALIZATIONS[name].replace("[2, 3]", "[2]") for name in ("LayerNorm", "RMSNorm", "MVN")}
    for name, nodes in short.items():
        print(of_rows(f"{name}, rows of 16", nodes, normal(1, ROWS * WIDTH // 16, 16), ROWS * WIDTH // 16))
    softmax = "s = Add (X, X) Y = Softmax <axis = -1> (s)"
    print(of_rows("Add, Softmax, rows of 34", softmax, normal(1, 12, 34, 34), 12 * 34))
    print_repeating()
    print(concats())
    print(f"a row with further steps behind it: {row_of_blocks():.0f} ns more")
    for rows in (256, 512, 1024):
        print(f"second thread, LayerNorm of {rows} rows: {hand_off(rows):.0f} ns")


if __name__ == "__main__":
    main()
