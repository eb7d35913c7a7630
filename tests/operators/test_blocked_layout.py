"""claim=profitable leaves what ONNX Runtime keeps in its blocked layout around convolutions, and that alone."""

from __future__ import annotations

import platform
import random
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from checking import session_and_report

from normfuse.models import GraphBuilder

REASON = "layout of its own"
SIDE = 24
BLOCKED = "com.microsoft.nchwc"
on_x86 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="ONNX Runtime's blocked layout was read off on x86"
)


def network(seed: int) -> onnx.ModelProto:
    """A random net of convolutions and of what stands between them, with some activations of 16 channels."""
    draw = random.Random(seed)
    g = GraphBuilder(20, seed=seed)
    image = g.input("x", [1, 16, SIDE, SIDE])
    values = [image]

    def weights(*shape: int) -> str:
        return g.weight(*shape, scale=0.1)

    def conv() -> str:
        return g.add("Conv", draw.choice(values), weights(16, 16, 3, 3), pads=[1, 1, 1, 1])

    def gate() -> str:
        pooled = g.add("GlobalAveragePool", draw.choice(values))
        return g.add("Mul", draw.choice(values), g.add("Sigmoid", g.add("Conv", pooled, weights(16, 16, 1, 1))))

    def joined() -> str:
        both = g.add("Gelu", g.add("Concat", draw.choice(values), draw.choice(values), axis=1))
        return g.add("Conv", both, weights(16, 32, 1, 1))

    def narrow() -> str:
        inner = g.add("Conv", draw.choice(values), weights(12, 16, 1, 1))
        return g.add("Conv", g.add("Gelu", inner), weights(16, 12, 1, 1))

    steps = {
        conv: 5,
        lambda: g.add("Conv", draw.choice(values), weights(16, 1, 3, 3), pads=[1, 1, 1, 1], group=16): 2,
        lambda: g.add("Conv", draw.choice(values), weights(16, 4, 1, 1), group=4): 1,
        lambda: g.add("ConvTranspose", draw.choice(values), weights(16, 16, 1, 1)): 1,
        lambda: g.add("Gelu", draw.choice(values)): 8,
        lambda: g.add("Relu", draw.choice(values)): 1,
        lambda: g.add("Elu", draw.choice(values)): 1,
        lambda: g.add(draw.choice(["Add", "Mul", "Sub"]), draw.choice(values), draw.choice(values)): 3,
        lambda: g.add(draw.choice(["Add", "Mul"]), draw.choice(values), weights(1, 16, 1, 1)): 2,
        lambda: g.add("MaxPool", draw.choice(values), kernel_shape=[3, 3], pads=[1, 1, 1, 1]): 1,
        gate: 2,
        joined: 1,
        narrow: 1,
    }
    for step in draw.choices(list(steps), weights=list(steps.values()), k=14):
        values.append(step())
    total = values[1]
    for value in values[2:]:
        total = g.add("Add", total, value)
    g.output(total, [1, 16, SIDE, SIDE])
    return g.model(f"network {seed}")


def kept_blocked(model: onnx.ModelProto, folder: Path) -> dict[str, bool]:
    """Name of each Gelu node -> whether ONNX Runtime runs it on a blocked tensor."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4  # that the file holds what only this machine can run
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    graph = onnx.load(options.optimized_model_filepath).graph
    producers = {value: node for node in graph.node for value in node.output}

    def is_blocked(value: str) -> bool:
        node = producers.get(value)
        if node is None:
            return False
        return node.op_type != "ReorderOutput" if node.domain == BLOCKED else any(map(is_blocked, node.input))

    return {node.name: is_blocked(node.input[0]) for node in graph.node if node.op_type == "Gelu"}


def claims(model: onnx.ModelProto, folder: Path) -> dict[str, dict[str, object]]:
    """Name of each Gelu node -> its line in the claim report."""
    _, lines = session_and_report(model, folder, claim="profitable")
    return {line["node"]: line for line in lines if line["node"].startswith("Gelu")}


@on_x86
@pytest.mark.parametrize("seed", range(25))
def test_random_networks(seed: int, tmp_path: Path) -> None:
    model = network(seed)
    reported = claims(model, tmp_path)
    for name, blocked in kept_blocked(model, tmp_path).items():
        line = reported[name]
        by_layout = REASON in str(line.get("message", ""))
        priced_out = not line["claimed"] and not by_layout  # an instruction set on which our GELU is no faster
        assert priced_out or by_layout == blocked, f"{name}: blocked in ONNX Runtime: {blocked}, {line}"


@on_x86
def test_both_kinds_are_drawn(tmp_path: Path) -> None:
    kinds = {kind for seed in range(6) for kind in kept_blocked(network(seed), tmp_path).values()}
    assert kinds == {False, True}


@pytest.mark.parametrize("op_type", ["Sigmoid", "HardSigmoid", "LeakyRelu", "Tanh"])
def test_what_a_convolution_takes_in_is_left(op_type: str, tmp_path: Path) -> None:
    g = GraphBuilder(20)
    x = g.input("x", [1, 16, 4096])  # one dimension: never blocked
    y = g.add(op_type, g.add("Conv", x, g.weight(16, 16, 1)))
    g.output(y, [1, 16, 4096])
    _, (line,) = session_and_report(g.model("m"), tmp_path, claim="profitable")
    assert not line["claimed"]


def test_a_gate_and_constants_end_the_blocked_layout(tmp_path: Path) -> None:
    """PP-OCR's recogniser: a scalar factor and offset around each HardSwish, which are no blocked tensors."""
    g = GraphBuilder(20)
    x = g.input("x", [1, 16, 48, 320])
    conv = g.add("Conv", x, g.weight(16, 16, 3, 3), pads=[1, 1, 1, 1])
    scaled = g.add("Add", g.add("Mul", g.add("Relu", conv), np.float32(1.5)), np.float32(0.25))
    y = g.add("Conv", g.add("HardSwish", scaled), g.weight(16, 16, 1, 1))
    g.output(y, [1, 16, 48, 320])
    _, lines = session_and_report(g.model("m"), tmp_path, claim="profitable")
    assert [line for line in lines if REASON in line.get("message", "")] == []


@on_x86
def test_a_hard_swish_that_is_written_out_keeps_the_layout(tmp_path: Path) -> None:
    """ONNX Runtime has no kernel for HardSwish; what its HardSigmoid and Mul give, it keeps blocked."""
    g = GraphBuilder(20)
    x = g.input("x", [1, 16, 48, 320])
    conv = g.add("Conv", x, g.weight(16, 16, 3, 3), pads=[1, 1, 1, 1])
    y = g.add("Conv", g.add("HardSwish", conv), g.weight(16, 16, 1, 1))
    g.output(y, [1, 16, 48, 320])
    _, lines = session_and_report(g.model("m"), tmp_path, claim="profitable")
    assert lines
    assert [line for line in lines if line["claimed"]] == []
