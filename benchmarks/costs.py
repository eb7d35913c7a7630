"""Measure what the cost model is made of: ``python benchmarks/costs.py``, once for each value of NORMFUSE_ISA.

Prints nanoseconds per element of each activation, normalisation and conversion, alone in a session, on one thread and
in the level-2 cache: ONNX Runtime's own kernels beside the execution provider's (claim=all). What a session costs
without any work is taken off. Then come, in nanoseconds, a LayerNormalization of few rows, a row of few elements, what
further steps behind one cost each row, and what a second thread costs: the time that two take beyond half the time of
one. With names of activations or other rows, only these are measured.
The figures, rounded, stand in ep/spec/activations.toml and prices.toml.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper, numpy_helper

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import harness  # noqa: E402
import peers  # noqa: E402

import normfuse  # noqa: E402
from normfuse.graph_rewrites.engine.fused import Activation as FusedKind  # noqa: E402
from normfuse.graph_rewrites.forms.bodies import body_of, write_expression  # noqa: E402
from normfuse.spec import ACTIVATIONS, OPERATOR_DOMAIN, Activation, ProgramStep, write_program  # noqa: E402

ROWS, WIDTH = 128, 512
OPSET = 22
NORMALIZATIONS = (
    *("LayerNorm", "RMSNorm", "Add, LayerNorm", "InstanceNorm", "GroupNorm", "MVN"),
    *("Softmax", "Softmax, IsNaN, Where", "Where, Softmax", "Softmax across", "Softmax of columns", "DQ, Softmax, Q"),
    *("Q", "DQ, Relu, Q", "DQ, HardSwish, Q"),
    *("LayerNorm, DynQ", "Relu", "Relu, DynQ", "Gelu", "Gelu, DynQ", "Cast, Mul, Relu", "Cast, Mul, Gelu"),
)
IMAGE = [1, 64, 32, 32]  # as many elements


def node(op: str, inputs: str, output: str = "Y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), output.split(), name=f"{op}_{output}", **attributes)


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


def inputs_of(name: str) -> list[ir.Value]:
    """X, and the slope where an activation has one."""
    shapes = {"X": [ROWS, WIDTH], **({"slope": [WIDTH]} if ACTIVATIONS[name].has_slope else {})}
    return [ir.Value(name=n, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(s)) for n, s in shapes.items()]


def in_standard_nodes(name: str) -> bytes:
    """An activation as a portable model's function has it."""
    inputs, writer = inputs_of(name), Body()
    parameters = finite_parameters(ACTIVATIONS[name])
    body = body_of(FusedKind.of(name, None, **parameters), OPSET)
    if body is not None:
        y = write_expression(body.nodes, {"x": inputs[0], **parameters}, writer)
    else:
        kinds = (s for s in ACTIVATIONS[name].spellings if not s.domain and s.since <= OPSET <= (s.until or OPSET))
        kind = next(kinds)
        numbers = [writer.number(parameters[each]) for each in kind.inputs]
        y = writer.node(kind.op_type, *inputs, *numbers, **{k: parameters[v] for k, v in kind.attributes.items()})
    return whole_model(writer.tape, inputs, writer.node("Identity", y) if y is inputs[0] else y)


def as_own_operator(name: str) -> bytes:
    """The same as one node of normfuse's own."""
    inputs, tape = inputs_of(name), ir.tape.Tape()
    step = ProgramStep(name, "slope" if inputs[1:] else "", finite_parameters(ACTIVATIONS[name]))
    y = tape.op("FusedActivation", inputs, {"steps": write_program([step])}, domain=OPERATOR_DOMAIN)
    return whole_model(tape, inputs, y)


def whole_model(tape: ir.tape.Tape, inputs: list[ir.Value], result: ir.Value) -> bytes:
    result.name, result.type = "Y", ir.TensorType(ir.DataType.FLOAT)
    result.shape = ir.Shape([ROWS, WIDTH])
    graph = ir.Graph(inputs, [result], nodes=tape.nodes, name="costs", opset_imports={"": OPSET, OPERATOR_DOMAIN: 1})
    return bytes(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString())


