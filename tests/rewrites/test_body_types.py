"""The bodies of portable models run on ONNX Runtime alone, whatever float types their operands have.

Chains between casts, as converters leave them, are in tests/corpus/types.txt.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import harness
import ml_dtypes
import numpy as np
from families import Family, fill
from hypothesis import given, settings
from hypothesis import strategies as st
from rewrite_harness import fused_nodes, inputs_of, meaning_of, optimize

from normfuse.meaning import Array, dtype_code, evaluate
from normfuse.spec import ELEMENT_TYPES, labels_of, read_program

SHAPE = (2, 4, 3, 8)
TYPES: list[Any] = [np.float32, np.float16, ml_dtypes.bfloat16]
NAMES = {each.number: name for name, each in ELEMENT_TYPES.items()}
#: What is normalised, how scale and bias lie, and their shape: each form has a body of its own.
FORMS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "last": ("Normalize axes=-1", "", (8,)),
    "last two": ("Normalize axes=-2,-1", "", (3, 8)),
    "scale for each row": ("Normalize axes=-1", "", (3, 1)),
    "root mean square": ("Normalize axes=-1 use_mean=0", "", (8,)),
    "instance": ("Normalize axes=-2,-1", " align=channel", (4,)),
    "channels": ("Normalize axes=1", "", (4, 1, 1)),
    "groups": ("Normalize num_groups=2", " align=channel", (4,)),
    "group scales": ("Normalize num_groups=2", " align=group", (2,)),
    "groups without mean": ("Normalize num_groups=2 use_mean=0", " align=channel", (4,)),
    "mean and variance": ("Normalize axes=0,2,3 epsilon=1e-09 epsilon_on=stddev", "", (4, 1, 1)),
    "element-wise": ("", "", (8,)),
    "element-wise channels": ("", " align=channel", (4,)),
}
#: PRelu has a slope of its own type; float16 has no kernel of its own for the others.
ACTIVATIONS = ("", "Gelu", "Swish", "PRelu slope", "HardSwish", "Softplus")


class Node(NamedTuple):
    opset: int
    steps: list[str]
    tensors: dict[str, Array]
    outputs: list[str]


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Any node of our domain, in any mixture of float types."""
    core, align, parameter = FORMS[draw(st.sampled_from(sorted(FORMS)))]
    numbers = np.random.default_rng(draw(st.integers(0, 99)))
    family = Family(draw(st.sampled_from(["noise", "ramp", "outlier", "zeros behind", "pink"])))

    def kind() -> Any:
        return draw(st.sampled_from(TYPES))

    def stored() -> str:
        return f"type={NAMES[dtype_code(np.zeros(0, kind()))]}"

    tensors: dict[str, Array] = {"X": fill(family, numbers, SHAPE, kind())}
    steps, outputs = [], ["Y"]

    def step(name: str, label: str, array: Array, more: str = "") -> None:
        tensors[label] = array
        steps.append(f"{name} {label}{more}")

    if draw(st.integers(0, 3)) == 0:
        tensors["X"] = numbers.integers(-100, 100, SHAPE).astype(np.int8)
        step("Dequantize", "scale=x_scale", np.array(0.03, kind()))
    if core and "groups" not in core:
        outputs += draw(
            st.sampled_from([[], ["sum"], ["sum", *(() if "use_mean" in core else ("mean", "inv_std_dev"))]])
        )
        if draw(st.booleans()):
            step("Add", "residual", numbers.normal(0, 1, SHAPE).astype(kind()))
            if draw(st.booleans()):
                step("Add", "residual_bias", numbers.normal(0, 1, 8).astype(kind()))
            if draw(st.integers(0, 2)) == 0:
                tensors["sum_zero_point"] = np.array(-2, np.int8)
                step("Requantize", "scale=sum_scale", np.array(0.1, kind()), " zero_point=sum_zero_point")
        if "sum" in outputs and "sum_scale" not in str(steps) and draw(st.booleans()):
            steps.append(f"Emit {stored()}")
    steps += [core] * bool(core)
    for name, label, mean in (("Mul", "scale", 1.0), ("Add", "bias", 0.0)):
        if draw(st.booleans()):
            step(name, label, numbers.normal(mean, 1, parameter).astype(kind()), align)
    if activation := draw(st.sampled_from(ACTIVATIONS)):
        steps.append(activation)
        if "slope" in activation:
            tensors["slope"] = numbers.normal(0, 1, 8).astype(kind())
    ending = draw(st.sampled_from(["", "store", "quantize"]))
    if ending == "store":
        steps.append(f"Store {stored()}")
    elif ending:
        tensors["y_zero_point"] = np.array(3, np.int8)
        step("Quantize", "scale=y_scale", np.array(0.05, kind()), " zero_point=y_zero_point")
    tensors = {label.removeprefix("scale="): array for label, array in tensors.items()}
    return Node(draw(st.sampled_from((13, 17, 18, 21, 23))), steps or ["Identity"], tensors, outputs)


@settings(max_examples=2 * settings().max_examples)
@given(node=nodes())
def test_body_of_any_mixture_of_types(node: Node) -> None:
    text = "; ".join(node.steps)
    op = "FusedNormalization" if "Normalize" in text else "FusedActivation"
    ordered = {label: node.tensors[label] for label in ("X", *labels_of(read_program(text)))}
    types = {name: value.code for name, value in evaluate(text, ordered).items() if name in node.outputs}
    fixed = [label for label in ordered if label.startswith(("x_", "y_", "sum_"))]
    model = harness.operator_model(op, ordered, {"steps": text}, types, constants=fixed, opset=node.opset)
    portable, _ = optimize(model)
    (fused,) = fused_nodes(portable)
    expected = meaning_of(fused, portable, ordered)
    # What is rounded on the way: float16 sums and parameters; bfloat16 is computed in float32.
    half = any(array.dtype == np.float16 for array in inputs_of(fused, portable, ordered).values())
    got = harness.run(harness.create_session(portable, "cpu"), ordered)
    for name, output in harness.read_node(fused).outputs.items():
        size = 1 + np.abs(np.nan_to_num(expected[name].exact))
        expected[name].widened((0.05 if half else 3e-4) * size).check(got[output], f"{name} of {text}")
