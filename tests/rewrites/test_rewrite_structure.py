"""What the pass does to the model around a chain, beside tests/corpus/structure.txt: names, metadata, order, tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
import onnx.inliner
import onnx.parser
import onnx_ir as ir
import pytest
from corpus_reader import model_of
from onnx import TensorProto, helper, numpy_helper
from rewrite_harness import SpellingBuilder, close, fused_nodes, optimize, round_trip, run

from normfuse.errors import InvalidModelError
from normfuse.graph_rewrites import RULES, rewrite
from normfuse.graph_rewrites.engine.matching import ChainMatcher

SHAPE = (2, 5, 8)


def _parse(signature: str, body: str, domain: str = "own") -> onnx.ModelProto:
    """A model with a weight g."""
    weights = "<float[8] g = {1, 2, 1, 2, 1, 2, 1, 2}>"
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17, "{domain}": 1]> main ({signature}) {weights} {{ {body} }}'
    )


def _feeds(*names: str) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    return {name: rng.standard_normal(SHAPE).astype(np.float32) for name in names or ("x",)}


def _same_results(model: onnx.ModelProto, optimized: onnx.ModelProto, feeds: dict[str, Any]) -> None:
    expected, got = run(model, feeds, optimized=False), run(optimized, feeds)
    assert list(expected) == list(got)
    for name in expected:
        close(got[name], expected[name], name)


PLAIN = """
let Plain(x) = d = x - ReduceMean(x, axes=[-1]); d / Sqrt(ReduceMean(d ** 2, axes=[-1]) + 1e-5)
let Chosen(x) = If(Cast(ReduceMax(x, keepdims=0), to=BOOL), Plain(x), x)
let Through(x) = Loop(2, x, Chosen)
"""
RESIDUAL = "Relu(Plain(x + r))"


def test_function_that_nobody_calls_is_left() -> None:
    model = model_of("own.Plain(x)", PLAIN)
    model.graph.node[0].CopyFrom(helper.make_node("Relu", ["x"], [model.graph.output[0].name]))
    optimized, _ = optimize(model)
    assert optimized == round_trip(model)


def test_a_site_says_where_it_is() -> None:
    _, result = optimize(model_of("own.Through(x)", PLAIN))
    (site,) = (site for site in result.sites if site.fused_into)
    assert site.graph.startswith("function 'own::Through' / body of Loop")
    assert "then_branch of If" in site.graph


# --- names, metadata, order -----------------------------------------------------------------------------------------


def _decorated() -> onnx.ModelProto:
    g = SpellingBuilder(17)
    x = g.input("x", ("batch", 5, 8))
    y = g.add("LayerNormalization", g.add("Exp", x), g.weight(8, mean=1.0, name="gamma"), g.weight(8, name="beta"))
    g.output(g.add("Tanh", g.add("MatMul", y, g.weight(8, 8, name="w"))), ("batch", 5, 8))
    model = g.model("decorated")
    model.producer_name, model.doc_string = "somebody", "what it is for"
    model.metadata_props.add(key="licence", value="free")
    for node in model.graph.node:
        node.doc_string = f"doc of {node.name}"
        node.metadata_props.add(key="namespace", value=node.name)
    return model


def test_everything_else_stays_as_it_is() -> None:
    model = _decorated()
    optimized, _ = optimize(model)
    before = {node.name: node for node in round_trip(model).graph.node}
    assert [node.name for node in optimized.graph.node] == [node.name for node in model.graph.node]
    for node in optimized.graph.node:
        if node.domain == "":
            assert node == before[node.name]
    assert optimized.graph.input == model.graph.input
    assert optimized.graph.output == model.graph.output
    assert list(optimized.graph.initializer) == list(model.graph.initializer)
    assert (optimized.producer_name, optimized.doc_string) == ("somebody", "what it is for")
    assert optimized.metadata_props == model.metadata_props
    assert [(o.domain, o.version) for o in optimized.opset_import] == [("", 17), ("ai.normfuse", 1)]


@pytest.mark.parametrize("target", ["portable", "custom-op", "standard"])
def test_no_names_of_dimensions_are_made_up(target: Any) -> None:
    """Those of shape inference would let ONNX Runtime fuse in the rewritten model what it leaves in the original."""
    text, dims = "output(Plain(z + z)); Transpose(Relu(Plain(x + x)))", "batch:2,length:5,8"
    model = model_of(text, PLAIN, x=":2,:5,8", z=dims, y=":,:,:", opset=13, dynamic="")
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    assert any(dim.dim_param.startswith("unk__") for value in inferred for dim in value.type.tensor_type.shape.dim)
    optimized, _ = optimize(model, target=target)
    graph = optimized.graph
    for value in (*graph.value_info, *graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            assert not dim.dim_param or dim.dim_param in ("batch", "length"), value.name


def test_constants_keep_their_tensors_without_names() -> None:
    """The pass reads them, in the graph and in functions; a name would be a change of nodes that are not fused."""
    model = model_of("own.Half(x * 3.0)", "let Half(x) = Squeeze(Unsqueeze(x, [0]), [0])")
    two = helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.float32(2)))
    model.graph.node.insert(0, two)
    model.graph.node[1].input[1] = "two"
    for node in (*model.graph.node, *model.functions[0].node):
        for attribute in node.attribute:
            attribute.t.ClearField("name")
    optimized, _ = optimize(model)
    constants = [n for n in (*optimized.graph.node, *optimized.functions[0].node) if n.op_type == "Constant"]
    assert [node.attribute[0].t.name for node in constants] == ["", "", ""]


def test_names_of_new_constants_that_are_taken() -> None:
    """One constant that two nodes subtract stays; each has a new one behind its convolution."""
    g = SpellingBuilder(17)
    x, mean = g.input("x", (2, 4, 6, 5)), g.weight(8, 1, 1)
    parts = [g.add("Relu", g.add("Sub", g.add("Conv", x, g.weight(8, 4, 1, 1), g.weight(8)), mean)) for _ in range(2)]
    g.output(g.add("Add", *parts), (2, 8, 6, 5))
    model = g.model("m")
    taken = next(node.output[0] for node in model.graph.node if node.op_type == "Sub") + ".addend"
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), taken))
    written, result = optimize(model)
    assert result.counts == {"SubtractionAsAddition": 2}
    onnx.checker.check_model(written, full_check=True)
    names = [tensor.name for tensor in written.graph.initializer]
    assert len(names) == len(set(names))
    _same_results(model, written, {"x": np.random.default_rng(3).standard_normal((2, 4, 6, 5)).astype(np.float32)})


def test_fused_node_says_where_it_comes_from() -> None:
    (node,) = fused_nodes(optimize(_decorated())[0])
    metadata = {entry.key: entry.value for entry in node.metadata_props}
    assert metadata["namespace"] == node.name
    assert metadata["normfuse.version"]
    assert metadata["normfuse.rules"] == "CanonicalNormalization"
    assert node.doc_string == f"doc of {node.name}"


def test_site_names_the_original_nodes() -> None:
    model = model_of("Relu(Plain(x))", PLAIN)
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
    _, result = optimize(model)
    (site,) = result.sites
    assert site.nodes == tuple(f"node{number}" for number in range(8))
    assert (site.name, site.kind, site.graph) == ("node6", "LayerNormalization", "")
    assert result.counts == {"DecomposedLayerNormalization": 1, "NormalizationActivation": 1}


@pytest.mark.parametrize("target", ["portable", "custom-op", "standard"])
def test_second_run_changes_nothing(target: Any) -> None:
    model = model_of(RESIDUAL, PLAIN, opset=13)
    once, first = optimize(model, target=target)
    twice, second = optimize(once, target=target)
    assert twice.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)
    assert [(s.name, s.description, s.fused_into) for s in first.sites] == [
        (s.name, s.description, s.fused_into) for s in second.sites
    ]


@pytest.mark.parametrize("behind", ["QuantizeLinear(Cast(n, to=FLOAT), 2.0)", "n * 2.0"])
def test_a_deviation_that_is_used_elsewhere_has_a_shape(behind: str) -> None:
    """It is the statistic of a node that grew, or whose residual has fewer dimensions."""
    text = "t = x + residual[5, 8]; d = t - ReduceMean(t, axes=[-1]); s = Sqrt(ReduceMean(d ** 2, axes=[-1]) + 1e-5); "
    model = model_of(f"{text}n = d / s; output(Exp(s)); {behind}", opset=13)
    once, _ = optimize(model)
    (statistic,) = (output for output in fused_nodes(once)[0].output[2:] if output)
    (info,) = (info for info in once.graph.value_info if info.name == statistic)
    assert [dim.dim_value for dim in info.type.tensor_type.shape.dim] == [2, 5, 1]
    twice, _ = optimize(once)
    assert twice.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)


@pytest.mark.parametrize("first", ["portable", "custom-op", "standard"])
@pytest.mark.parametrize("second", ["portable", "custom-op", "standard"])
def test_targets_turn_into_each_other(first: Any, second: Any) -> None:
    model = _decorated()
    direct, _ = optimize(model, target=second)
    around, _ = optimize(optimize(model, target=first)[0], target=second)
    onnx.checker.check_model(around)
    assert [node.op_type for node in around.graph.node] == [node.op_type for node in direct.graph.node]
    assert [function.name for function in around.functions] == [function.name for function in direct.functions]
    if second == "standard":
        assert [(o.domain, o.version) for o in around.opset_import] == [("", 17)]
        _same_results(model, around, _feeds())


def test_model_that_was_quantised_after_it_was_optimised() -> None:
    """QuantizeLinear behind a function call joins it: the call is read back by its attributes."""
    g = SpellingBuilder(17)
    g.output(g.add("LayerNormalization", g.input("x", SHAPE), g.weight(8, mean=1.0), g.weight(8)), SHAPE)
    optimized, _ = optimize(g.model("m"))
    (call,) = fused_nodes(optimized)
    name = call.output[0]
    call.output[0] = "unquantized"
    optimized.graph.initializer.append(helper.make_tensor("scale", TensorProto.FLOAT, [], [0.04]))
    optimized.graph.initializer.append(helper.make_tensor("zero", TensorProto.INT8, [], [0]))
    optimized.graph.node.append(helper.make_node("QuantizeLinear", ["unquantized", "scale", "zero"], [name]))
    optimized.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    again, _ = optimize(optimized)
    assert [node.op_type for node in again.graph.node] == ["FusedNormalization_LayerNormalization_QuantizeLinear"]
    assert [function.name for function in again.functions] == ["FusedNormalization_LayerNormalization_QuantizeLinear"]
    _same_results(optimized, again, _feeds())


def test_inlined_model_is_found_again() -> None:
    model = model_of(RESIDUAL, PLAIN, opset=13)
    optimized, first = optimize(model)
    _, second = optimize(onnx.inliner.inline_local_functions(optimized))
    assert [site.description for site in second.sites] == [site.description for site in first.sites]


def test_equal_configurations_share_a_function_and_others_get_a_number() -> None:
    model = model_of(
        "Other(Plain(Plain(x)))", PLAIN + PLAIN.splitlines()[1].replace("Plain", "Other").replace("1e-5", "1e-3")
    )
    optimized, _ = optimize(model)
    names = [node.op_type for node in fused_nodes(optimized)]
    assert names == ["FusedNormalization_LayerNormalization"] * 2 + ["FusedNormalization_LayerNormalization_2"]
    assert [function.name for function in optimized.functions] == list(dict.fromkeys(names))


def test_foreign_function_of_the_same_name_is_kept() -> None:
    name = "FusedNormalization_LayerNormalization"
    model = model_of(f"normfuse.{name}(Plain(x))", PLAIN, opset=13)
    negative = [helper.make_node("Neg", ["X"], ["Y"])]
    opsets = [helper.make_opsetid("", 13)]
    model.functions.append(helper.make_function(harness.DOMAIN, name, ["X"], ["Y"], negative, opsets))
    # A call without attributes reads as a normalisation over no axes at all: whatever it is, its meaning must stay.
    model.graph.node[-1].attribute.append(helper.make_attribute("spec_version", 99))
    optimized, result = optimize(model)
    assert "newer_spec_version" in [site.reason for site in result.sites]
    call = optimized.graph.node[-1]
    function = next(f for f in optimized.functions if f.name == call.op_type)
    assert [node.op_type for node in function.node] == ["Neg"]


def test_plain_node_of_a_model_without_types_keeps_its_result_type() -> None:
    text = "normfuse.FusedNormalization(x, steps='Normalize axes=-1; Store type=float16')"
    model = model_of(f"Cast(Abs({text}), to=FLOAT)", opset=13)
    optimized, _ = optimize(model)
    (node,) = fused_nodes(optimized)
    assert harness.read_node(node).steps == "Normalize axes=-1 epsilon=1e-05; Store type=float16"
    again, _ = optimize(optimized)
    assert again.SerializeToString(deterministic=True) == optimized.SerializeToString(deterministic=True)
    plain, _ = optimize(model, target="custom-op")
    assert harness.read_node(plain.graph.node[0]).steps == harness.read_node(node).steps


# --- other contents -------------------------------------------------------------------------------------------------


def test_external_data_stays_external(tmp_path: Path) -> None:
    g = SpellingBuilder(17)
    y = g.add("MatMul", g.input("x", SHAPE), g.weight(8, 4096, name="large"))
    y = g.add("LayerNormalization", g.add("MatMul", y, g.weight(4096, 8)), g.weight(8, mean=1.0), g.weight(8))
    g.output(y, SHAPE)
    onnx.save_model(
        g.model("m"), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=1024
    )
    model = ir.load(tmp_path / "m.onnx")
    rewrite(model)
    tensor = model.graph.initializers["large"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert tensor.raw is None, "the weight was read"


def test_initialiser_that_is_an_input_is_no_constant() -> None:
    """From IR version 4 on such an initialiser is a default that a caller can override."""
    model = model_of("Plain(x)", PLAIN, opset=13)
    two, epsilon = model.graph.initializer
    model.graph.input.append(helper.make_tensor_value_info(epsilon.name, TensorProto.FLOAT, []))
    optimized, result = optimize(model)
    assert not fused_nodes(optimized)
    assert [site.reason for site in result.sites] == ["parameter_not_constant"]
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info(two.name, TensorProto.FLOAT, []))
    assert fused_nodes(optimize(model)[0])


def test_strings_and_sequences_and_unknown_domains_pass_by() -> None:
    model = _parse(
        "float[2,5,8] x, string[N] s) => (float[2,5,8] y, string[M] z",
        "n = LayerNormalization(x, g) y = Relu(n) z = StringNormalizer(s) q = SequenceConstruct(n) u = made.Up(n)",
        "made",
    )
    optimized, _ = optimize(model)
    kept = [node for node in optimized.graph.node if not node.op_type.startswith("Fused")]
    assert [node.op_type for node in kept] == ["Relu", "StringNormalizer", "SequenceConstruct", "Up"]


def test_unknown_target_is_refused() -> None:
    with pytest.raises(ValueError, match="portable, custom-op, standard"):
        optimize(_decorated(), target="else")


def test_node_that_breaks_its_schema_is_named() -> None:
    """onnx.checker refuses it as well; the pass does not rely on that."""
    model = model_of("LeakyRelu(Plain(x))", PLAIN)
    model.graph.node[-1].name = "broken"
    model.graph.node[-1].attribute.append(helper.make_attribute("alpha", "no number"))
    with pytest.raises(InvalidModelError, match="broken"):
        optimize(model)


def test_progress_reaches_the_end() -> None:
    calls: list[tuple[int, int]] = []
    optimize(_decorated(), progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (4, 4)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_is_documented(rule: type) -> None:
    """The documentation's table of rewrites is made from these sketches."""
    assert rule.__doc__ is not None
    before, after = rule.__doc__.split("Before::\n")[1].split("After::\n")
    assert before.strip()
    assert "Fused" in after


