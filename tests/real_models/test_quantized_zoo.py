"""Quantised files of real networks: every pair is explained, and a session runs those in the operator-oriented form as
it runs the same network in QDQ form.
"""

from __future__ import annotations

import platform

import harness
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from quantized_zoo import NAMES, OPERATOR_NAMES, check_pairs, network_of, quantized_file, said_of, scheme_of

import normfuse
from normfuse.graph_rewrites.engine.passes import Context
from normfuse.sessions.session_model import PAIRS

on_x86 = pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="they stay on this processor")
# The main part runs these; the others are "slow".
FIRST = ("ocr-direction-a16w8", "ocr-direction-s8s8", "ocr-direction-s8s8op")
TYPES = {"QUInt16": "uint16", "QUInt8": "uint8", "QInt8": "int8"}


def files(*names: str) -> pytest.MarkDecorator:
    marks = {name: [] if name in FIRST else [pytest.mark.slow] for name in names}
    groups = {name: pytest.mark.xdist_group(name.rpartition("-")[0]) for name in names}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=[groups[name], *marks[name]]) for name in names])


PRODUCTS = ("QGemm", "QLinearConv", "QLinearMatMul")


@files(*NAMES)
def test_every_pair_is_explained(name: str) -> None:
    said, scheme = said_of(name), scheme_of(name)
    assert said.forms == ("QDQ",)
    assert list(said.activations) == [TYPES[scheme.activations]]
    assert ("int8 per channel" in said.weights) == scheme.per_channel
    # Taken away as a Gather of integers follows, or moved to meet another pair: few of hundreds.
    check_pairs(said, onnx.load(quantized_file(name), load_external_data=False), not_seen=0.05)


@on_x86
@files(*OPERATOR_NAMES)
def test_every_operator_becomes_pairs(name: str) -> None:
    # Whatever the processor: no session has a part in it.
    model = ir.load(quantized_file(name))
    before = sum(node.op_type in PRODUCTS for node in model.graph)
    assert before > 20
    assert Context(model).run(PAIRS) > before
    left = [node.op_type for node in model.graph if node.domain == "com.microsoft" or node.op_type in PRODUCTS]
    # The scale of BERT's mask, 1.3e36 and more, stands for infinity as well.
    assert set(left) <= {"QLinearSoftmax", "QLinearMul"}
    assert left.count("QLinearMul") <= 1
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


@pytest.mark.without_vnni
@on_x86
@files(*OPERATOR_NAMES)
def test_products_are_those_of_the_same_network_in_pairs(name: str) -> None:
    said = said_of(name)
    assert not said.not_asked
    assert "QOperator" in said.forms
    assert all(not each.types.startswith("int8 x") for each in said.in_session)
    if scheme_of(name).activations == "QInt8":
        assert any(each.types.startswith("int8 x") for each in said.products)
    of_network = name.removesuffix("op")
    if of_network.endswith("-u8s8"):
        return  # no file of the zoo is quantised so in QDQ form
    other = said_of(of_network)
    kinds, of_other = (
        {(each.operator, each.types) for each in products if each.types != "float32"}
        for products in (said.in_session, other.in_session)
    )
    assert kinds == of_other  # in float between other pairs, which may go
    assert sum(each.count for each in said.in_session) > 20


@on_x86
@pytest.mark.without_vnni
@files("ocr-direction-s8s8op")
def test_the_numbers_of_the_file(name: str) -> None:
    path = quantized_file(name)
    written = ir.load(path)
    Context(written).run(PAIRS)
    options = harness.session_options("cpu")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = ir.to_proto(written).SerializeToString()
    in_float = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    session = normfuse.InferenceSession(path, harness.session_options("cpu"))
    for seed in range(3):
        feeds = network_of(name).feeds(np.random.default_rng(seed))
        (got,), (expected,) = session.run(None, feeds), in_float.run(None, feeds)
        # Probabilities, of which a step is 1 / 256.
        assert np.abs(got - expected).max() <= 3.01 / 256