def normalization_nodes(name: str) -> list[onnx.NodeProto]:
    return {
        "LayerNorm": [node("LayerNormalization", "X scale bias", axis=-1)],
        "RMSNorm": [node("RMSNormalization", "X scale", axis=-1)],
        "Add, LayerNorm": [node("Add", "X R", "s"), node("LayerNormalization", "s scale bias", axis=-1)],
        "InstanceNorm": [node("InstanceNormalization", "X channels channels")],
        "GroupNorm": [node("GroupNormalization", "X channels channels", num_groups=16)],
        "MVN": [node("MeanVarianceNormalization", "X", axes=[2, 3])],
        "Softmax": [node("Softmax", "X", axis=-1)],
        "Softmax, IsNaN, Where": [
            node("Softmax", "X", "s", axis=-1),
            node("IsNaN", "s", "n"),
            node("Where", "n zero s"),
        ],
        "Where, Softmax": [node("Where", "mask X lowest", "s"), node("Softmax", "s", axis=-1)],
        "Softmax across": [node("Softmax", "X", axis=1)],
        "Softmax of columns": [node("Softmax", "X", axis=0)],
        "Q": [node("QuantizeLinear", "X xs xz")],
        "LayerNorm, DynQ": [
            node("LayerNormalization", "X scale bias", "n", axis=-1),
            node("DynamicQuantizeLinear", "n", "Y ys yz"),
        ],
        **{op: [node(op, "X")] for op in ("Relu", "Gelu")},
        **{
            f"{op}, DynQ": [node(op, "X", "r"), node("DynamicQuantizeLinear", "r", "Y ys yz")]
            for op in ("Relu", "Gelu")
        },
        **{
            f"Cast, Mul, {op}": [node("Cast", "X", "c", to=1), node("Mul", "c S", "d"), node(op, "d")]
            for op in ("Relu", "Gelu")
        },
        **{
            f"DQ, {op}, Q": [
                node("DequantizeLinear", "X xs xz", "d"),
                node(op, "d", "r"),
                node("QuantizeLinear", "r xs xz"),
            ]
            for op in ("Relu", "HardSwish", "Softmax")
        },
    }[name]


def model(nodes: list[onnx.NodeProto], x: np.ndarray[Any, Any]) -> bytes:
    normal = np.random.default_rng(1).normal
    constants = {
        "R": None, "slope": normal(0, 1, WIDTH), "low": np.array(-1.0), "high": np.array(1.0),
        "scale": normal(1, 1, x.shape[-1]), "bias": normal(0, 1, x.shape[-1]), "channels": normal(1, 1, IMAGE[1]),
        "xs": np.array(0.02), "xz": np.array(3, np.int8), "zero": np.array(0.0),
        "mask": np.random.default_rng(3).random(x.shape) < 0.7, "lowest": np.array(-1e9),
    }  # fmt: skip
    used = {name for n in nodes for name in n.input} & set(constants)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs = [helper.make_tensor_value_info(name, kind, x.shape) for name in ("X", *(["R"] if "R" in used else []))]
    if any("S" in n.input for n in nodes):  # a scale that is known at run time only
        inputs.append(helper.make_tensor_value_info("S", onnx.TensorProto.FLOAT, []))
    tensors = [
        numpy_helper.from_array(v if v.dtype in (np.int8, np.bool_) else v.astype(np.float32), k)
        for k, v in constants.items()
        if k in used and v is not None
    ]
    graph = helper.make_graph(nodes, "costs", inputs, [helper.make_empty_tensor_value_info("Y")], tensors)
    opset = 23 if any(n.op_type == "RMSNormalization" for n in nodes) else 22
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return bytes(made.SerializeToString())


def input_for(name: str) -> np.ndarray[Any, Any]:
    shape = IMAGE if name in ("InstanceNorm", "GroupNorm", "MVN", "Softmax across") else [ROWS, WIDTH]
    if name.startswith("Cast"):
        return np.random.default_rng(2).integers(-999, 999, shape, dtype=np.int32)
    if name.startswith("DQ"):
        return np.random.default_rng(2).integers(-128, 128, shape, dtype=np.int8)
    return np.random.default_rng(2).normal(0, 1, shape).astype(np.float32)


