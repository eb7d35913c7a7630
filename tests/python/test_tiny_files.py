"""Files of a few kilobytes that ask for terabytes or for ever: refused, or looked at without computing any of it."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny_bombs
from onnx import TensorProto, helper, numpy_helper
from tiny_bombs import Nodes, call, function, model

import normfuse
from normfuse.files.model_files import load_model
from normfuse.graph_rewrites import rewrite

pytestmark = pytest.mark.timeout(300)

ROW, COLUMN = np.ones((1, 1 << 18), np.int64), np.ones((1 << 18, 1), np.int64)


@pytest.mark.parametrize(
    ("nodes", "initializers"),
    [
        ([helper.make_node("Range", ["zero", "many", "one"], ["r"])], {}),
        ([helper.make_node("ConstantOfShape", ["large"], ["r"])], {}),
        ([helper.make_node("ConstantOfShape", ["overflowing"], ["r"])], {}),
        ([helper.make_node("Expand", ["one", "overflowing"], ["r"])], {}),
        ([helper.make_node("Mul", ["row", "column"], ["r"])], {"row": ROW, "column": COLUMN}),
        ([helper.make_node("Gather", ["row", "zeros"], ["r"])], {"row": ROW, "zeros": 0 * ROW}),
    ],
    ids=["Range", "ConstantOfShape", "overflow", "Expand", "broadcast", "Gather"],
)
def test_nothing_large_is_computed(nodes: Nodes, initializers: dict[str, np.ndarray]) -> None:
    """What is computed would be the scale of the chain, or its epsilon: the pass asks for its value."""
    numbers = {"zero": 0, "one": 1, "many": 1 << 40, "large": [1 << 40], "overflowing": [1 << 32, 1 << 32]}
    given = {name: np.array(value, np.int64) for name, value in numbers.items()}
    used = {name for node in nodes for name in node.input}
    arrays = initializers | {name: array for name, array in given.items() if name in used}
    last = nodes[-1].output[0]
    further = [
        helper.make_node("Cast", [last], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "float"], ["scaled"]),
        helper.make_node("Relu", ["scaled"], ["r2"]),
        helper.make_node("Shape", ["r2"], ["s"]),
    ]
    sites = normfuse.inspect(model([*nodes, *further], arrays))
    assert "FusedNormalization" in [site.fused_into for site in sites]


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


def test_functions_that_grow_without_bound() -> None:
    """Each calls the one below it twice."""
    functions = [function("f0", helper.make_node("Neg", ["p"], ["q"]))]
    functions += [function(f"f{i}", call(f"f{i - 1}", "p", "t"), call(f"f{i - 1}", "t", "q")) for i in range(1, 41)]
    with pytest.raises(normfuse.InvalidModelError, match=r"functions, written out .* are 1\.1e\+12 nodes"):
        load_model(model([call("f40", "x", "z")], functions=functions))
    assert load_model(model([call("f5", "x", "z")], functions=functions)).size > 0


def test_functions_that_call_each_other_for_ever_deeper() -> None:
    functions = [function("f0", helper.make_node("Neg", ["p"], ["q"]))]
    functions += [function(f"f{i}", call(f"f{i - 1}")) for i in range(1, 3000)]
    with pytest.raises(normfuse.InvalidModelError, match="more than 200 levels deep"):
        load_model(model([call("f2999", "x", "z")], functions=functions))


@pytest.mark.parametrize("fields", [{}, {"float_data": [1.0, 2.0]}])
def test_weights_without_their_data(fields: dict[str, list[float]]) -> None:
    made = model([])
    made.graph.initializer.append(onnx.TensorProto(name="huge", data_type=1, dims=[1 << 40], **fields))
    with pytest.raises(normfuse.InvalidModelError, match=r"'huge' .* needs 1099511627776 elements and has [02]\."):
        load_model(made)


def test_sparse_weights_too_large_to_be_dense() -> None:
    made = model([])
    values = numpy_helper.from_array(np.ones(1, np.float32), "huge")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "indices")
    made.graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=indices, dims=[1 << 33]))
    with pytest.raises(normfuse.InvalidModelError, match=r"'huge' .* does not fit into a model"):
        load_model(made)


def test_numbers_whose_file_is_gone() -> None:
    """Their size is looked for in what is known: nothing is, and the rest of the model is rewritten."""
    made = ir.from_proto(model([]))
    gone = ir.ExternalTensor("gone.bin", 0, 80, ir.DataType.INT64, shape=ir.Shape([10]), name="gone")
    made.graph.register_initializer(ir.Value(name="gone", const_value=gone))
    made.graph.append(ir.Node("", "Shape", [made.graph.initializers["gone"]]))
    result = rewrite(made)
    assert [site.fused_into for site in result.sites] == ["FusedNormalization"]
