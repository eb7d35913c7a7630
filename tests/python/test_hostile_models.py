"""Damaged models, and small ones that ask for terabytes or for ever: a result or our exception, in little memory.

NORMFUSE_FUZZ_EXAMPLES=10000 tries more damaged ones (tests/run.py --step slow: 500).
"""

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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
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
        *((lambda at=at: calling_itself(onnx.ModelProto.FromString(BASES[at])), "calls itself") for at in (0, 2)),
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


def calling_itself(made: onnx.ModelProto) -> onnx.ModelProto:
    call = helper.make_node("Loop", ["a"], ["b"], domain="own")
    made.functions.append(helper.make_function("own", "Loop", ["a"], ["b"], [call], [helper.make_opsetid("own", 1)]))
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.graph.node[0].op_type, made.graph.node[0].domain = "Loop", "own"
    return made


NAMES = ["", "nowhere", "x", "\N{SNOWMAN}", "a" * 3000, "ai.onnx", "ai.normfuse", "com.microsoft", "some.where"]
NAMES += [
    "FusedNormalization",
    "NoSuchOperator",
    "LayerNormalization",
    "axis",
    "axes",
    "epsilon",
    "perm",
    "to",
    "alpha",
]
NUMBERS = [0, 1, 2, 6, 7, 8, 99, -1, -99, 2**31 - 1, 2**40, 2**62]


def odd(field: Any, given: Any, names: list[str], rng: random.Random) -> Any:
    """A value that a field may have, and that no model has there."""
    if field.enum_type is not None:
        return rng.choice(field.enum_type.values).number
    if isinstance(given, str):
        return rng.choice([*names, *NAMES])
    if isinstance(given, bytes):
        return rng.choice([given[: len(given) // 2], given * 2, b"\xff", b""])
    if isinstance(given, float):
        return rng.choice([0.0, -1.0, 0.5, float("nan"), float("inf")])
    most = 2**31 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 2**63
    least = 0 if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64) else -most
    return rng.choice([number for number in (*NUMBERS, rng.randrange(30)) if least <= number < most])


def damage(message: Any, names: list[str], rng: random.Random) -> None:
    """Change, clear, drop, double, add or shuffle something in a message, or in one that it holds."""
    present = [field for field, _ in message.ListFields()]
    field = rng.choice([*present * 3, *message.DESCRIPTOR.fields])
    value, holds = getattr(message, field.name), field.message_type is not None
    if not hasattr(value, "extend"):
        if rng.random() < 0.1:
            message.ClearField(field.name)
        elif holds:
            damage(value, names, rng)
        else:
            setattr(message, field.name, odd(field, value, names, rng))
        return
    at = rng.randrange(len(value)) if value else 0
    match rng.choice(["into"] * 6 + ["drop", "double", "shuffle", "many"]) if value else "add":
        case "into" if holds:
            damage(value[at], names, rng)
        case "into":
            value[at] = odd(field, value[at], names, rng)
        case "drop":
            del value[at]
        case "double" | "many" as how:
            value.extend([value[at]] * (1 if how == "double" else 40))
        case "shuffle":
            shuffled = rng.sample(list(value), len(value))
            del value[:]
            value.extend(shuffled)
        case _ if holds:
            damage(value.add(), names, rng)
        case _:
            value.append(odd(field, _BLANK.get(field.type, 0), names, rng))


_BLANK = {1: 0.0, 2: 0.0, 9: "", 12: b""}  # by the type of the field


def damaged(base: int, times: int, rng: random.Random, in_graph: float = 0.8) -> onnx.ModelProto:
    """A model that is damaged so many times, most of the time in its graph: what stands beside it is little."""
    made = onnx.ModelProto.FromString(BASES[base])
    for _ in range(times):
        names = [name for node in made.graph.node for name in (*node.input, *node.output, node.op_type)]
        damage(made.graph if rng.random() < in_graph else made, names, rng)
    return made


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
@given(base=st.sampled_from(range(len(BASES))), times=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_mutated_models(base: int, times: int, seed: int) -> None:
    survives(damaged(base, times, random.Random(seed)))


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
    """A smaller number, as each one that ONNX Runtime loads is also run. On damaged functions it may crash."""
    refused = 0
    for seed in range(60):
        try:
            normfuse.optimize(damaged(seed % len(BASES), 1, random.Random(seed), in_graph=1))
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