def session(proto: bytes, *, ours: bool, threads: int = 1) -> tuple[onnxruntime.InferenceSession, bool]:
    """A session, and whether the provider that was asked for runs all of it."""
    if ours:
        options = peers.tuned(normfuse.session_options(claim="all"), threads)
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        made = onnxruntime.InferenceSession(proto, options, enable_fallback=0)
        return made, {i.ep_name for i in made.get_provider_graph_assignment_info()} == {"NormFuseExecutionProvider"}
    options = peers.tuned(onnxruntime.SessionOptions(), threads)
    return onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"]), True


def call(
    proto: bytes, feeds: dict[str, np.ndarray[Any, Any]], *, ours: bool, threads: int = 1
) -> tuple[Callable[[], None], bool]:
    made, claimed = session(proto, ours=ours, threads=threads)
    return peers.bound(made, {i.name: feeds[i.name] for i in made.get_inputs()})[0], claimed


def dequantization(stored: str, output: str, *, along_row: bool) -> list[tuple[Callable[[], None], bool]]:
    """DequantizeLinear on ONNX Runtime and on normfuse; along_row: with a scale for each element of a row."""
    to = np.dtype(output)
    scale = np.full([WIDTH] if along_row else [], 0.02, to)
    values = np.random.default_rng(2).integers(0, 7, [ROWS, WIDTH]).astype(np.dtype(stored))
    x = harness.to_ort(values)
    made = node("DequantizeLinear", "X scale", axis=1)
    graph = helper.make_graph(
        [made],
        "costs",
        [helper.make_tensor_value_info("X", x.element_type(), values.shape)],
        [helper.make_tensor_value_info("Y", helper.np_dtype_to_tensor_dtype(to), values.shape)],
        [numpy_helper.from_array(scale, "scale")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    calls = []
    for ours in (False, True):
        one, claimed = session(proto, ours=ours)
        binding = one.io_binding()
        binding.bind_ortvalue_input("X", x)
        binding.bind_ortvalue_output("Y", peers.aligned(np.zeros(values.shape, to)))
        calls.append((functools.partial(one.run_with_iobinding, binding), claimed))
    return calls


def looked_up(*last: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Operators with a pair behind each, which depend on the integers X alone: a table holds their results."""
    made = [node("DequantizeLinear", "X s z", "d")]
    for i, (op, inputs) in enumerate((("Mul", "d d"), ("Add", "p0 d"), ("Sigmoid", "p1"))):
        made += [node(op, inputs, f"o{i}"), node("QuantizeLinear", f"o{i} s z", f"q{i}")]
        made.append(node("DequantizeLinear", f"q{i} s z", f"p{i}"))
    return [*made, *last]


def among_pairs(*steps: tuple[str, str, str]) -> list[onnx.NodeProto]:
    """Operators of floats as quantisers write them: their names, inputs, and the scale of the pair behind each.

    They read the pair of X as d and e, those of each other as p0, p1 and so on.
    """
    made = [node("QuantizeLinear", "X s z", "q")]
    made += [node("DequantizeLinear", "q s z", read) for read in ("d", "e")]
    for i, (op, inputs, scale) in enumerate(steps):
        made += [node(op, inputs, f"o{i}"), node("QuantizeLinear", f"o{i} {scale} z", f"q{i}")]
        made.append(node("DequantizeLinear", f"q{i} {scale} z", "Y" if i == len(steps) - 1 else f"p{i}"))
    return made


def hard_swish(last_scale: str) -> list[onnx.NodeProto]:
    """HardSwish, x * (x + 3) / 6, whose sum a pair clips."""
    return among_pairs(("Add", "d three", "s"), ("Mul", "e p0", "s"), ("Div", "p1 six", last_scale))


AMONG_QUANTISED = {
    "Q": [node("QuantizeLinear", "X s z")],
    "table to float": looked_up(node("Mul", "p2 d")),
    "table, Q": looked_up(node("Mul", "p2 d", "m"), node("QuantizeLinear", "m s z")),
    "HardSwish among pairs": hard_swish("sixth"),  # the last two pairs are one
    "HardSwish among pairs of other scales": hard_swish("seventh"),
    "SiLU among pairs": among_pairs(("Sigmoid", "d", "s"), ("Mul", "e p0", "s")),
    "Q, DQ": [node("QuantizeLinear", "X s z", "q"), node("DequantizeLinear", "q s z")],
    **{
        f"DQ, DQ, {op}, Q": [
            node("DequantizeLinear", "X s z", "d"),
            node("DequantizeLinear", "R s z", "e"),
            node(op, "d e", "o"),
            node("QuantizeLinear", "o s z"),
        ]
        for op in ("Add", "Mul")
    },
}


def among_quantised(name: str, stored: str) -> list[tuple[Callable[[], None], bool]]:
    """Nodes of AMONG_QUANTISED on ONNX Runtime and on normfuse: X and Y are of integers, or else of floats."""
    kind, nodes, floats = np.dtype(stored), AMONG_QUANTISED[name], np.dtype(np.float32)
    reads_floats, writes_floats = nodes[0].op_type == "QuantizeLinear", nodes[-1].op_type != "QuantizeLinear"
    values = np.random.default_rng(2).normal(100, 20, [ROWS, WIDTH]).astype(floats if reads_floats else kind)
    inputs = {n: values for n in "XR" if any(n in each.input for each in nodes)}
    return on_tensors(nodes, inputs, np.zeros_like(values, floats if writes_floats else kind), kind)


def on_tensors(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, np.ndarray[Any, Any]],
    output: np.ndarray[Any, Any],
    integers: np.dtype[Any],
) -> list[tuple[Callable[[], None], bool]]:
    """Nodes that quantise to integers by s and z, or by a part of s, on ONNX Runtime and on normfuse."""
    tensors = {**inputs, "Y": output}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for n, each in tensors.items()
    ]
    numbers = {"s": 0.9, "sixth": 0.9 / 6, "seventh": 0.9 / 7, "three": 3.0, "six": 6.0}
    constants = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in numbers.items()]
    constants.append(numpy_helper.from_array(np.array(3, integers), "z"))
    graph = helper.make_graph(nodes, "costs", infos[:-1], infos[-1:], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    calls = []
    for ours in (False, True):
        one, claimed = session(proto, ours=ours)
        binding = one.io_binding()
        for each, values in inputs.items():
            binding.bind_ortvalue_input(each, peers.aligned(values))
        binding.bind_ortvalue_output("Y", peers.aligned(output))
        calls.append((functools.partial(one.run_with_iobinding, binding), claimed))
    return calls


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


def few_rows(rows: int) -> str:
    """A LayerNormalization of ``rows`` x 768, as most models have it, above an empty session."""
    x = np.random.default_rng(2).normal(0, 1, [rows, 768]).astype(np.float32)
    proto = model(normalization_nodes("LayerNorm"), x)
    calls = [call(proto, {"X": x}, ours=ours)[0] for ours in (False, True)]
    overhead, theirs, ours = fastest([peers.OnnxRuntime().overhead(1), *calls], count=400)
    return f"LayerNorm of {rows} x 768: ORT {theirs - overhead:.0f} ns, normfuse {ours - overhead:.0f} ns"


def row_of_blocks(rows: int = 512, width: int = 64) -> float:
    """Nanoseconds that a row takes more where further steps stand behind a LayerNormalization -> Relu."""
    x = np.random.default_rng(2).normal(0, 1, [rows, width]).astype(np.float32)
    normal = node("LayerNormalization", "X scale bias", "n", axis=-1)
    plain = [normal, node("Relu", "n")]
    stepped = [normal, node("Relu", "n", "r"), node("Mul", "r scale")]
    calls = [call(model(nodes, x), {"X": x}, ours=True)[0] for nodes in (plain, stepped)]
    without, behind = fastest(calls, count=200)
    return (behind - without) / rows


def concat(parts: int, width: int, *, with_pair: bool) -> list[Callable[[], None]]:
    """A Concat of ``parts`` x ``width``, alone or with a pair behind it: on ONNX Runtime and on normfuse."""
    values = np.random.default_rng(2).normal(100, 20, [1, width]).astype(np.float32)
    inputs = {f"x{i}": values for i in range(parts)}
    nodes = [node("Concat", " ".join(inputs), "c" if with_pair else "Y", axis=1)]
    if with_pair:
        nodes += [node("QuantizeLinear", "c s z", "q"), node("DequantizeLinear", "q s z")]
    output = np.zeros([1, parts * width], np.float32)
    return [one for one, _ in on_tensors(nodes, inputs, output, np.dtype(np.uint16))]


def concats() -> str:
    """What a Concat takes for each part, and on ONNX Runtime for each element: chains read these where they lie."""
    sizes = ((2, 512), (16, 64), (2, 32768))
    theirs = [concat(*size, with_pair=False)[0] for size in sizes]
    ours = [concat(*size, with_pair=True)[1] for size in sizes[:2]]
    few, many, long, few_ours, many_ours = fastest([*theirs, *ours], count=100, rounds=50)
    each, each_ours, element = (many - few) / 14, (many_ours - few_ours) / 14, (long - few) / (2 * (32768 - 512))
    return f"each part of a Concat: ORT {each:.0f} ns, normfuse {each_ours:.0f} ns; each element: ORT {element:.2f} ns"


def short_rows(name: str, width: int = 16) -> str:
    """A normalisation of many rows, or groups, of ``width`` elements, above an empty session."""
    shape = [1, ROWS * WIDTH // width, width]
    x = np.random.default_rng(2).normal(0, 1, shape).astype(np.float32)
    nodes = [node("MeanVarianceNormalization", "X", axes=[2])] if name == "MVN" else normalization_nodes(name)
    proto = model(nodes, x)
    overhead, *times = fastest(
        [peers.OnnxRuntime().overhead(1), *(call(proto, {"X": x}, ours=ours)[0] for ours in (False, True))]
    )
    theirs, ours = ((each - overhead) / shape[1] for each in times)
    return f"{name}, rows of {width}: ORT {theirs:.1f} ns, normfuse {ours:.1f} ns a row"


def short_softmax_rows(width: int = 34) -> str:
    """A softmax of many rows of ``width`` elements behind an Add, above an empty session."""
    x = np.random.default_rng(2).normal(0, 1, [1, 12, width, width]).astype(np.float32)
    proto = model([node("Add", "X X", "s"), node("Softmax", "s", axis=-1)], x)
    overhead, *times = fastest(
        [peers.OnnxRuntime().overhead(1), *(call(proto, {"X": x}, ours=ours)[0] for ours in (False, True))]
    )
    theirs, ours = ((each - overhead) / (12 * width) for each in times)
    return f"Add, Softmax, rows of {width}: ORT {theirs:.1f} ns, normfuse {ours:.1f} ns a row"


def repeating(stored: str, width: int) -> dict[str, list[float]]:
    """[6, 11, 288, width] times one number, and times [6, 11, 1, width]: nanoseconds on ONNX Runtime and normfuse."""
    x = np.random.default_rng(2).normal(100, 20, [6, 11, 288, width]).astype(stored)
    nodes = AMONG_QUANTISED["DQ, DQ, Mul, Q"] if stored != "float32" else [node("Relu", "X", "m"), node("Mul", "m R")]
    shapes = {"one number": [], "a row": [6, 11, 1, width]}
    calls = {
        operand: on_tensors(nodes, {"X": x, "R": np.full(shape, 3, stored)}, np.zeros_like(x), _integers_of(stored))
        for operand, shape in shapes.items()
    }
    every = fastest([peers.OnnxRuntime().overhead(1), *(one for each in calls.values() for one, _ in each)], count=100)
    overhead, *times = every
    return {operand: [t - overhead for t in times[2 * i : 2 * i + 2]] for i, operand in enumerate(calls)}


def _integers_of(stored: str) -> np.dtype[Any]:
    return np.dtype(np.int8 if stored == "float32" else stored)


def print_repeating() -> None:
    for stored in ("float32", "uint8", "uint16"):
        found = repeating(stored, 8)
        (_, one), (_, row) = found["one number"], found["a row"]
        print(f"[6, 11, 288, 8] of {stored}: times [6, 11, 1, 8] takes {row / one:.1f} times what one number takes")
    for stored in ("float32", "uint16"):  # 12 does not divide a block
        found, runs = repeating(stored, 12), 6 * 11 * 288
        theirs, ours = ((row - one) / runs for one, row in zip(found["one number"], found["a row"], strict=True))
        print(f"[6, 11, 288, 12] of {stored}, times [6, 11, 1, 12]: ORT {theirs:.0f} ns, normfuse {ours:.0f} ns a run")


def hand_off(rows: int) -> float:
    """Nanoseconds that a LayerNormalization of ``rows`` x WIDTH takes on two threads beyond half of one thread's."""
    x = np.random.default_rng(2).normal(0, 1, [rows, WIDTH]).astype(np.float32)
    proto = model(normalization_nodes("LayerNorm"), x)
    calls = [call(proto, {"X": x}, ours=True, threads=threads)[0] for threads in (1, 2)]
    overheads = fastest([peers.OnnxRuntime().overhead(threads) for threads in (1, 2)])
    one, two = (t - o for t, o in zip(fastest(calls, count=200), overheads, strict=True))
    return two - one / 2


def main() -> None:
    print(f"normfuse {normfuse.__version__}, instruction set: {os.environ.get('NORMFUSE_ISA', 'the best')}")
    empty = peers.OnnxRuntime().overhead(1)
    overhead = fastest([empty])[0]
    print(f"empty session {overhead:.0f} ns\n\n| operator | ORT ns/element | normfuse | ratio |\n|---|---|---|---|")

    def print_row(name: str, calls: list[tuple[Callable[[], None], bool]]) -> None:
        a, b = ((t - overhead) / (ROWS * WIDTH) for t in fastest([one for one, _ in calls]))
        print(f"| {name} | {a:.3f} | {b:.3f} | {a / b:.2f}{'' if calls[1][1] else ' (not claimed)'} |")

    names = sys.argv[1:]
    for name in [n for n in ACTIVATIONS if not names or n in names]:
        x, slope = input_for(name), np.random.default_rng(1).normal(0, 1, WIDTH).astype(np.float32)
        feeds = {"X": x, "slope": slope}
        print_row(
            name, [call(in_standard_nodes(name), feeds, ours=False), call(as_own_operator(name), feeds, ours=True)]
        )
    for name in [n for n in NORMALIZATIONS if not names or n in names]:
        x = input_for(name)
        proto = model(normalization_nodes(name), x)
        feeds = {"X": x, "R": x, "S": np.array(0.004, np.float32)}
        print_row(name, [call(proto, feeds, ours=ours) for ours in (False, True)])
    for name in [n for n in AMONG_QUANTISED if not names or n in names]:
        for stored in ("uint8", "int8", "uint16", "int16"):
            print_row(f"{name} of {stored}", among_quantised(name, stored))
    if names:
        return
    for stored in ("int8", "int16", "int32", "int4", "float8_e4m3fn"):
        print_row(f"DQ of {stored}", dequantization(stored, "float32", along_row=False))
        print_row(f"DQ of {stored}, along rows", dequantization(stored, "float32", along_row=True))
    print_row("DQ of int8 to float16", dequantization("int8", "float16", along_row=False))
    for rows in (1, 64, 128):
        print(few_rows(rows))
    for name in ("LayerNorm", "RMSNorm", "MVN"):
        print(short_rows(name))
    print(short_softmax_rows())
    print_repeating()
    print(concats())
    print(f"a row with further steps behind it: {row_of_blocks():.0f} ns more")
    for rows in (256, 512, 1024):
        print(f"second thread, LayerNorm of {rows} rows: {hand_off(rows):.0f} ns")


if __name__ == "__main__":
    main()
