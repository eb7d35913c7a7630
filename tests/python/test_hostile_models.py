"""Damaged models, and small ones that ask for terabytes or for ever: a result or our exception, in little memory.

NORMFUSE_FUZZ_EXAMPLES=10000 tries more damaged ones (tests/run.py --step slow: 500).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny_bombs
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tiny_bombs import constant, function, model

import normfuse
from normfuse import models
from normfuse.files.model_files import load_model
from normfuse.graph_rewrites import rewrite

EXAMPLES = int(os.environ.get("NORMFUSE_FUZZ_EXAMPLES", "100"))
FUZZ = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

# --- small ones ---

ROW, COLUMN = np.ones((1, 1 << 18), np.int64), np.ones((1 << 18, 1), np.int64)


@pytest.mark.parametrize(
    ("node", "tensors"),
    [
        ("r = Range (zero, many, one)", {"zero": 0, "many": 1 << 40, "one": 1}),
        ("r = ConstantOfShape (large)", {"large": [1 << 40]}),
        ("r = ConstantOfShape (overflowing)", {"overflowing": [1 << 32, 1 << 32]}),
        ("r = Expand (one, overflowing)", {"one": 1, "overflowing": [1 << 32, 1 << 32]}),
        ("r = Mul (row, column)", {"row": ROW, "column": COLUMN}),
        ("r = Gather (row, zeros)", {"row": ROW, "zeros": 0 * ROW}),
    ],
)
def test_nothing_large_is_computed(node: str, tensors: dict[str, Any]) -> None:
    """What is computed would be the scale of the chain, or its epsilon: the pass asks for its value."""
    arrays = {name: np.array(value, np.int64) for name, value in tensors.items()}
    made = model(f"{node} float = Cast <to = 1> (r) m = Mul (x, float) r2 = Relu (m) s = Shape (r2)", **arrays)
    assert "FusedNormalization" in [site.fused_into for site in normfuse.inspect(made)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "groups",
    [
        ("Concat", "functions", "bodies"),
        ("2^24", "2^48", "Upsample"),
        ("rank", "casts"),
        pytest.param(("ranks", "many"), marks=pytest.mark.slow),
    ],
)
def test_nothing_large_is_inferred(groups: tuple[str, ...]) -> None:
    """In a process of its own that may not take much memory: what fails here would take all that a machine has."""
    done = subprocess.run([sys.executable, tiny_bombs.__file__, *groups], capture_output=True, text=True, check=False)
    *found, peak = [json.loads(line) for line in done.stdout.splitlines()] or [{}]
    assert done.returncode == 0, f"behind {found[-1:]}: {done.stderr[-2000:]}"
    assert [line["name"] for line in found] == [name for group in groups for name in tiny_bombs.BOMBS[group]()]
    assert [line["name"] for line in found if not line["fused"]] == []
    assert peak["kilobytes"] < 1 << 20


def with_functions(count: int, body: str) -> onnx.ModelProto:
    """Functions of which each calls the one below it."""
    below = [function(f"f{i}", body.replace("CALL", f"own.f{i - 1}")) for i in range(1, count)]
    return model(f"z = own.f{count - 1} (x)", [function("f0", "q = Neg (p)"), *below])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: with_functions(41, "t = CALL (p) q = CALL (t)"), r"functions, written out .* are 1\.1e\+12 nodes"),
        (lambda: with_functions(3000, "q = CALL (p)"), "more than 200 levels deep"),
        (lambda: with_weight(), r"'huge' .* needs 1099511627776 elements and has 0\."),
        (lambda: with_weight(float_data=[1.0, 2.0]), r"'huge' .* needs 1099511627776 elements and has 2\."),
        (lambda: with_sparse_weight(), r"'huge' .* does not fit into a model"),
        (lambda: calling_itself(onnx.ModelProto.FromString(BASES[2])), "calls itself"),
    ],
)
def test_what_has_no_end_is_refused(made: Any, words: str) -> None:
    with pytest.raises(normfuse.InvalidModelError, match=words):
        load_model(made())


def test_functions_of_a_few_levels_are_taken() -> None:
    assert load_model(with_functions(6, "t = CALL (p) q = CALL (t)")).size > 0


def with_weight(**fields: list[float]) -> onnx.ModelProto:
    made = model()
    made.graph.initializer.append(onnx.TensorProto(name="huge", data_type=1, dims=[1 << 40], **fields))
    return made


def with_sparse_weight() -> onnx.ModelProto:
    made = model()
    values = numpy_helper.from_array(np.ones(1, np.float32), "huge")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "indices")
    made.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=indices, dims=[1 << 33]))
    return made


def test_numbers_whose_file_is_gone() -> None:
    """Their size is looked for in what is known: nothing is, and the rest of the model is rewritten."""
    made = ir.from_proto(model())
    gone = ir.ExternalTensor("gone.bin", 0, 80, ir.DataType.INT64, shape=ir.Shape([10]), name="gone")
    made.graph.register_initializer(ir.Value(name="gone", const_value=gone))
    made.graph.append(ir.Node("", "Shape", [made.graph.initializers["gone"]]))
    assert [site.fused_into for site in rewrite(made).sites] == ["FusedNormalization"]


# --- damaged ones ---


def with_branches() -> onnx.ModelProto:
    body = "(float[n, 8] {name}) {{ n = LayerNormalization (x, w) {name} = Relu (n) }}"
    branches = f"then_branch = t () => {body.format(name='p')}, else_branch = e () => {body.format(name='q')}"
    gelu = f"{constant('r', 2**0.5, kind='float')} d = Div (x, r) f = Erf (d) g = Mul (f, x)"
    condition = "yes = Constant <value = bool {1}> ()"
    return model(f"{gelu} {condition} c = If (yes) <{branches}> s = Shape (c)")


BASES = [
    each.SerializeToString()
    for each in (
        models.transformer_encoder(layers=1, hidden=8, heads=2, vocabulary=10, positions=16, quantized=True),
        models.diffusion_resblock(channels=4, groups=2, size=4),
        models.swiglu_block(hidden=8, inner=16),
        models.ocr_block(channels=4),
        models.chain(["n", 8], spelling="pow_div", activation_name="gelu_erf", opset=17),
        models.chain([2, 8], input_type="int8", output_type="uint8", residual=True, activation_name="gelu"),
        normfuse.optimize(models.chain([2, 8], residual=True), verify=False).model,
        with_branches(),
    )
]


def calling_itself(made: onnx.ModelProto, at: int = 0) -> onnx.ModelProto:
    call = helper.make_node("Loop", ["a"], ["b"], domain="own")
    made.functions.append(helper.make_function("own", "Loop", ["a"], ["b"], [call], [helper.make_opsetid("own", 1)]))
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.graph.node[at].op_type, made.graph.node[at].domain = "Loop", "own"
    return made


OPERATORS = ["", "FusedNormalization", "NoSuchOperator", "LayerNormalization"]
DOMAINS = ["", "ai.onnx", "ai.normfuse", "com.microsoft", "some.where"]
ATTRIBUTES = ["axis", "axes", "epsilon", "perm", "num_groups", "keepdims", "to", "value", "alpha", "activation"]
VALUES = [0, 1, -99, 2**62, 0.5, float("nan"), float("inf"), "text", b"\xff", [1, 2], [-5], [0.5], ["a"]]
SHAPES = [None, [], [1], [2, 8], ["n", "n"], [-1, 8], [0], [2**40] * 3, [1] * 20]
MUTATIONS = (
    *("input", "inputs", "output", "operator", "attribute", "many attributes", "attribute type", "order", "drop node"),
    *("double node", "weight", "drop weight", "weight is input", "value info", "untyped value", "versions", "function"),
    "function calls itself",
)


def mutate(made: onnx.ModelProto, what: str, rng: random.Random) -> None:
    """Damage a model in one way."""
    graph, at = made.graph, rng.randrange(len(made.graph.node))
    node = graph.node[at]
    names = [name for each in graph.node for name in (*each.input, *each.output)]
    name = rng.choice([*names, "", "nowhere", "x", "\N{SNOWMAN}", "a" * 3000])
    match what:
        case "input" if node.input:
            node.input[rng.randrange(len(node.input))] = name
        case "inputs":
            kept = [each for each in node.input if rng.random() < 0.6] + [name] * rng.choice([0, 0, 1, 40])
            node.input[:] = kept
        case "output":
            node.output[:] = [*(node.output if rng.random() < 0.5 else []), name]
        case "operator":
            node.op_type = rng.choice([rng.choice(graph.node).op_type, *OPERATORS])
            node.domain = rng.choice([node.domain, *DOMAINS])
        case "attribute":
            chosen = rng.choice(ATTRIBUTES)
            if node.attribute and rng.random() < 0.5:
                chosen = rng.choice(node.attribute).name
                del node.attribute[:]
            node.attribute.append(helper.make_attribute(chosen, rng.choice(VALUES)))
        case "many attributes":
            node.attribute.extend(helper.make_attribute(f"extra_{i}", i) for i in range(2000))
        case "attribute type" if node.attribute:
            rng.choice(node.attribute).type = rng.choice(range(15))
        case "order":
            shuffled = rng.sample(list(graph.node), len(graph.node))
            del graph.node[:]
            graph.node.extend(shuffled)
        case "drop node":
            del graph.node[at]
        case "double node":
            graph.node.append(node)
        case "weight" | "drop weight" | "weight is input" if graph.initializer:
            mutate_weight(graph, what, rng)
        case "value info":
            info = helper.make_tensor_value_info(name, rng.randrange(1, 24), rng.choice(SHAPES))
            rng.choice([graph.value_info, graph.input, graph.output]).append(info)
        case "untyped value":
            rng.choice([*graph.input, *graph.output]).ClearField("type")
        case "versions":
            mutate_versions(made, rng)
        case "function":
            for each in made.functions:
                if each.node and rng.random() < 0.5:
                    del each.node[rng.randrange(len(each.node))]
                else:
                    each.input.append(rng.choice([*each.input, "another"]))
        case "function calls itself":
            calling_itself(made, at)


def mutate_weight(graph: onnx.GraphProto, what: str, rng: random.Random) -> None:
    at = rng.randrange(len(graph.initializer))
    tensor = graph.initializer[at]
    if what == "drop weight":
        del graph.initializer[at]
        return
    if what == "weight is input":
        graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
        return
    match rng.randrange(5):
        case 0:
            tensor.dims.append(rng.choice([0, 1, 2, -1, 2**40]))
        case 1:
            tensor.data_type = rng.randrange(30)
        case 2:
            tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2]
        case 3:
            tensor.data_location = TensorProto.EXTERNAL
        case _:
            tensor.dims[:] = tensor.dims[::-1]


def mutate_versions(made: onnx.ModelProto, rng: random.Random) -> None:
    match rng.randrange(4):
        case 0:
            made.ir_version = rng.choice([1, 3, 99, 2**40])
        case 1:
            rng.choice(made.opset_import).version = rng.choice([0, 1, 6, 7, 99, -1])
        case 2:
            made.opset_import.append(made.opset_import[0])
        case _:
            del made.opset_import[:]


def survives(made: onnx.ModelProto | bytes) -> None:
    try:
        result = normfuse.optimize(made, verify=False)
        kept = result.model if isinstance(result.model, bytes) else result.model.SerializeToString()
    except normfuse.NormfuseError as error:
        message = str(error)
        assert message.endswith(".")
        assert len(message.splitlines()) == 1
    else:
        assert onnx.ModelProto.FromString(kept).ir_version


@pytest.mark.fuzz
@FUZZ
@given(
    base=st.sampled_from(range(len(BASES))),
    mutations=st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
@example(base=0, mutations=["function calls itself"], seed=0)
def test_mutated_models(base: int, mutations: list[str], seed: int) -> None:
    made, rng = onnx.ModelProto.FromString(BASES[base]), random.Random(seed)
    for mutation in mutations:
        if made.graph.node and made.opset_import and (made.graph.input or made.graph.output):
            mutate(made, mutation, rng)
    survives(made)


@pytest.mark.fuzz
@FUZZ
@given(
    base=st.sampled_from(range(len(BASES))),
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=5),
    length=st.floats(0.01, 1),
)
def test_mutated_bytes(base: int, edits: list[tuple[float, int]], length: float) -> None:
    data = bytearray(BASES[base])
    data = data[: max(1, int(len(data) * length))] if length < 0.5 else data
    for place, value in edits:
        data[int(place * len(data))] = value
    survives(bytes(data))


def test_verification_of_damaged_models_ends_in_our_exceptions() -> None:
    """A smaller number, as each one that ONNX Runtime loads is also run."""
    refused = 0
    for seed in range(60):
        rng = random.Random(seed)
        made = onnx.ModelProto.FromString(BASES[seed % len(BASES)])
        mutate(made, rng.choice(MUTATIONS), rng)
        try:
            normfuse.optimize(made)
        except normfuse.NormfuseError:
            refused += 1
    assert 0 < refused < 60


@pytest.mark.parametrize("position", [1, 2])
@pytest.mark.parametrize("value", ["LayerNormalization_2_0", "Gelu_3_0", "sum", "DequantizeLinear_0_0"])
def test_a_chain_that_feeds_its_own_parameters(position: int, value: str) -> None:
    made = onnx.ModelProto.FromString(BASES[5])
    node = next(node for node in made.graph.node if node.op_type == "QuantizeLinear")
    node.input[position] = value
    survives(made)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data, path = models.chain(["n", 8], spelling="pow_div", opset=13).SerializeToString(), tmp_path / "model.onnx"
    for length in range(0, len(data) - 1, 7):
        path.write_bytes(data[:length])
        with pytest.raises(normfuse.InvalidModelError):
            load_model(path)
