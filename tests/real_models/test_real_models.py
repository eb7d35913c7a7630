"""Real third-party models: what is fused, and that everything that runs gives what the original gives.

(a) the original on ONNX Runtime's CPU provider, (b) the original with the execution provider only, (c) the rewritten
model with the execution provider, (d) the rewritten portable model without normfuse, (e) normfuse.InferenceSession.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from model_zoo import MODELS, Feeds, RealModel
from quantized_zoo import quantized_file

import normfuse
from normfuse import meaning
from normfuse.meaning import Array, evaluate

# The main part runs these; the others are "slow".
FIRST = ("minilm-l3", "minilm-l3-s8s8", "ocr-direction")


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xdist_group(name), *([] if name in FIRST else [pytest.mark.slow])]


ZOO = pytest.mark.parametrize(
    "model", [pytest.param(each, id=each.name, marks=marks(each.name)) for each in MODELS.values()]
)


@dataclass(frozen=True)
class Counts:
    """How often what is found in a model; a lost fusion changes a number."""

    fused: Mapping[str, int]
    """Operator of our domain -> sites that the rewriting pass fused."""
    chains: Mapping[str, int]
    """Normalisation -> sites of it, all fused."""
    claimed: Mapping[str, int]
    """Normalisation -> groups around it that the provider claims in the original (canonical operators only)."""
    left: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(Normalisation, reason code) -> sites of it that the rewriting pass leaves."""


LAYERS, RMS, GROUPS = "LayerNormalization", "RMSNormalization", "GroupNormalization"
MEAN_VARIANCE = "MeanVarianceNormalization"
PINNED = {
    # 9 of LayerNormalization -> QuantizeLinear, 1 of DequantizeLinear -> LayerNormalization -> Gelu -> QuantizeLinear.
    "smart-turn": Counts(
        {"FusedNormalization": 10, "FusedActivation": 6, "FusedDequantizeLinear": 2}, {LAYERS: 10}, {LAYERS: 10}
    ),
    "minilm-l6": Counts({"FusedNormalization": 13, "FusedActivation": 6}, {LAYERS: 13}, {LAYERS: 13}),
    "minilm-l3": Counts({"FusedNormalization": 7, "FusedActivation": 3}, {LAYERS: 7}, {LAYERS: 7}),
    # The quantizer puts pairs between the nodes of each GELU.
    "minilm-l3-u8s8": Counts({"FusedNormalization": 7}, {LAYERS: 7}, {LAYERS: 7}),
    "minilm-l3-s8s8": Counts({"FusedNormalization": 7}, {LAYERS: 7}, {LAYERS: 7}),
    "title-encoder": Counts({"FusedNormalization": 17, "FusedActivation": 8}, {RMS: 17}, {}),
    "title-decoder": Counts({"FusedNormalization": 25, "FusedActivation": 8}, {RMS: 25}, {}),
    "terrain-unet": Counts(
        {"FusedNormalization": 139, "FusedActivation": 3}, {GROUPS: 139}, {"InstanceNormalization": 139}
    ),
    "ocr-recognition": Counts({"FusedNormalization": 5, "FusedActivation": 18}, {LAYERS: 5}, {}),
    "ocr-recognition-v5": Counts({"FusedNormalization": 5, "FusedActivation": 35}, {LAYERS: 5}, {}),
    "ocr-direction": Counts({"FusedActivation": 18}, {}, {}),
    "ocr-direction-of-print": Counts({"FusedActivation": 18}, {}, {}),
    "ocr-detection": Counts({"FusedActivation": 13}, {}, {}),
    "detector": Counts({"FusedActivation": 74}, {}, {}),
    "yolov8": Counts({"FusedActivation": 57}, {}, {}),
    "magika": Counts({"FusedNormalization": 2, "FusedActivation": 2}, {LAYERS: 1, MEAN_VARIANCE: 1}, {}),
}


@functools.cache
def portable(name: str) -> normfuse.OptimizationResult:
    return normfuse.optimize(MODELS[name].path(), verify=False)


def portable_proto(name: str) -> onnx.ModelProto:
    return portable(name).model


@functools.cache
def outputs(name: str, which: str) -> list[dict[str, Array]]:
    """Outputs over all inputs; ``which`` is a letter of the module's documentation, or "a:LEVEL"."""
    which, _, level = which.partition(":")
    options = harness.session_options("ep" if which in "bc" else "cpu")
    if level:
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    model = MODELS[name].path() if which in "abe" else portable_proto(name)
    create = normfuse.InferenceSession if which == "e" else functools.partial(harness.create_session, options=options)
    session = create(model)
    return [run(session, feeds) for feeds in MODELS[name].inputs()]


