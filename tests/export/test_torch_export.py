"""Modules of PyTorch and transformers, by both exporters: all of it is found, and the results are PyTorch's."""

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from matrix import EXPORTERS, OPSETS, Refused, case_and_expectation, export, is_refused, run_case
from torch_modules import BUILDERS

import normfuse

# In an ordinary run each module meets each exporter, at an opset that differs from module to module so that every
# spelling (before 17, 17, 18 and 19, 20 and later, 23) is met; the dynamo exporter takes 5 to 15 seconds a module.
_USUAL_DYNAMO = {
    "encoder_layer_pre_gelu": 18,
    "convnext_block": 20,
    "diffusion_resblock": 18,
    "instance_norm_net": 21,
    "swiglu_block": 23,
    "bert": 18,
    "t5": 18,
    "llama": 23,
}
_USUAL_LEGACY = (13, 14, 17, 20)
TOLERANCE = 1e-5
"""Of float32 results after a few layers: PyTorch's and ONNX Runtime's matrix products round differently."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" not in metafunc.fixturenames:
        return
    every = metafunc.config.getoption("--full")
    cells = []
    for name in BUILDERS:
        for exporter in EXPORTERS:
            usual = _USUAL_LEGACY if exporter == "legacy" else (_USUAL_DYNAMO[name],) if name in _USUAL_DYNAMO else ()
            cells += [(name, exporter, opset) for opset in (OPSETS if every else usual)]
    metafunc.parametrize("cell", cells, ids=["-".join(map(str, cell)) for cell in cells])


def test_everything_is_found_and_results_are_pytorchs(cell: tuple[str, str, int], tmp_path: Path) -> None:
    refused = is_refused(*cell)
    if refused is not None:
        with pytest.raises(Refused, match=refused):
            run_case(*cell, tmp_path)
        return
    outcome = run_case(*cell, tmp_path)
    assert outcome.found == outcome.expected, [site.message for site in outcome.report.left]
    assert outcome.error < TOLERANCE
    if cell[1] == "legacy":
        assert outcome.opset == cell[2]


@pytest.fixture(scope="module")
def program() -> torch.onnx.ONNXProgram:
    return export("encoder_layer_post_gelu", "dynamo", 18)


def test_a_program_gives_a_program(program: torch.onnx.ONNXProgram, tmp_path: Path) -> None:
    case, expected, _ = case_and_expectation("encoder_layer_post_gelu")
    before = ir.to_proto(program.model).SerializeToString()
    program(*case.inputs)  # from here on the program has a session, of the model as it was
    result = normfuse.optimize(program, require_fused="all")

    assert isinstance(result.model, torch.onnx.ONNXProgram)
    assert ir.to_proto(program.model).SerializeToString() == before
    assert any(node.domain == "ai.normfuse" for node in result.model.model.graph)
    assert result.report.verification.passed
    (output,) = result.model(*case.inputs)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    # It really ran the new model: there is a new session, and its operators are the new ones.
    assert result.model._inference_session is not None
    assert result.model._inference_session is not program._inference_session

    result.save(tmp_path / "by_normfuse.onnx")
    result.model.save(tmp_path / "by_torch.onnx")
    for file in ("by_normfuse.onnx", "by_torch.onnx"):
        model = onnx.load(tmp_path / file)
        onnx.checker.check_model(model, full_check=True)
        assert sum(node.domain == "ai.normfuse" for node in model.graph.node) == len(result.report.fused)


def test_a_program_runs_in_one_line(program: torch.onnx.ONNXProgram) -> None:
    case, expected, _ = case_and_expectation("encoder_layer_post_gelu")
    session = normfuse.InferenceSession(program)
    (output,) = session.run(None, {"input_0": case.inputs[0].numpy()})
    np.testing.assert_allclose(output, expected.numpy(), atol=1e-5)


def test_external_data_stays_external(program: torch.onnx.ONNXProgram, tmp_path: Path) -> None:
    case, expected, _ = case_and_expectation("encoder_layer_post_gelu")
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    program.save(tmp_path / "in" / "model.onnx", external_data=True)
    written = normfuse.optimize(tmp_path / "in" / "model.onnx").save(tmp_path / "out" / "model.onnx")

    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["model.onnx", "model.onnx.data"]
    assert written == sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    assert (tmp_path / "out" / "model.onnx").stat().st_size < written / 2
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {"input_0": case.inputs[0].numpy()})
    np.testing.assert_allclose(output, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_sizes_stay_dynamic(exporter: str, tmp_path: Path) -> None:
    case, _, counts = case_and_expectation("convnext_block")
    path = tmp_path / "model.onnx"
    names = {"input_names": ["x"], "output_names": ["y"]}
    if exporter == "dynamo":
        sizes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
        torch.onnx.export(case.module, case.inputs, path, dynamo=True, dynamic_shapes=(sizes,), verbose=False, **names)
    else:
        axes = {"x": {0: "batch", 2: "height", 3: "width"}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                case.module, case.inputs, path, dynamo=False, opset_version=17, dynamic_axes=axes, **names
            )
    result = normfuse.optimize(path)
    assert len([site for site in result.report.fused if site.kind == "LayerNormalization"]) == counts.normalizations
    result.save(tmp_path / "fused.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "fused.onnx", sess_options=normfuse.session_options(claim="all"))
    for shape in ((1, 32, 7, 9), (3, 32, 20, 11)):
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0]))
        with torch.no_grad():
            expected = case.module(x).numpy()
        np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], expected, atol=1e-5)


def test_more_than_two_gigabytes(full: bool, tmp_path: Path) -> None:
    """A program whose weights no protobuf message can hold; a hundredth of it in an ordinary run."""
    hidden, rows = 1024, 550_000 if full else 5_500

    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.empty(rows, hidden).uniform_(-1, 1))
            self.norm = torch.nn.LayerNorm(hidden)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.norm(self.table[ids] + self.table[ids + 1])

    module = Large().eval()
    ids = torch.tensor([[0, 7, rows - 2]])
    program = torch.onnx.export(module, (ids,), dynamo=True, input_names=["ids"], verbose=False)
    result = normfuse.optimize(program, require_fused=1)
    path = tmp_path / "large.onnx"
    assert result.save(path) > rows * hidden * 4
    assert (tmp_path / "large.onnx.data").exists() == full
    session = onnxruntime.InferenceSession(path, sess_options=normfuse.session_options(claim="all"))
    with torch.no_grad():
        np.testing.assert_allclose(session.run(None, {"ids": ids.numpy()})[0], module(ids).numpy(), atol=1e-5)
