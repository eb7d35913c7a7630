"""What needs the native library: registration, session options, sessions, and verification with the provider."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import normfuse
from normfuse import models
from normfuse.optimization.optimize import inspect_with_claims
from normfuse.spec import OPTIONS, REASONS


@pytest.fixture(scope="module")
def transformer() -> onnx.ModelProto:
    return models.transformer_encoder(layers=1, hidden=32)


def ran_on_normfuse(session: ort.InferenceSession) -> list[str]:
    return [
        node.op_type
        for subgraph in session.get_provider_graph_assignment_info()
        if subgraph.ep_name == normfuse.get_ep_name()
        for node in subgraph.get_nodes()
    ]


def recording(options: ort.SessionOptions | None = None) -> ort.SessionOptions:
    options = options or ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def chain_bytes() -> bytes:
    return models.chain([4, 64], activation_name="gelu").SerializeToString()


X = {"x": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}


def test_names_and_path() -> None:
    assert normfuse.get_ep_name() == "NormFuseExecutionProvider"
    assert normfuse.get_ep_names() == [normfuse.get_ep_name()]
    path = Path(normfuse.get_library_path())
    assert path.is_absolute()
    assert path.is_file()


@pytest.mark.parametrize(
    ("platform", "name"), [("linux", "libnormfuse.so"), ("win32", "normfuse.dll"), ("darwin", "libnormfuse.dylib")]
)
def test_file_of_each_platform(platform: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.delenv("NORMFUSE_LIBRARY", raising=False)
    monkeypatch.setattr(normfuse, "__path__", ["nowhere"])
    with pytest.raises(normfuse.LibraryLoadError, match=f"^{name} is missing"):
        normfuse.get_library_path()


def test_library_and_package_are_one_version() -> None:
    (device,) = normfuse.register()
    assert device.ep_metadata["version"] == normfuse.__version__


def test_registering_twice_is_registering_once() -> None:
    first, second = normfuse.register(), normfuse.register()
    assert len(first) == len(second) == 1
    devices = [device for device in ort.get_ep_devices() if device.ep_name == normfuse.get_ep_name()]
    assert len(devices) == 1
    assert devices[0].ep_metadata["instruction_set"] in ("avx512", "avx2", "baseline", "neon")


def test_by_name_after_register() -> None:
    normfuse.register()
    session = ort.InferenceSession(
        chain_bytes(),
        sess_options=recording(),
        providers=[("NormFuseExecutionProvider", {"claim": "all"}), "CPUExecutionProvider"],
        enable_fallback=0,
    )
    assert sorted(ran_on_normfuse(session)) == ["Gelu", "LayerNormalization"]


def test_by_hand_registered_library_is_found() -> None:
    code = (
        "import normfuse, onnxruntime as ort\n"
        "ort.register_execution_provider_library('mine', normfuse.get_library_path())\n"
        "print(len(normfuse.register()), len(ort.get_ep_devices()))\n"
        "ort.register_execution_provider_library('again', normfuse.get_library_path())\n"
        "print(len(normfuse.register()), len(ort.get_ep_devices()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "2", "1", "3"]


def test_session_options_in_every_order() -> None:
    expected = ort.InferenceSession(chain_bytes(), providers=["CPUExecutionProvider"]).run(None, X)[0]
    library = normfuse.get_library_path()

    def nothing(options: ort.SessionOptions) -> None:
        pass

    def custom_operators(options: ort.SessionOptions) -> None:
        options.register_custom_ops_library(library)

    def helper(options: ort.SessionOptions) -> None:
        normfuse.session_options(options, backend="cpu")

    for before in (nothing, custom_operators, helper):
        for after in (nothing, custom_operators, helper):
            options = recording()
            before(options)
            assert normfuse.session_options(options, claim="all") is options
            after(options)
            if after is helper:
                normfuse.session_options(options, claim="all")
            for _ in range(2):
                session = ort.InferenceSession(chain_bytes(), sess_options=options, enable_fallback=0)
                assert sorted(ran_on_normfuse(session)) == ["Gelu", "LayerNormalization"]
                np.testing.assert_allclose(session.run(None, X)[0], expected, rtol=1e-5, atol=1e-5)


def test_the_last_options_win() -> None:
    options = normfuse.session_options(recording(), claim="all")
    normfuse.session_options(options, claim="profitable")
    assert options.get_session_config_entry("ep.normfuseexecutionprovider.claim") == "profitable"
    assert len(ort.InferenceSession(chain_bytes(), sess_options=options, enable_fallback=0).run(None, X)) == 1


@pytest.mark.parametrize("again", [{}, {"backend": "cpu"}, {"claim": None}])
def test_options_that_are_not_given_stay(again: dict[str, str | None], tmp_path: Path) -> None:
    report = tmp_path / "claims.jsonl"
    options = normfuse.session_options(claim="all", claim_report=report)
    normfuse.InferenceSession(chain_bytes(), options, **again)
    assert report.exists()
    normfuse.session_options(options, model=chain_bytes(), **again)
    assert options.get_session_config_entry("ep.normfuseexecutionprovider.claim") == "all"
    normfuse.InferenceSession(chain_bytes(), options, claim="profitable")
    assert options.get_session_config_entry("ep.normfuseexecutionprovider.claim") == "profitable"


def test_an_option_that_contradicts_an_earlier_one_is_refused() -> None:
    options = normfuse.session_options(adapter_index=1)
    with pytest.raises(normfuse.OptionError, match="both choose an adapter"):
        normfuse.session_options(options, adapter_luid="0x7")


def test_custom_operators_and_portable_functions_in_one_session_each(transformer: onnx.ModelProto) -> None:
    fed = {"input_ids": np.ones((1, 5), np.int64), "attention_mask": np.ones((1, 5), np.int64)}
    plain = ort.InferenceSession(transformer.SerializeToString(), providers=["CPUExecutionProvider"])
    for target in ("portable", "custom-op"):
        data = normfuse.optimize(transformer, target=target, verify=False).model.SerializeToString()
        options = normfuse.session_options(recording(), claim="all")
        session = ort.InferenceSession(data, sess_options=options, enable_fallback=0)
        assert sum("Fused" in op for op in ran_on_normfuse(session)) == 4
        np.testing.assert_allclose(session.run(None, fed)[0], plain.run(None, fed)[0], rtol=1e-4, atol=1e-5)


def test_inference_session_takes_every_form_of_model(transformer: onnx.ModelProto, tmp_path: Path) -> None:
    fed = {"input_ids": np.ones((2, 3), np.int64), "attention_mask": np.ones((2, 3), np.int64)}
    expected = ort.InferenceSession(transformer.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, fed)
    onnx.save(
        onnx.ModelProto.FromString(transformer.SerializeToString()),
        tmp_path / "außen.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=64,
    )
    for given in (transformer, transformer.SerializeToString(), tmp_path / "außen.onnx"):
        session = normfuse.InferenceSession(given, recording(), claim="all")
        assert isinstance(session, ort.InferenceSession)
        ran = ran_on_normfuse(session)
        assert sum("Fused" in op for op in ran) == 4
        assert sorted(op for op in ran if "Fused" not in op) == ["Add", "Softmax"]
        np.testing.assert_allclose(session.run(None, fed)[0], expected[0], rtol=1e-4, atol=1e-5)


def test_claim_report_is_written(transformer: onnx.ModelProto, tmp_path: Path) -> None:
    normfuse.InferenceSession(transformer, claim="all", claim_report=tmp_path / "claims.jsonl")
    lines = (tmp_path / "claims.jsonl").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 5  # the attention's Softmax is one
    assert all("result of" in json.loads(line)["path"] for line in lines)


def test_nodes_without_names_are_reported_by_their_first_output(tmp_path: Path) -> None:
    """Names of nodes are optional; what the provider says of a site has to reach it all the same."""
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[4,64] x, float[64] s) => (float[4,64] y) {
        n = LayerNormalization <axis = -1> (x, s)
        c = Cos(n)
        y = LayerNormalization <axis = -1> (c, s)
    }"""
    model = onnx.parser.parse_model(text)
    _, claims = inspect_with_claims(model)
    assert claims.run + len(claims.given_back) == 2
    assert {site.reason for site in claims.given_back} <= set(REASONS)  # and not "not_seen"
    options = normfuse.session_options(claim="all", claim_report=tmp_path / "claims.jsonl")
    ort.InferenceSession(model.SerializeToString(), options)
    lines = [json.loads(line) for line in (tmp_path / "claims.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["node"], line["nodes"]) for line in lines] == [("n", ["n"]), ("y", ["y"])]


BAD_OPTIONS = [
    ({"backend": "cuda"}, "Option backend is 'cuda'; it takes auto, cpu or directml"),
    ({"claim": "some"}, "Option claim is 'some'; it takes profitable or all"),
    ({"claim_report": "/no/such/folder/file"}, "existing folder"),
    ({"bakend": "cpu"}, "no option 'bakend'; did you mean backend?"),
    ({"zzz": 1}, "known are backend, claim"),
    ({"directml_library": "/no/such.dll"}, "path of an existing file"),
    ({"adapter_index": -1}, "number from 0 on"),
    ({"adapter_luid": "first"}, "decimal or hexadecimal"),
    ({"adapter_index": 0, "adapter_preference": "minimum_power"}, "both choose an adapter"),
]


@pytest.mark.parametrize(("given", "words"), BAD_OPTIONS)
def test_bad_options_through_our_functions(given: dict[str, object], words: str) -> None:
    for function in (normfuse.session_options, lambda **o: normfuse.InferenceSession(models.chain([2, 8]), **o)):
        with pytest.raises(normfuse.OptionError) as raised:
            function(**given)
        assert words in str(raised.value)


PLAIN_BAD_OPTIONS = [
    ({"backend": "cuda"}, "backend"),
    ({"claim": "some"}, "claim"),
    ({"bakend": "cpu"}, "bakend"),
    ({"claim_report": "/no/such/folder/file"}, "claim_report"),
    ({"adapter_index": "-1"}, "adapter_index"),
    ({"backend": "directml", "directml_library": "/no/such/library"}, "DirectML path: cannot load"),
]


@pytest.mark.parametrize("by", ["device", "name"])
@pytest.mark.parametrize(("given", "words"), PLAIN_BAD_OPTIONS)
def test_bad_options_through_plain_onnxruntime(given: dict[str, str], words: str, by: str) -> None:
    """Options that none of our Python code has seen: the library refuses them, with the option in its sentence."""
    devices, options, selected = normfuse.register(), ort.SessionOptions(), {}
    if by == "device":
        options.add_provider_for_devices(devices, given)
    else:
        selected = {"providers": [("NormFuseExecutionProvider", given), "CPUExecutionProvider"]}
    with pytest.raises(Exception, match=words):
        ort.InferenceSession(chain_bytes(), sess_options=options, enable_fallback=0, **selected)


def test_directml_libraries_are_loaded_before_onnxruntime_is_called(tmp_path: Path) -> None:
    library = tmp_path / "DirectML.dll"
    library.write_bytes(b"")
    own = normfuse.get_library_path()
    for given, words in (
        ({}, "or use backend=cpu"),
        ({"d3d12_library": str(library)}, f"cannot load {library}"),
        ({"d3d12_library": own}, "does not export D3D12CreateDevice"),
        ({"dxcore_library": own}, "name another library by the option dxcore_library"),
    ):
        with pytest.raises(normfuse.OptionError, match="backend is 'directml'") as raised:
            normfuse.session_options(backend="directml", **given)
        assert words in str(raised.value)


def test_every_option_is_known_to_the_library() -> None:
    """Each option's default, given explicitly, is accepted by the library as well."""
    options = ort.SessionOptions()
    given = {name: option.default for name, option in OPTIONS.items() if option.default}
    options.add_provider_for_devices(normfuse.register(), given)
    assert ort.InferenceSession(chain_bytes(), sess_options=options, enable_fallback=0).run(None, X)


def test_verification_runs_with_and_without_normfuse(transformer: onnx.ModelProto) -> None:
    report = normfuse.optimize(transformer).report.verification
    assert report is not None
    assert [run.name for run in report.runs] == ["with normfuse", "without normfuse"]


def test_custom_op_target_needs_the_library(transformer: onnx.ModelProto) -> None:
    result = normfuse.optimize(transformer, target="custom-op")
    assert not result.model.functions
    assert result.report.verification is not None
    assert [run.name for run in result.report.verification.runs] == ["with normfuse"]


def test_quantised_outputs_may_be_off_by_one_step() -> None:
    model = models.chain([8, 16, 64], input_type="int8", output_type="int8", activation_name="gelu")
    report = normfuse.optimize(model).report.verification
    assert report is not None
    assert report.passed
    assert {output.tolerance for run in report.runs for output in run.outputs} == {1.0}
    assert {output.max_abs for run in report.runs for output in run.outputs} <= {0.0, 1.0}


def test_a_model_of_plain_operators_is_an_original_like_any_other() -> None:
    """What ``target="custom-op"`` writes runs on ONNX Runtime only with the library: it is loaded there too."""
    original = models.chain([4, 64], activation_name="gelu")
    plain = normfuse.optimize(original, target="custom-op", verify=False).model
    assert [node.domain for node in plain.graph.node] == ["ai.normfuse"]
    assert not plain.functions
    again = normfuse.optimize(plain)
    assert again.report.verification is not None
    assert again.report.verification.passed
    assert len(again.report.verification.runs) == 2
    assert len(again.model.functions) == 1
    assert normfuse.verify(plain, original).result == "agree"
