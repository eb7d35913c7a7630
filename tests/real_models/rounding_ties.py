"""A quantised model whose reference runs one set of float kernels: the limit on its outputs, but for rounding ties.

Where ONNX Runtime's optimisation levels all run the same float kernels between the pairs of a quantised model, they
agree to the bit and allow no difference at all. Yet a value within a unit in the last place of a tie of QuantizeLinear
goes one way with one order of summation and the other way with another, and the layers behind it make much of that
step: no implementation but the very same one agrees on every input.

So the question is asked without ties: the model runs with what is behind each normalisation replaced by the
reference's quantised values. Then (1) its outputs are within the limit, on every input; (2) each normalisation has the
reference's own inputs, and what it quantises is right by the float64 oracle; (3) where it is not what the reference
has, both are one step apart around a tie that the exact value is within a few units in the last place of. An input
without such a tie has to be within the limit without any replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import harness
import numpy as np
import onnx
import onnxruntime
import oracle
from model_zoo import Feeds
from oracle import Array

# ONNX Runtime's own error; ours is held to the oracle's four units.
REFERENCE_ULP = 8.0


@dataclass(frozen=True)
class Site:
    """A normalisation with a QuantizeLinear behind it: names of the values, and the oracle's view of the parameters."""

    x: str
    y: str
    parameters: Mapping[str, Array]
    attributes: Mapping[str, float | list[int]]

    def check(self, x: Array, reference: Array, got: Array) -> int:
        """Assert (2) and (3); gives the number of ties that went the other way."""
        expected = oracle.evaluate("FusedNormalization", {"X": x, **self.parameters}, self.attributes)["Y"]
        expected.check(got, self.y)
        step = float(self.parameters["y_scale"])
        size = 1.0 + np.abs(expected.exact) * step
        expected.widened(REFERENCE_ULP * oracle.ulp32(size) / step).check(reference, f"reference of {self.y}")
        apart = np.abs(got.astype(np.int64) - reference)
        assert apart.max() <= 1, self.y
        return int(apart.sum())


def sites_of(model: onnx.ModelProto) -> list[Site]:
    """Every LayerNormalization -> QuantizeLinear of a graph whose scale and bias are (quantised) constants."""
    constants = {tensor.name: harness.to_array(tensor) for tensor in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}

    def constant(name: str) -> Array:
        if name in constants:
            return constants[name]
        x, scale, zero_point = (constants[value] for value in producers[name].input)
        return oracle.dequantize(x, scale, zero_point, axis=0).astype(np.float32)

    sites = []
    for node in model.graph.node:
        norm = producers.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
        if norm is None or norm.op_type != "LayerNormalization":
            continue
        parameters = dict(zip(("scale", "bias"), map(constant, norm.input[1:]), strict=True))
        parameters |= {"y_scale": constants[node.input[1]], "y_zero_point": constants[node.input[2]]}
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in norm.attribute}
        assert attributes["axis"] == -1
        known = {"axes": [-1], "epsilon": attributes["epsilon"]}
        sites.append(Site(norm.input[0], node.output[0], parameters, known))
    return sites


def with_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """A copy of a model that shows some of its values."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    present = {output.name for output in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    return copy


def replacement(name: str) -> str:
    return f"{name} of the reference"


def with_replacements(model: onnx.ModelProto, sites: list[Site]) -> onnx.ModelProto:
    """A copy that shows what the sites give, and reads it from a graph input wherever the model went on with it."""
    copy = with_outputs(model, [site.y for site in sites])
    produced = {name for node in copy.graph.node for name in node.output}
    for site in sites:
        assert site.y in produced, site.y
        for node in copy.graph.node:
            for i, name in enumerate(node.input):
                if name == site.y:
                    node.input[i] = replacement(name)
        code = oracle.dtype_code(site.parameters["y_zero_point"])
        copy.graph.input.append(harness.value_info(replacement(site.y), code, None))
    return copy


@dataclass(frozen=True)
class Run:
    """One input, with the reference's values behind every normalisation."""

    difference: float
    """Largest absolute difference of any output from the reference's."""
    ties: int
    """Quantised elements that went the other way."""
    elements: int


class Comparison:
    """A model against a reference of the same value names, run without optimisation by ONNX Runtime."""

    def __init__(self, reference: onnx.ModelProto, model: onnx.ModelProto) -> None:
        self.sites = sites_of(reference)
        assert self.sites
        options = harness.session_options("cpu")
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        shown = with_outputs(reference, [name for site in self.sites for name in (site.x, site.y)])
        self.reference = harness.create_session(shown, options=options)
        self.session = harness.create_session(with_replacements(model, self.sites), "ep")
        self.outputs = [output.name for output in reference.graph.output]

    def run(self, feeds: Feeds) -> Run:
        expected = harness.run(self.reference, feeds)
        got = harness.run(self.session, {**feeds, **{replacement(s.y): expected[s.y] for s in self.sites}})
        return Run(
            max(float(np.abs(expected[name].astype(np.float64) - got[name]).max()) for name in self.outputs),
            sum(site.check(expected[site.x], expected[site.y], got[site.y]) for site in self.sites),
            sum(got[site.y].size for site in self.sites),
        )