def run(session: onnxruntime.InferenceSession, feeds: Feeds) -> dict[str, Array]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def difference(left: list[dict[str, Array]], right: list[dict[str, Array]]) -> dict[str, float]:
    """Largest absolute difference of each output over all inputs."""
    return {
        name: max(float(np.abs(a[name].astype(np.float64) - b[name]).max()) for a, b in zip(left, right, strict=True))
        for name in left[0]
    }


# Besides ORT_ENABLE_ALL, which is the default.
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED")


@functools.cache
def tolerance(name: str) -> dict[str, float]:
    """Quantised models: max(1e-3, three times what ORT's own optimisation levels differ by); others as they say."""
    reference = outputs(name, "a")
    if not MODELS[name].quantized:
        largest = {key: max(float(np.abs(out[key]).max()) for out in reference) for key in reference[0]}
        return {key: MODELS[name].tolerance * max(1.0, value) for key, value in largest.items()}
    own: dict[str, float] = dict.fromkeys(reference[0], 0.0)
    every = [reference, *(outputs(name, f"a:{level}") for level in LEVELS)]
    for i, left in enumerate(every):
        for right in every[:i]:
            for key, value in difference(left, right).items():
                own[key] = max(own[key], value)
    return {key: max(1e-3, 3 * value) for key, value in own.items()}


@ZOO
@pytest.mark.parametrize("which", ["b", "c", "d", "e"])
def test_end_to_end(model: RealModel, which: str) -> None:
    if model.one_set_of_kernels and which != "d":
        # A value next to a rounding tie goes one way or the other, and the layers behind it make much of that step:
        # no implementation but the very same one agrees on every input, but each site does.
        verification = normfuse.verify(
            model.path(), model.path() if which == "b" else portable_proto(model.name), inputs=list(model.inputs())
        )
        assert verification.result == "agree", verification.message
        assert verification.diff_sites is not None
        assert verification.diff_sites.right == verification.diff_sites.found > 0
        return
    reference, got = outputs(model.name, "a"), outputs(model.name, which)
    assert len(got) >= (16 if model.quantized else 2)
    allowed, worst = tolerance(model.name), difference(reference, got)
    assert all(worst[name] <= allowed[name] for name in worst), f"{worst} > {allowed}"
    if model.decide:
        for left, right in zip(reference, got, strict=True):
            assert (model.decide(left) == model.decide(right)).all()


# Of 16 bits some activations have a tie in every third layer: pairs between the nodes of a GELU or SiLU.
TIED = ("minilm-l3-s8s8", "minilm-l3-u8s8", "title-encoder", "ocr-recognition-a16w8", "yolov8-a16w8")


@pytest.mark.without_vnni
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in TIED])
def test_verification_tells_rounding_ties_from_differences(name: str) -> None:
    """Where a tie goes the other way, outputs move by as much as they are large: all the same every sample decides.

    Whether there is a tie is up to the processor: tests/python/test_planted_faults.py makes them.
    """
    path = MODELS[name].path() if name in MODELS else quantized_file(name)
    verification = normfuse.optimize(path, verify_seconds=600).report.verification
    assert verification.result == "agree", verification.message
    assert verification.samples == 16
    assert verification.diff_sites.right == verification.diff_sites.found > 0


ON_PICTURES = ("ocr-direction-s8s8", "ocr-recognition-u8s8pc", "yolov8-s8s8")


@pytest.mark.without_vnni
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in ON_PICTURES])
def test_quantised_networks_agree_on_real_pictures(name: str) -> None:
    model = MODELS[name.rpartition("-")[0].replace("direction", "direction-of-print")]
    result = normfuse.optimize(quantized_file(name), inputs=list(model.inputs()), verify_seconds=600)
    verification = result.report.verification
    assert verification.result == "agree", verification.message
    assert verification.diff_sites.right == verification.diff_sites.found > 0


@pytest.mark.parametrize("name", [pytest.param("magika", marks=marks("magika"))])
def test_verification_refuses_no_model_whose_own_variance_is_inexact(name: str) -> None:
    """E[x^2] - E[x]^2 of padded text, which moves an output by 0.02."""
    verification = normfuse.optimize(MODELS[name].path()).report.verification
    assert verification.result == "agree", verification.message
    assert verification.diff_sites.right == verification.diff_sites.found == 4


