"""Quantised files of real networks: `normfuse inspect` leaves none of their pairs unexplained."""

from __future__ import annotations

import onnx
import pytest
from quantized_zoo import NAMES, quantized_file, said_of, scheme_of

# The main part runs these; the others are "slow".
FIRST = ("ocr-direction-a16w8", "ocr-direction-s8s8")
FILES = [
    pytest.param(
        name, marks=[pytest.mark.xdist_group(name.rpartition("-")[0]), *([] if name in FIRST else [pytest.mark.slow])]
    )
    for name in NAMES
]
TYPES = {"QUInt16": "uint16", "QUInt8": "uint8", "QInt8": "int8"}


@pytest.mark.parametrize("name", FILES)
def test_every_pair_is_explained(name: str) -> None:
    said = said_of(name)
    assert not said.not_asked
    scheme = scheme_of(name)
    assert said.forms == ("QDQ",)
    assert list(said.activations) == [TYPES[scheme.activations]]
    assert ("int8 per channel" in said.weights) == scheme.per_channel
    nodes = onnx.load(quantized_file(name), load_external_data=False).graph.node
    pairs = [node.name for node in nodes if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    explained = [node for group in said.pairs for node in group.nodes]
    assert sorted(explained) == sorted(pairs)
    for group in said.pairs:
        assert group.message
        assert group.becomes in ("fused", "folded", "repeated", "in_integers", "claimed", "left", "not_seen")
    # Taken away as a Gather of integers follows, or moved to meet another pair: few of hundreds.
    unseen = sum(len(group.nodes) for group in said.pairs if group.becomes == "not_seen")
    assert unseen <= 0.05 * len(pairs)
