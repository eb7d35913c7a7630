"""Sessions with the execution provider: ways to get one, calls of functions, and chains as Compile gets them.

Compile gets the chains that GetCapability has found: each its own, whatever the names, graphs and threads.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import harness
import instruction_sets
import numpy as np
import onnx
import onnxruntime
import pytest
from checking import session_and_report
from onnx import TensorProto, helper, parser
from parsed_models import parse

import normfuse
from normfuse import meaning
from normfuse.meaning import Array, Expected, evaluate

F32 = np.float32
WIDTH = 16
TENSOR = f"float[3,{WIDTH}]"
X, R = np.random.default_rng(1).normal(0, 1, (2, 3, WIDTH)).astype(F32)
LN = "LayerNormalization<axis = -1>"
NORM = "Normalize axes=-1; Mul scale"
CHAIN = f"g ({TENSOR} X) => ({TENSOR} Y) {{ n = {LN}(X, g1)  Y = Gelu(n) }}"


def scale(seed: int) -> Array:
    return np.random.default_rng(seed).normal(1, 0.5, WIDTH).astype(F32)


def model(graph: str, opset: int = 20, functions: tuple[str, ...] = (), **constants: Array) -> onnx.ModelProto:
    """A model whose g0 to g9 are scales, if it reads them."""
    scales = {name: scale(i) for i in range(10) if f"{(name := f'g{i}')})" in graph}
    proto = parse(graph, opset, **scales, **constants)
    for domain in (harness.DOMAIN, "com.microsoft"):
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    header = f'<domain: "{harness.DOMAIN}", opset_import: ["": {opset}]> '
    proto.functions.extend(parser.parse_function(header + text) for text in functions)
    return proto


def expected(x: Array, seed: int, activation: str = "Identity") -> Expected:
    return evaluate(f"{NORM}; {activation}", {"X": x, "scale": scale(seed)})["Y"]


def gelu(x: Array) -> Expected:
    return evaluate("Gelu", {"X": x})["Y"]


def record(options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


# --- ways to select the provider -------------------------------------------------------------------------------------

LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"]


@pytest.mark.parametrize("way", ["name", "device", "without the CPU provider", *LEVELS, 1, 2, 5])
def test_selected(way: str | int) -> None:
    options, more = harness.session_options("ep"), {}
    if way == "name":
        normfuse.register()
        options = record(onnxruntime.SessionOptions())
        more = {"providers": [(harness.EP_NAME, {"claim": "all"}), "CPUExecutionProvider"]}
    elif way == "device":
        options = record(onnxruntime.SessionOptions())
        options.add_provider_for_devices(normfuse.register()[:1], {"claim": "all"})
    elif isinstance(way, int):
        options.intra_op_num_threads = way
    elif way in LEVELS:
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, way)
    else:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    proto = model(CHAIN.replace("[3,", "[a, b, "))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, enable_fallback=0, **more)
    assert harness.fused_types(session) == [["Gelu", "LayerNormalization"]]
    x = np.random.default_rng(2).normal(0, 1, (30, 400, WIDTH)).astype(F32)
    expected(x, 1, "Gelu").check(harness.run(session, {"X": x})["Y"])


@pytest.mark.parametrize("order", ["operators first", "provider first", "operators twice"])
def test_custom_operators_and_provider_in_one_session(order: str) -> None:
    options = record(onnxruntime.SessionOptions())
    if order != "provider first":
        options.register_custom_ops_library(normfuse.get_library_path())
    if order == "operators twice":
        options.register_custom_ops_library(normfuse.get_library_path())
    options.add_provider_for_devices(normfuse.register()[:1], {"claim": "all"})
    if order == "provider first":
        options.register_custom_ops_library(normfuse.get_library_path())
    graph = f'g ({TENSOR} X) => ({TENSOR} Y) {{ Y = ai.normfuse.FusedActivation<steps = "Gelu">(X) }}'
    session = onnxruntime.InferenceSession(model(graph).SerializeToString(), options, enable_fallback=0)
    assert harness.fused_types(session) == [["FusedActivation"]]
    gelu(X).check(harness.run(session, {"X": X})["Y"])


def test_context_generation_claims_nothing(tmp_path: Path) -> None:
    options = harness.session_options("ep", claim_report=str(tmp_path / "claims.jsonl"))
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(tmp_path / "context.onnx"))
    onnx.save(model(CHAIN), tmp_path / "source.onnx")
    session = harness.create_session(tmp_path / "source.onnx", options=options)
    assert harness.ep_groups(session) == []
    assert '"context_generation"' in (tmp_path / "claims.jsonl").read_text("utf-8")
    expected(X, 1, "Gelu").widened(1e-5).check(harness.run(session, {"X": X})["Y"])


GELU = "FusedActivation_Activation (X) => (Y) { Y = Gelu(X) }"
CALL = 'ai.normfuse.FusedActivation_Activation<steps = "Gelu", spec_version = 1>'


def test_optimized_model_can_be_written(tmp_path: Path) -> None:
    """ORT cannot save compiled nodes: session_options() then leaves chains alone and takes operators as kernels."""
    proto = model(f"g ({TENSOR} X) => ({TENSOR} Y) {{ n = {LN}(X, g1)  Y = {CALL}(n) }}", functions=(GELU,))
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options = record(normfuse.session_options(options, claim="all", claim_report=tmp_path / "claims.jsonl"))
    session = harness.create_session(proto, options=options)
    assert harness.fused_types(session) == [["FusedActivation_Activation"]]
    assert '"compilation_off"' in (tmp_path / "claims.jsonl").read_text("utf-8")
    for each in (session, harness.create_session(tmp_path / "optimized.onnx", "ep")):
        expected(X, 1, "Gelu").widened(1e-5).check(harness.run(each, {"X": X})["Y"])


def test_one_session_from_several_threads() -> None:
    session = harness.create_session(model(CHAIN.replace("[3,", "[a, b, ")))

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).normal(0, 1, (3 + seed, 7, WIDTH)).astype(F32)
        for _ in range(50):
            expected(x, 1, "Gelu").check(harness.run(session, {"X": x})["Y"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_sessions_that_come_and_go_at_the_same_time() -> None:
    graph = f"g ({TENSOR} X) => ({TENSOR} Y) {{ n = {LN}(X, g)  a = Relu(n)  Y = Neg(a) }}"

    def works(seed: int) -> None:
        session = harness.create_session(model(graph, g=scale(seed)))
        expected(X, seed, "Relu").check(-harness.run(session, {"X": X})["Y"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(works, range(64)))


# "" is as good as none. ``python3 tests/run.py --step isas`` runs the tests on each instruction set.
@pytest.mark.parametrize(
    "isa", [*instruction_sets.AVAILABLE, "", "sse9", "neon" if "avx2" in instruction_sets.OF_ARCHITECTURE else "avx2"]
)
def test_the_variable_chooses_the_instruction_set(isa: str) -> None:
    script = 'import normfuse; print(*{device.ep_metadata["instruction_set"] for device in normfuse.register()})'
    done = instruction_sets.python("-c", script, isa=isa)
    if isa in ("", *instruction_sets.AVAILABLE):
        assert done.stdout.strip() == (isa or instruction_sets.AVAILABLE[0]), done.stderr
    else:
        assert done.returncode != 0
        assert isa in done.stderr
        assert "NORMFUSE_ISA" in done.stderr


# --- values and functions --------------------------------------------------------------------------------------------


def test_a_dimension_that_does_not_fit_is_an_error() -> None:
    session = harness.create_session(model(CHAIN.replace("[3,16]", "[a, b]")))
    with pytest.raises(Exception, match=f"(?s)scale.*{WIDTH}"):
        harness.run(session, {"X": np.zeros((3, WIDTH + 1), F32)})


def test_an_initialiser_that_is_also_a_graph_input_is_read_at_run_time() -> None:
    proto = model(f"g ({TENSOR} X, float[{WIDTH}] g1) => ({TENSOR} Y) {{ Y = {LN}(X, g1) }}")
    session = harness.create_session(proto)
    assert harness.fused_types(session) == [["LayerNormalization"]]
    expected(X, 1).check(session.run(None, {"X": X})[0])
    expected(X, 2).check(session.run(None, {"X": X, "g1": scale(2)})[0])


def test_parameters_known_only_at_run_time() -> None:
    inputs = f"{TENSOR} X, float[{WIDTH}] G, float S, int8 Z"
    graph = f"g ({inputs}) => (int8[3,{WIDTH}] Y) {{ n = {LN}(X, G)  Y = QuantizeLinear(n, S, Z) }}"
    session = harness.create_session(model(graph))
    assert harness.fused_types(session) == [["LayerNormalization", "QuantizeLinear"]]
    for seed in (1, 2):
        step, zero = np.array(0.01 * seed, F32), np.array(seed, np.int8)
        inputs = {"X": X, "scale": scale(seed), "step": step, "zero": zero}
        got = harness.run(session, {"X": X, "G": scale(seed), "S": step, "Z": zero})["Y"]
        evaluate(f"{NORM}; Quantize scale=step zero_point=zero", inputs)["Y"].check(got)


@pytest.mark.parametrize(
    ("attribute", "count", "reason", "words"),
    [
        ("spec_version = 99", 0, "newer_spec_version", ""),
        ("flavour = 3", 0, "unknown_attribute", ""),
        (f'steps = "{"; ".join(f"Mul t{i}" for i in range(16))}"', 16, "too_many_tensors", "16 tensors; at most 15"),
        (
            f'steps = "{"; ".join(f"Add t{i} scale=s{i} zero_point=z{i}" for i in range(9))}"',
            *(27, "too_many_tensors", "27 tensors; at most 24"),
        ),
    ],
)
def test_a_call_that_is_not_understood_runs_its_body(
    attribute: str, count: int, reason: str, words: str, tmp_path: Path
) -> None:
    names = ", ".join(["X", *(f"t{i}" for i in range(count))])
    given = ", ".join(["X", *["g1"] * count])
    call = f"g ({TENSOR} X) => ({TENSOR} Y) {{ Y = ai.normfuse.FusedActivation_test<{attribute}>({given}) }}"
    proto = model(call, functions=(f"FusedActivation_test <steps> ({names}) => (Y) {{ Y = Relu(X) }}",))
    session, report = session_and_report(proto, tmp_path)
    assert any(line.get("reason") == reason and words in line["message"] for line in report), report
    assert (harness.run(session, {"X": X})["Y"] == np.maximum(X, 0)).all()


@pytest.mark.parametrize("where", ["main", "branch"])
def test_a_function_call_is_claimed(where: str) -> None:
    """The body is wrong on purpose: it must not be what runs."""
    nodes = {
        "main": f"Y = {CALL}(X)",
        "branch": f"Y = If(C) <then_branch = t () => ({TENSOR} a) {{ a = {CALL}(X) }}, "
        f"else_branch = e () => ({TENSOR} b) {{ b = Abs(X) }}>",
    }[where]
    proto = model(
        f"g ({TENSOR} X, bool C) => ({TENSOR} Y) {{ {nodes} }}", functions=(GELU.replace("Gelu(X)", "Neg(X)"),)
    )
    session = harness.create_session(proto)
    assert harness.fused_types(session) == [["FusedActivation_Activation"]]
    gelu(X).check(harness.run(session, {"X": X, "C": np.array(True)})["Y"])


# --- graphs in graphs ------------------------------------------------------------------------------------------------


def test_value_in_between_is_used_in_a_subgraph() -> None:
    graph = f"""g ({TENSOR} X, bool C) => ({TENSOR} Y, {TENSOR} Z) {{
        n = {LN}(X, g1)
        Y = Gelu(n)
        Z = If(C) <then_branch = t () => ({TENSOR} a) {{ a = Neg(n) }},
                   else_branch = e () => ({TENSOR} b) {{ b = Abs(n) }}>
    }}"""
    session = harness.create_session(model(graph))
    assert sorted(harness.fused_types(session)) == [["Gelu"], ["LayerNormalization"]]
    got = harness.run(session, {"X": X, "C": np.array(True)})
    expected(X, 1).check(-got["Z"])
    expected(X, 1, "Gelu").check(got["Y"])


# The same names in every graph, and other chains behind them: what is kept of one graph fits no other.
GRAPHS = f"""g ({TENSOR} X, bool C, int64 N) => ({TENSOR} Y, {TENSOR} B, {TENSOR} L) {{
    B = If(C) <
        then_branch = t () => ({TENSOR} out) {{ n = {LN}(X, g1)  y = Relu(n)  out = Identity(y) }},
        else_branch = e () => ({TENSOR} out) {{ n = {LN}(X, g2)  y = Gelu(n)  out = Identity(y) }}>
    L = Loop(N, C, X) <body = b (int64 i, bool c, {TENSOR} v) => (bool d, {TENSOR} out) {{
        d = Identity(c)
        n = {LN}(v, g3)
        y = Tanh(n)
        out = If(c) <
            then_branch = u () => ({TENSOR} in) {{ n2 = {LN}(y, g4)  in = Sigmoid(n2) }},
            else_branch = f () => ({TENSOR} in) {{ n2 = {LN}(y, g4)  in = Softsign(n2) }}>
    }}>
    n = {LN}(X, g0)
    y = Elu(n)
    n2 = {LN}(y, g5)
    in = Mish(n2)
    Y = Identity(in)
}}"""


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_values_of_the_same_names_in_all_graphs(condition: bool, level: str) -> None:
    options = harness.session_options("ep")
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    proto = model(GRAPHS)
    session = harness.create_session(proto, options=options)
    activations = ["Elu", "Gelu", "Mish", "Relu", "Sigmoid", "Softsign", "Tanh"]
    assert harness.fused_types(session) == sorted(sorted([name, "LayerNormalization"]) for name in activations)
    got = harness.run(session, {"X": X, "C": np.array(condition), "N": np.array(1, np.int64)})
    first = expected(X, 0, "Elu").array()
    expected(first, 5, "Mish").widened(1e-5).check(got["Y"])
    branch = expected(X, 1, "Relu") if condition else expected(X, 2, "Gelu")
    branch.check(got["B"])
    if condition:  # else the loop ends before its first turn
        turn = expected(X, 3, "Tanh").array()
        expected(turn, 4, "Sigmoid").widened(1e-5).check(got["L"])


def test_only_some_chains_are_claimed() -> None:
    """By default the cost model leaves the small one, between two that it takes."""
    graph = f"""g (float[256,{WIDTH}] X) => (float[256,{WIDTH}] Y, float[1] Z) {{
        n = {LN}(X, g1)
        a = Gelu(n)
        s = ReduceMax<keepdims = 0>(a)
        flat = Unsqueeze(s, zero)
        small = Relu(flat)
        Z = HardSwish(small)
        m = Mul(a, small)
        k = {LN}(m, g2)
        b = Gelu(k)
        Y = Neg(b)
    }}"""
    x = np.random.default_rng(2).normal(0, 1, (256, WIDTH)).astype(F32)
    proto = model(graph, zero=np.zeros(1, np.int64))
    session = harness.create_session(proto, claim="profitable")
    assert harness.fused_types(session) == [["Gelu", "LayerNormalization"]] * 2
    got = harness.run(session, {"X": x})
    first = expected(x, 1, "Gelu").array()
    largest = first.max()
    expected(first * largest, 2, "Gelu").widened(1e-4).check(-got["Y"])


def test_nodes_with_kernels_beside_nodes_that_are_compiled() -> None:
    """A normalisation alone has a registered kernel and is not compiled; constants of the others are their own."""
    graph = f"""g ({TENSOR} X, {TENSOR} R) => ({TENSOR} Y, {TENSOR} S, int8[3,{WIDTH}] Q) {{
        alone = {LN}(X, g1)
        S = Neg(alone)
        sum = Add(X, R)
        n = {LN}(sum, g2)
        a = Gelu(n)
        Y = Neg(a)
        q = QuantizeLinear(X, step, zero)
        d = DequantizeLinear(q, step, zero)
        m = {LN}(d, g3)
        Q = QuantizeLinear(m, step, zero)
    }}"""
    residual = np.random.default_rng(3).normal(0, 1, (3, WIDTH)).astype(F32)
    step, zero = np.array(0.05, F32), np.array(3, np.int8)
    proto = model(graph, step=step, zero=zero)
    session = harness.create_session(proto)
    groups = harness.fused_types(session)
    assert ["LayerNormalization"] in groups
    assert ["Add", "Gelu", "LayerNormalization"] in groups
    assert ["DequantizeLinear", "LayerNormalization", "QuantizeLinear"] in groups
    got = harness.run(session, {"X": X, "R": residual})
    expected(X, 1).check(-got["S"])
    expected(X + residual, 2, "Gelu").check(-got["Y"])
    codes = meaning.quantize(X, step, zero, onnx.TensorProto.INT8)
    steps = f"Dequantize scale=s zero_point=z; {NORM}; Quantize scale=t zero_point=u"
    evaluate(steps, {"X": codes, "s": step, "z": zero, "scale": scale(3), "t": step, "u": zero})["Y"].check(got["Q"])


def test_a_chain_that_nobody_reads() -> None:
    """Its fused node has no output to know it by."""
    graph = f"g ({TENSOR} X) => ({TENSOR} Y) {{ n = {LN}(X, g1)  unread = Gelu(n)  Y = Neg(X) }}"
    session = harness.create_session(model(graph))
    assert harness.fused_types(session) == [["Gelu", "LayerNormalization"]]
    assert np.array_equal(harness.run(session, {"X": X})["Y"], -X)


def test_a_model_in_the_format_of_onnxruntime(tmp_path: Path) -> None:
    """There ONNX Runtime compiles one node at a time."""
    path = tmp_path / "model.ort"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.save_model_format", "ORT")
    graph = (
        f"g ({TENSOR} X) => ({TENSOR} Y) {{ n = {LN}(X, g1)  a = Elu(n)  m = {LN}(a, g2)  b = Relu(m)  Y = Neg(b) }}"
    )
    proto = model(graph)
    onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    # Of such a model ONNX Runtime does not tell what is assigned to whom.
    session, report = session_and_report(path, tmp_path)
    claimed = [line["description"] for line in report if line["claimed"]]
    assert claimed == ["LayerNormalization -> Elu", "LayerNormalization -> Relu"]
    first = expected(X, 1, "Elu").array()
    expected(first, 2, "Relu").widened(1e-5).check(-harness.run(session, {"X": X})["Y"])


# --- more chains than ONNX Runtime compiles in a reasonable time: registered kernels run the nodes there -------------

MANY = 1500
TENSORS = {
    "g": scale(0),
    "slope": np.asarray([0.25], np.float32),
    "low": np.asarray(-1, np.float32),
    "high": np.asarray(1.5, np.float32),
    "step": np.asarray(0.05, np.float32),
    "zero": np.asarray(3, np.int8),
}
# Operator, further inputs, attributes.
SINGLE = [
    ("Celu", [], {"alpha": 1.5}),
    ("Clip", ["low", "high"], {}),
    ("Elu", [], {"alpha": 0.7}),
    ("Gelu", [], {}),
    ("Gelu", [], {"approximate": "tanh"}),
    ("HardSigmoid", [], {"alpha": 0.3}),
    ("HardSwish", [], {}),
    ("LeakyRelu", [], {"alpha": 0.2}),
    ("Mish", [], {}),
    ("PRelu", ["slope"], {}),
    ("Relu", [], {}),
    ("Selu", [], {}),
    ("Sigmoid", [], {}),
    ("Softplus", [], {}),
    ("Softsign", [], {}),
    ("Tanh", [], {}),
    ("ThresholdedRelu", [], {"alpha": 0.5}),
]


def in_a_row(count: int) -> list[onnx.NodeProto]:
    """Chains with a node between each two that nobody fuses."""
    nodes, value = [], "X"
    for index in range(count):
        n, r, m = f"n{index}", f"r{index}", f"m{index}"
        nodes += [
            helper.make_node("LayerNormalization", [value, "g"], [n], name=f"norm{index}"),
            helper.make_node("Relu", [n], [r], name=f"relu{index}"),
            helper.make_node("Neg", [r], [m], name=f"neg{index}"),
        ]
        value = m
    return nodes


def build(nodes: list[onnx.NodeProto], outputs: dict[str, int]) -> bytes:
    used = {name for node in nodes for name in node.input}
    constants = {name: value for name, value in TENSORS.items() if name in used}
    return harness.build_model(nodes, {"X": X}, outputs, constants, opset=22).SerializeToString()


def seconds(model: bytes, provider: str) -> tuple[float, onnxruntime.InferenceSession]:
    start = time.perf_counter()
    session = harness.create_session(model, provider)
    return time.perf_counter() - start, session


def test_claiming_everything_in_a_large_graph_takes_no_longer_than_loading_it() -> None:
    """Compiled one by one these chains take a minute; a plain session takes about as long as this one should."""
    model = build(in_a_row(MANY), {f"m{MANY - 1}": TensorProto.FLOAT})
    plain, reference = seconds(model, "cpu")
    ours, session = seconds(model, "ep")
    assert ours < 4 * plain + 2, (ours, plain)
    assert harness.fused_types(session) == [["LayerNormalization"]] * MANY + [["Relu"]] * MANY
    got, wanted = session.run(None, {"X": X})[0], reference.run(None, {"X": X})[0]
    assert np.abs(got - wanted).max() < 1e-3


def test_every_single_node_on_its_kernel() -> None:
    nodes = in_a_row(MANY // 2)
    outputs = {}
    for index, (op_type, inputs, attributes) in enumerate(SINGLE):
        outputs[f"y{index}"] = TensorProto.FLOAT
        nodes.append(helper.make_node(op_type, ["X", *inputs], [f"y{index}"], name=f"single{index}", **attributes))
    nodes.append(helper.make_node("QuantizeLinear", ["X", "step", "zero"], ["q"], name="quantise"))
    nodes.append(helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["d"], name="dequantise"))
    outputs |= {f"m{MANY // 2 - 1}": TensorProto.FLOAT, "q": TensorProto.INT8, "d": TensorProto.FLOAT}
    model = build(nodes, outputs)
    session, reference = harness.create_session(model), harness.create_session(model, "cpu")
    assert harness.fused_types(session) == sorted([node.op_type] for node in nodes if node.op_type != "Neg")
    got, wanted = harness.run(session, {"X": X}), harness.run(reference, {"X": X})
    for name, value in wanted.items():
        tolerance = 0 if value.dtype == np.int8 else 1e-3
        assert np.abs(got[name].astype(np.float64) - value).max() <= tolerance, name
