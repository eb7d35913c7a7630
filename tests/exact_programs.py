"""Programs whose steps are exact in float32: what they give is known bit by bit."""

from dataclasses import dataclass, field

import harness
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import programs
from strategies import Numbers, Parameters

from normfuse import meaning
from normfuse.meaning import Array, evaluate

F32 = np.float32
INTEGERS = (np.uint8, np.int8, np.uint16, np.int16, ml_dtypes.uint4, ml_dtypes.int4)


@dataclass
class Program:
    """A program of exact steps as it grows: its text, and its tensors."""

    x: Array
    steps: list[str] = field(default_factory=list)
    tensors: dict[str, Array] = field(default_factory=dict)

    @property
    def value(self) -> Array:
        """What it gives, each operation rounded to float32."""
        steps = "; ".join(self.steps) or "Identity"
        return evaluate(steps, {"X": self.x, **self.tensors}, each_rounded=True)["Y"].exact.astype(F32)

    def fake_quantize(self, p: Parameters, code: int, *, saturate: bool = True) -> None:
        index = len(self.steps)
        text = f"FakeQuantize scale=s{index}"
        self.tensors[f"s{index}"] = p.scale
        if p.zero_point is not None:
            text += f" zero_point=z{index}"
            self.tensors[f"z{index}"] = p.zero_point
        text += f" axis={p.axis} block_size={p.block_size} type={programs.type_name(code)} saturate={int(saturate)}"
        self.steps.append(text)

    def combine(self, name: str, other: Array) -> None:
        label = f"t{len(self.steps)}"
        self.steps.append(f"{name} {label}")
        self.tensors[label] = other

    def relu(self) -> None:
        self.steps.append("Relu")

    def clip(self, low: F32, high: F32) -> None:
        self.steps.append(f"Clip min={low} max={high}")

    def model(self, x: Array, *, constants: bool) -> onnx.ModelProto:
        """One node; its tensors are initialisers, or arrive at run time."""
        inputs = {"X": x, **self.tensors}
        steps = {"steps": "; ".join(self.steps), "spec_version": 2}
        fixed = list(self.tensors) if constants else []
        code = meaning.dtype_code(x)
        return harness.operator_model("FusedActivation", inputs, steps, {"Y": code}, constants=fixed, opset=25)

    def check(self, x: Array, session: onnxruntime.InferenceSession) -> None:
        """That the session of such a model gives the very numbers."""
        got = harness.run(session, {"X": x, **self.tensors})["Y"]
        np.testing.assert_array_equal(got.astype(F32), self.value.astype(x.dtype).astype(F32), "; ".join(self.steps))


def nasty(numbers: Numbers, shape: tuple[int, ...]) -> Array:
    """Values among which are NaN, infinities, ties, denormals and what no integer type holds."""
    x = numbers.normal(shape, F32, 0.0, 1.0)
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -3e38, 0.025, 0.125], F32)
    where = numbers.generator.integers(0, 2, shape).astype(bool) & (numbers.generator.integers(0, 4, shape) == 0)
    return np.where(where, numbers.generator.choice(odd, shape), x).astype(F32)