def test_chain_in_the_body_of_a_scan() -> None:
    body = """last, y = Scan <num_scan_inputs = 1,
        body = b (float[8] state, float[5,8] part) => (float[8] next, float[5,8] r)
        { n = LayerNormalization(part, g) r = Relu(n) next = Identity(state) }> (g, x)"""
    model = _parse("float[2,5,8] x) => (float[2,5,8] y", body)
    optimized, result = optimize(model)
    assert [(site.description, site.graph.split(" of ")[0]) for site in result.sites] == [
        ("LayerNormalization -> Relu", "body")
    ]
    _same_results(model, optimized, _feeds())


def test_graph_without_names_and_types() -> None:
    model = model_of(RESIDUAL, PLAIN, opset=13)
    model.graph.output[0].ClearField("type")
    for node in model.graph.node:
        node.name = ""
    model.ClearField("producer_name")
    optimized, result = optimize(model)
    assert [site.description for site in result.sites] == ["Add -> LayerNormalization -> Relu"]
    _same_results(model, optimized, _feeds("x", "r"))


@pytest.mark.parametrize("opset", [17, 25])
@pytest.mark.parametrize("ir_version", [8, 13])
def test_ir_versions(ir_version: int, opset: int) -> None:
    model = _decorated()
    model.ir_version, model.opset_import[0].version = ir_version, opset
    optimized, _ = optimize(model)
    assert optimized.ir_version == ir_version
    _same_results(model, optimized, _feeds())


