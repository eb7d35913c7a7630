"""When the functions of a model are inlined: late where that spares memory and loses nothing, else as usual."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import normfuse
from normfuse import models
from normfuse.host.inlining import INLINED, inlines_late
from normfuse.models.spellings import layer_norm

ENTRY = "session.disable_aot_function_inlining"
LATE, USUAL = "1", "0"
MEMORY = Path(__file__).resolve().parents[2] / "benchmarks" / "memory.py"
FUNCTION = '<domain: "{domain}", opset_import: ["": 20]> f (x) => (y) {{ y = Neg(x) }}'


@pytest.fixture(scope="module")
def transformer() -> onnx.ModelProto:
    return models.transformer_encoder(layers=1, hidden=32)


def parsed(body: str, *domains: str, inputs: str = "float[1,4,4,4] x, float[4] s", opset: int = 23) -> onnx.ModelProto:
    imports = "".join(f', "{domain}": 1' for domain in domains)
    functions = " ".join(FUNCTION.format(domain=domain) for domain in domains)
    text = f'<ir_version: 10, opset_import: ["": {opset}{imports}]> g ({inputs}) => (float y) {{ {body} }} {functions}'
    model = onnx.parser.parse_model(text)
    for output in model.graph.output:
        output.ClearField("type")
    return model


def portable(body: str = "y = ai.normfuse.f(x)") -> onnx.ModelProto:
    return parsed(body, "ai.normfuse")


def in_every_form(model: onnx.ModelProto, folder: Path) -> list[Any]:
    path = folder / "模型.onnx"
    onnx.save(model, path)
    return [path, str(path), model.SerializeToString(), model, ir.from_proto(model)]


def test_rewritten_models_are_inlined_late(transformer: onnx.ModelProto, tmp_path: Path) -> None:
    rewritten = normfuse.optimize(transformer, verify=False).model
    assert len(rewritten.functions) > 1
    for form in in_every_form(rewritten, tmp_path):
        assert inlines_late(form)
        assert normfuse.session_options(model=form).get_session_config_entry(ENTRY) == LATE


SUBGRAPH = """c = Constant<value = bool {1}>()
    y = If(c) <then_branch = t () => (float p) { p = %s }, else_branch = e () => (float q) { q = Neg(x) }>"""
AS_USUAL = {
    "no functions": parsed("y = Neg(x)"),
    "another's functions": parsed("y = z.f(x)", "z"),
    "another's beside normfuse's": parsed("a = z.f(x) y = ai.normfuse.f(a)", "z", "ai.normfuse"),
    "an operator without kernel": portable("a = ai.normfuse.f(x) y = CastLike(a, s)"),
    "an operator without kernel in a subgraph": portable("a = ai.normfuse.f(x) " + SUBGRAPH % "CastLike(a, s)"),
    "a call in a branch": portable(SUBGRAPH % "ai.normfuse.f(x)"),
}


@pytest.mark.parametrize("what", AS_USUAL)
def test_other_models_are_inlined_as_usual(what: str, tmp_path: Path) -> None:
    for form in in_every_form(AS_USUAL[what], tmp_path):
        assert not inlines_late(form)
        assert normfuse.session_options(model=form).get_session_config_entry(ENTRY) == USUAL


@pytest.mark.parametrize("body", [SUBGRAPH % "Softmax(a)", 'y = ai.normfuse.f<steps = "Swish">(a)'])
def test_other_operators_and_names_are_no_reason(body: str, tmp_path: Path) -> None:
    model = portable("a = ai.normfuse.f(x) " + body)
    assert all(inlines_late(form) for form in in_every_form(model, tmp_path))


@pytest.mark.parametrize("loop", [False, True], ids=["in the graph", "in a loop"])
def test_a_branch_that_is_always_taken_runs_also_where_no_provider_takes_its_call(loop: bool) -> None:
    """ONNX Runtime puts the branch into the graph around the If."""
    body = SUBGRAPH % "ai.normfuse.f(x)"  # f is no operator of ours, so that it is left to ONNX Runtime
    if loop:
        inner = body.replace("y = ", "w = ").replace("(x)", "(v)")
        body = f"""n = Constant<value = int64 {{1}}>() go = Constant<value = bool {{1}}>()
            y = Loop(n, go, x) <body = l (int64 i, bool before, float v) => (bool after, float w) {{
                after = Identity(before) {inner} }}>"""
    model = portable(body)
    x = np.random.default_rng(1).normal(size=(1, 4, 4, 4)).astype(np.float32)
    session = ort.InferenceSession(model.SerializeToString(), normfuse.session_options(model=model))
    np.testing.assert_array_equal(session.run(None, {"x": x, "s": np.ones(4, np.float32)})[0], -x)


def test_a_node_that_holds_weights_is_not_read(tmp_path: Path) -> None:
    model = portable("a = ai.normfuse.f(x) y = Add(a, w)")
    weights = numpy_helper.from_array(np.ones(300_000, np.float32))
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=weights))
    path = in_every_form(model, tmp_path)[0]
    assert not inlines_late(path)


WITH_A_BODY = sorted(
    {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == "" and (schema.has_function or schema.has_context_dependent_function)
    }
)
TEXTS = {
    "Attention": "y = Attention(x, x, x)",
    "DepthToSpace": "y = DepthToSpace<blocksize = 2>(x)",
    "DynamicQuantizeLinear": "y, b, c = DynamicQuantizeLinear(x)",
    "GreaterOrEqual": "y = GreaterOrEqual(x, x)",
    "LayerNormalization": "y = LayerNormalization(x, s)",
    "LessOrEqual": "y = LessOrEqual(x, x)",
    "PRelu": "y = PRelu(x, s)",
    "RMSNormalization": "y = RMSNormalization(x, s)",
    "Range": "a = ReduceMax<keepdims = 0>(x) y = Range(a, a, a)",
    "SpaceToDepth": "y = SpaceToDepth<blocksize = 2>(x)",
}


def test_known_operators_are_those_of_onnx() -> None:
    assert set(WITH_A_BODY) >= INLINED


@pytest.mark.parametrize("operator", sorted({*WITH_A_BODY} - INLINED))
def test_onnxruntime_inlines_no_other_operator(operator: str) -> None:
    """Of a model that has a function, ONNX Runtime inlines all that nobody has a kernel for, without optimising too."""
    assert operator in run_as(TEXTS.get(operator, f"y = {operator}(x)"))


def test_onnxruntime_inlines_an_operator_without_kernel() -> None:
    assert "CastLike" not in run_as("y = CastLike(x, s)")


def run_as(text: str) -> list[str]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    model = parsed(text + " unused = z.f(x)", "z").SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [node.op_type for graph in session.get_provider_graph_assignment_info() for node in graph.get_nodes()]


def test_an_entry_of_the_user_stays() -> None:
    for value in ("0", "1"):
        options = ort.SessionOptions()
        options.add_session_config_entry(ENTRY, value)
        for model in (portable(), AS_USUAL["no functions"]):
            normfuse.session_options(options, model=model)
            assert options.get_session_config_entry(ENTRY) == value


def test_the_last_model_decides(transformer: onnx.ModelProto) -> None:
    options = normfuse.session_options(model=portable())
    normfuse.session_options(options)
    assert options.get_session_config_entry(ENTRY) == LATE
    normfuse.session_options(options, model=AS_USUAL["another's functions"])
    assert options.get_session_config_entry(ENTRY) == USUAL
    normfuse.InferenceSession(transformer, options)
    assert options.get_session_config_entry(ENTRY) == LATE
    with pytest.raises(RuntimeError):
        normfuse.session_options().get_session_config_entry(ENTRY)


def test_what_is_no_model_is_left_to_onnxruntime() -> None:
    data = portable().SerializeToString()
    for size in range(len(data)):
        assert inlines_late(data[:size]) in (True, False)
    generator = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(data)
        for at in generator.integers(0, len(data), 3):
            damaged[at] = generator.integers(0, 256)
        assert inlines_late(bytes(damaged)) in (True, False)
    for data in (b"", b"\xff" * 40, b"\x3a" + b"\xff" * 9 + b"\x7f", b"hello, world"):
        assert not inlines_late(data)


def test_fields_of_every_wire_type_are_passed_over() -> None:
    unknown = b"\xf8\x07\x80\x80\x01" + b"\xf9\x07" + bytes(8) + b"\xfd\x07" + bytes(4) + b"\xfa\x07\x02\xc8\x01"
    data = portable().SerializeToString()
    assert onnx.ModelProto.FromString(unknown + data + unknown).functions
    assert inlines_late(unknown + data + unknown)
    another = onnx.ModelProto(functions=AS_USUAL["another's functions"].functions).SerializeToString()
    assert not inlines_late(unknown + data + unknown + another)


def test_a_file_that_is_missing_has_a_message(tmp_path: Path) -> None:
    for path in (tmp_path / "none.onnx", tmp_path):
        with pytest.raises(normfuse.InvalidModelError, match="Cannot read"):
            normfuse.session_options(model=path)


@pytest.mark.skipif(sys.platform != "linux", reason="measures with /proc")
def test_peak_of_memory(tmp_path: Path) -> None:
    """No more than ONNX Runtime alone takes, plus 2 %, plus 4 MiB; without ``model=`` the weights are there twice."""
    g = models.GraphBuilder(17)
    y = g.input("x", [2, 8, 2048])
    for _ in range(3):  # 48 MiB of weights
        y = layer_norm(g, g.add("MatMul", y, g.weight(2048, 2048)), g.weight(2048), g.weight(2048))
    g.output(y, [2, 8, 2048])
    model = g.model("dense")
    onnx.save(model, tmp_path / "model.onnx")
    normfuse.optimize(model, verify=False).save(tmp_path / "fused.onnx")
    np.savez(tmp_path / "feeds.npz", x=np.ones((2, 8, 2048), np.float32))

    def peak(model: str, way: str) -> float:
        command = [sys.executable, str(MEMORY), "--create", str(tmp_path / model), str(tmp_path / "feeds.npz"), way]
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return float(done.stdout)

    alone = peak("model.onnx", "onnxruntime")
    allowed = 1.02 * alone + 4
    assert peak("model.onnx", "original + normfuse") <= allowed
    assert peak("fused.onnx", "rewritten + normfuse") <= allowed
    assert peak("fused.onnx", "rewritten + normfuse, without model=") > allowed
