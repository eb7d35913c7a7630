"""Damaged models: whatever is wrong with one, the answer is a result or an exception of ours, never another one.

NORMFUSE_FUZZ_EXAMPLES=10000 tries more of them (tests/run.py --step slow: 500).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import normfuse
from normfuse import models

EXAMPLES = int(os.environ.get("NORMFUSE_FUZZ_EXAMPLES", "100"))


def with_branches() -> onnx.ModelProto:
    model = models.chain(["n", 8], spelling="pow_div", activation_name="gelu_erf", opset=17)
    branch = helper.make_graph(
        [
            helper.make_node("LayerNormalization", ["x", "constant_0"], ["n"], name="inner_norm"),
            helper.make_node("Relu", ["n"], ["r"], name="inner_relu"),
        ],
        "branch",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, None)],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(True), "condition"))
    model.graph.node.append(
        helper.make_node("If", ["condition"], ["chosen"], name="choice", then_branch=branch, else_branch=branch)
    )
    return model


BASES = [
    model.SerializeToString()
    for model in (
        models.transformer_encoder(layers=1, hidden=8, heads=2, vocabulary=10, positions=16, quantized=True),
        models.diffusion_resblock(channels=4, groups=2, size=4),
        models.swiglu_block(hidden=8, inner=16),
        models.ocr_block(channels=4),
        models.chain([2, 8], input_type="int8", output_type="uint8", residual=True, activation_name="gelu"),
        normfuse.optimize(models.chain([2, 8], residual=True), verify=False).model,
        with_branches(),
    )
]


def nodes(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice(model.graph.node)


def some_name(model: onnx.ModelProto, rng: random.Random) -> str:
    names = [name for node in model.graph.node for name in (*node.input, *node.output)]
    return rng.choice([*names, "", "nowhere", "x", "\N{SNOWMAN}", "a" * 3000])


def change_input(model: onnx.ModelProto, rng: random.Random) -> None:
    node = nodes(model, rng)
    if node.input:
        node.input[rng.randrange(len(node.input))] = some_name(model, rng)


def change_inputs_count(model: onnx.ModelProto, rng: random.Random) -> None:
    node = nodes(model, rng)
    kept = [name for name in node.input if rng.random() < 0.6] + [some_name(model, rng)] * rng.choice([0, 0, 1, 40])
    del node.input[:]
    node.input.extend(kept)


def change_output(model: onnx.ModelProto, rng: random.Random) -> None:
    node = nodes(model, rng)
    if rng.random() < 0.5:
        del node.output[:]
    node.output.append(some_name(model, rng))


def change_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    node = nodes(model, rng)
    node.op_type = rng.choice(
        [nodes(model, rng).op_type, "", "FusedNormalization", "NoSuchOperator", "LayerNormalization"]
    )
    node.domain = rng.choice([node.domain, "", "ai.onnx", "ai.normfuse", "com.microsoft", "some.where"])


def change_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    node = nodes(model, rng)
    name = rng.choice(
        ["axis", "axes", "epsilon", "perm", "num_groups", "keepdims", "to", "value", "alpha", "activation"]
    )
    if node.attribute and rng.random() < 0.5:
        name = rng.choice(node.attribute).name
        del node.attribute[:]
    value = rng.choice([0, 1, -99, 2**62, 0.5, float("nan"), float("inf"), "text", b"\xff", [1, 2], [-5], [0.5], ["a"]])
    node.attribute.append(helper.make_attribute(name, value))


def many_attributes(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes(model, rng).attribute.extend(helper.make_attribute(f"extra_{i}", i) for i in range(2000))


def drop_attribute_type(model: onnx.ModelProto, rng: random.Random) -> None:
    node = nodes(model, rng)
    if node.attribute:
        rng.choice(node.attribute).type = rng.choice(range(15))


def change_order(model: onnx.ModelProto, rng: random.Random) -> None:
    shuffled = list(model.graph.node)
    rng.shuffle(shuffled)
    del model.graph.node[:]
    model.graph.node.extend(shuffled)


def drop_node(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.node[rng.randrange(len(model.graph.node))]


def double_node(model: onnx.ModelProto, rng: random.Random) -> None:
    model.graph.node.append(nodes(model, rng))


def change_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.initializer:
        tensor = rng.choice(model.graph.initializer)
        what = rng.randrange(5)
        if what == 0:
            tensor.dims.append(rng.choice([0, 1, 2, -1, 2**40]))
        elif what == 1:
            tensor.data_type = rng.randrange(30)
        elif what == 2:
            tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2]
        elif what == 3:
            tensor.data_location = TensorProto.EXTERNAL
        else:
            tensor.dims[:] = tensor.dims[::-1]


def drop_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.initializer:
        del model.graph.initializer[rng.randrange(len(model.graph.initializer))]


def weight_is_input(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.initializer:
        tensor = rng.choice(model.graph.initializer)
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))


def wrong_value_info(model: onnx.ModelProto, rng: random.Random) -> None:
    shape = rng.choice([None, [], [1], [2, 8], ["n", "n"], [-1, 8], [0], [2**40] * 3, [1] * 20])
    info = helper.make_tensor_value_info(some_name(model, rng), rng.randrange(1, 24), shape)
    rng.choice([model.graph.value_info, model.graph.input, model.graph.output]).append(info)


def untyped_value(model: onnx.ModelProto, rng: random.Random) -> None:
    rng.choice([*model.graph.input, *model.graph.output]).ClearField("type")


def change_versions(model: onnx.ModelProto, rng: random.Random) -> None:
    what = rng.randrange(4)
    if what == 0:
        model.ir_version = rng.choice([1, 3, 99, 2**40])
    elif what == 1:
        rng.choice(model.opset_import).version = rng.choice([0, 1, 6, 7, 99, -1])
    elif what == 2:
        model.opset_import.append(model.opset_import[0])
    else:
        del model.opset_import[:]


def change_function(model: onnx.ModelProto, rng: random.Random) -> None:
    for function in model.functions:
        if function.node and rng.random() < 0.5:
            del function.node[rng.randrange(len(function.node))]
        else:
            function.input.append(rng.choice([*function.input, "another"]))


def function_calls_itself(model: onnx.ModelProto, rng: random.Random) -> None:
    call = helper.make_node("Loop", ["a"], ["b"], domain="own")
    model.functions.append(helper.make_function("own", "Loop", ["a"], ["b"], [call], [helper.make_opsetid("own", 1)]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    node = nodes(model, rng)
    node.op_type, node.domain = "Loop", "own"


MUTATIONS: list[Callable[[onnx.ModelProto, random.Random], None]] = [
    change_input,
    change_inputs_count,
    change_output,
    change_operator,
    change_attribute,
    many_attributes,
    drop_attribute_type,
    change_order,
    drop_node,
    double_node,
    change_weight,
    drop_weight,
    weight_is_input,
    wrong_value_info,
    untyped_value,
    change_versions,
    change_function,
    function_calls_itself,
]


def survives(model: onnx.ModelProto | bytes) -> None:
    try:
        result = normfuse.optimize(model, verify=False)
        kept = result.model if isinstance(result.model, bytes) else result.model.SerializeToString()
        assert onnx.ModelProto.FromString(kept).ir_version
    except normfuse.NormfuseError as error:
        message = str(error)
        assert message.endswith(".")
        assert len(message.splitlines()) == 1


@pytest.mark.fuzz
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    base=st.sampled_from(range(len(BASES))),
    mutations=st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
@example(base=0, mutations=[function_calls_itself], seed=0)
def test_mutated_models(base: int, mutations: list[Callable[..., None]], seed: int) -> None:
    model = onnx.ModelProto.FromString(BASES[base])
    rng = random.Random(seed)
    for mutation in mutations:
        if model.graph.node and model.opset_import and (model.graph.input or model.graph.output):
            mutation(model, rng)
    survives(model)


@pytest.mark.fuzz
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
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


def test_verification_of_damaged_models_ends_in_our_exceptions(tmp_path: Path) -> None:
    """A smaller number, as each one that ONNX Runtime loads is also run."""
    refused = 0
    for seed in range(60):
        rng = random.Random(seed)
        model = onnx.ModelProto.FromString(BASES[seed % len(BASES)])
        rng.choice(MUTATIONS)(model, rng)
        try:
            normfuse.optimize(model)
        except normfuse.NormfuseError:
            refused += 1
    assert 0 < refused < 60


def test_a_cycle_of_functions_is_refused() -> None:
    model = onnx.ModelProto.FromString(BASES[2])
    function_calls_itself(model, random.Random(0))
    with pytest.raises(normfuse.InvalidModelError, match="calls itself"):
        normfuse.optimize(model)


@pytest.mark.parametrize("position", [1, 2])
@pytest.mark.parametrize("value", ["LayerNormalization_2_0", "Gelu_3_0", "sum", "DequantizeLinear_0_0"])
def test_a_chain_that_feeds_its_own_parameters(position: int, value: str) -> None:
    model = onnx.ModelProto.FromString(BASES[4])
    node = next(node for node in model.graph.node if node.op_type == "QuantizeLinear")
    node.input[position] = value
    survives(model)