def test_long_name_of_the_standard_domain() -> None:
    model = model_of("Relu(Plain(x))", PLAIN)
    model.opset_import[0].domain = "ai.onnx"
    for node in model.graph.node:
        node.domain = "ai.onnx"
    optimized, result = optimize(model)
    assert [site.description for site in result.sites] == ["LayerNormalization -> Relu"]
    _same_results(model, optimized, _feeds())


def test_work_grows_in_proportion_to_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matches tried, counted: benchmarks/rewriting.py measures the time, up to 100,000 nodes."""
    tried: list[str] = []
    match = ChainMatcher.match

    def counted(self: ChainMatcher, root: ir.Node) -> Any:
        tried.append(root.op_type)
        return match(self, root)

    monkeypatch.setattr(ChainMatcher, "match", counted)
    counts = []
    for layers in (10, 40):
        g = SpellingBuilder(13)
        x = g.input("x", SHAPE)
        for _ in range(layers):
            d = g.add("Sub", x, g.reduce_mean(x, [-1]))
            n = g.add("Div", d, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", d, 2.0), [-1]), 1e-5)))
            x = g.add("Add", x, g.add("MatMul", g.add("Mul", n, g.add("Sigmoid", n)), g.weight(8, 8)))
        g.output(x, SHAPE)
        tried.clear()
        _, result = optimize(g.model("layers"))
        assert sum(site.fused_into is not None for site in result.sites) == layers
        counts.append(len(tried))
    assert counts[1] <= 4.1 * counts[0], counts