@ZOO
def test_every_site_is_fused_or_has_its_reason(model: RealModel) -> None:
    report = portable(model.name).report
    pinned = PINNED[model.name]
    assert Counter(site.fused_into for site in report.fused) == pinned.fused
    assert Counter(site.kind for site in report.fused if "Normalization" in site.kind) == pinned.chains
    left = [site for site in report.left if "Normalization" in site.kind]
    assert Counter((site.kind, site.reason) for site in left) == pinned.left
    assert all(site.message and site.advice for site in report.left)


@ZOO
def test_the_provider_runs_what_was_rewritten(model: RealModel) -> None:
    """One group for each call, and no normalisation left to ONNX Runtime."""
    session = harness.create_session(portable_proto(model.name), "ep")
    groups = Counter(
        node.op_type.partition("_")[0] for group in harness.ep_groups(session) for node in group if node.domain
    )
    assert {op: n for op, n in groups.items() if op.startswith("Fused")} == PINNED[model.name].fused
    assert not [op for op in harness.cpu_types(session) if "Normalization" in op]


@ZOO
def test_the_provider_alone_claims_canonical_chains(model: RealModel) -> None:
    session = harness.create_session(model.path(), "ep")
    claimed = Counter(op for group in harness.fused_types(session) for op in group if "Normalization" in op)
    assert claimed == PINNED[model.name].claimed


# --- site by site ----------------------------------------------------------------------------------------------------


@ZOO
def test_site_by_site_on_identical_inputs(model: RealModel) -> None:
    """Each call gets the values it has in the model, alone, and is held against the float64 oracle.

    The function body on ONNX Runtime gets them as well: it must be the same formula, to within its own rounding.
    """
    proto = portable_proto(model.name)
    calls = [node for node in proto.graph.node if node.domain == harness.DOMAIN]
    assert calls
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    values = {**captured(proto, calls, next(model.inputs())), **next(model.inputs())}
    for call in calls:
        arrays = {name: constant(constants, name, values) for name in call.input if name}
        check_site(proto, call, arrays, frozenset(arrays) & frozenset(constants))


def constant(constants: Mapping[str, onnx.TensorProto], name: str, values: Mapping[str, Array]) -> Array:
    return harness.to_array(constants[name]) if name in constants else values[name]


def captured(proto: onnx.ModelProto, calls: list[onnx.NodeProto], feeds: Feeds) -> dict[str, Array]:
    """The values that go into the calls, from a run of the portable model without normfuse."""
    wanted = {name for call in calls for name in call.input if name} - {
        tensor.name for tensor in proto.graph.initializer
    }
    return run(harness.create_session(harness.with_outputs(proto, sorted(wanted)), "cpu"), feeds)


def check_site(proto: onnx.ModelProto, call: onnx.NodeProto, arrays: dict[str, Array], fixed: frozenset[str]) -> None:
    _, steps, named, outputs = harness.read_node(call)
    inputs = {name: arrays[value] for name, value in named.items()}
    expected = evaluate(steps, inputs)
    graph = onnx.helper.make_graph(
        [call],
        "site",
        [harness.value_info(n, meaning.dtype_code(a), a.shape) for n, a in arrays.items() if n not in fixed],
        [harness.value_info(value, expected[name].code, None) for name, value in outputs.items()],
        [harness.initializer(n, a) for n, a in arrays.items() if n in fixed],
    )
    site = onnx.helper.make_model(
        graph,
        opset_imports=list(proto.opset_import),
        ir_version=proto.ir_version,
        functions=[f for f in proto.functions if f.domain == call.domain and f.name == call.op_type],
    )
    feeds = {name: array for name, array in arrays.items() if name not in fixed}
    session = harness.create_session(site, "ep")
    assert harness.fused_types(session) == [[call.op_type]]
    got = harness.run(session, feeds)
    body = harness.run(harness.create_session(site, "cpu"), feeds)
    # What ONNX Runtime's own normalisation is off by, further factors make larger.
    factors = [max(1.0, float(np.abs(a).max())) for name, a in inputs.items() if name.startswith("operand_")]
    for name, value in outputs.items():
        expected[name].check(got[value], f"{call.name}: {name}")
        size = np.prod(factors) * (1 + np.abs(np.nan_to_num(expected[name].exact)))
        expected[name].widened(1e-3 * size).check(body[value], f"function body of {call.name}: {name}")
