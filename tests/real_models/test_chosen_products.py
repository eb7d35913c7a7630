"""Sessions with products of 8-bit tensors: models that ONNX Runtime refuses, files, and options that are used again.

What is made of the models, and their numbers, is in tests/corpus/sessions/products.txt.
"""

from __future__ import annotations

import functools
import platform
import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import harness
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from corpus_reader import FOLDER, case_of
from onnx import helper
from parsed_models import results
from quantizer_styles import picture, products_of_integers
from spelling import SpellingBuilder

import normfuse
from normfuse.files.model_files import external_tensors, load_model
from normfuse.host.config_entries import disable_optimizer, disabled_optimizers
from normfuse.meaning import Array
from normfuse.sessions import AllowedChanges, host_optimization
from normfuse.sessions import creation as sessions
from normfuse.sessions.session_model import session_model
from normfuse.spec import ProgramStep, write_program

pytestmark = pytest.mark.without_vnni

X86 = platform.machine().lower() in ("x86_64", "amd64")
on_x86 = pytest.mark.skipif(not X86, reason="int8 is what integer kernels take on this processor")
F32 = np.float32
STEP = 0.0297431


def of_corpus(name: str) -> onnx.ModelProto:
    """A case's model, with outputs called y."""
    case = case_of(f"products/{name}", FOLDER / "sessions")
    model = case.build(SpellingBuilder(case.opsets[0]))
    model.graph.node.append(helper.make_node("Identity", [model.graph.output[0].name], ["y"], "last"))
    model.graph.output[0].name = "y"
    return model


read_twice = functools.partial(of_corpus, "chosen-0")
dense = functools.partial(of_corpus, "dense-0-0")
depthwise = functools.partial(of_corpus, "depthwise-0-0")
with_float_weights = functools.partial(of_corpus, "float_weights_between-0")
THREE = {"QLinearConv": 3}


def image(model: onnx.ModelProto) -> dict[str, Array]:
    shape = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": picture(np.random.default_rng(8), shape)}


@on_x86
@pytest.mark.parametrize("before", [None, depthwise])
def test_the_users_word_on_integers_holds(before: functools.partial[onnx.ModelProto] | None) -> None:
    """What a session needed that these options served before, which is to leave pairs, is not taken for it."""

    def create(data: bytes, given: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
        if before is None:
            given.add_session_config_entry("session.disable_quant_qdq", "1")
        else:
            first = normfuse.InferenceSession(before().SerializeToString(), given)
            assert first.get_session_options().get_session_config_entry("session.disable_quant_qdq") == "1"
        return normfuse.InferenceSession(data, given)

    products = products_of_integers(create, dense().SerializeToString(), image(dense()))
    assert products == (THREE if before else {})


@on_x86
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("refused", [1, 2, 3])
def test_a_model_that_onnxruntime_takes_only_as_it_is(refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its operators of uint8 refuse parameters that those of float tensors take, or where it makes them only
    of a rewritten model: a warning says so, once. Where results are to change, the model as it is given is not what was
    asked for.
    """
    model, x = read_twice(), np.ones((4, 8), F32)
    create, tried = sessions._create, []

    def refusing(made: list[ir.Model], *arguments: object, **named: object) -> onnxruntime.InferenceSession:
        tried.append([node.op_type for node in made[0].graph])
        if len(tried) <= refused:
            raise normfuse.InvalidModelError("it has another word for it")
        return create(made, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(sessions, "_create", refusing)
    if refused < 3:
        with pytest.warns(UserWarning, match="another word") as told:
            (got,) = normfuse.InferenceSession(model).run(None, {"x": x})
        (warning,) = told
        assert warning.filename == __file__
        assert ("not rewritten" in str(warning.message)) == (refused == 2)
        assert ("choose_products=False" in str(warning.message)) == (refused == 1)
        assert np.abs(got - results(model, {"x": x})["y"]).max() <= 1.01 * 0.0613
    else:
        with pytest.raises(normfuse.InvalidModelError, match="another word"):
            normfuse.InferenceSession(model)
    assert len(tried) == min(refused + 1, 3)
    assert len(tried) < 3 or tried[-1] == [node.op_type for node in model.graph.node]
    tried.clear()
    warned, fails = pytest.warns(UserWarning, match="blocked_layout=False"), pytest.raises(normfuse.InvalidModelError)
    with warned if refused == 1 else fails:
        normfuse.InferenceSession(model, remove_quantization=True)
    assert len(tried) == 2


# --- how a model is given, and options used again --------------------------------------------------------------------


def saved_with_data_outside(model: onnx.ModelProto, folder: Path) -> Path:
    folder.mkdir()
    copy, path = onnx.ModelProto(), folder / "model.onnx"
    copy.CopyFrom(model)
    onnx.save(copy, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


@on_x86
@pytest.mark.parametrize(("network", "products"), [(dense, THREE), (depthwise, {})], ids=["dense", "depthwise"])
def test_weights_in_a_file_of_their_own(
    network: functools.partial[onnx.ModelProto],
    products: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ONNX Runtime leaves them there when it writes the optimised model into a temporary folder."""
    model = network()
    x = image(model)
    table = np.ones_like(results(model, x)["y"])  # nothing is made of it
    model.graph.initializer.append(harness.initializer("table", table))
    model.graph.node[-1].CopyFrom(helper.make_node("Add", [*model.graph.node[-1].input, "table"], ["y"]))
    path = saved_with_data_outside(model, tmp_path / "model")
    made = session_model(load_model(path), onnxruntime.SessionOptions(), AllowedChanges()).model
    assert not any("temporary" in tensor.path for tensor in external_tensors(made))
    assert any(True for _ in external_tensors(made))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    created = []

    def counted(*arguments: object, **named: object) -> onnxruntime.InferenceSession:
        created.append(arguments)
        return create(*arguments, **named)  # type: ignore[arg-type]

    create = sessions._create
    monkeypatch.setattr(sessions, "_create", counted)
    (got,) = normfuse.InferenceSession(path).run(None, x)
    assert len(created) == 1  # not once more, with the model as it was
    assert not list((tmp_path / "temporary").iterdir())
    assert np.abs(got - results(model, x)["y"]).max() <= 1.01 * STEP
    assert products_of_integers(lambda _, options: normfuse.InferenceSession(path, options), b"", x) == products


def test_bytes_whose_weights_are_where_the_options_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, key = dense(), "session.model_external_initializers_file_folder_path"
    path, other = (saved_with_data_outside(model, tmp_path / name) for name in ("one", "other"))
    monkeypatch.chdir(tmp_path)
    x, expected = image(model), results(model, image(model))["y"]
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(key, str(path.parent))
    for form in (path.read_bytes(), str(other.relative_to(tmp_path)), path.read_bytes()):
        (got,) = normfuse.InferenceSession(form, options).run(None, x)
        assert np.abs(got - expected).max() <= 1.01 * STEP
        assert options.get_session_config_entry(key) == str(path.parent)  # the user's word
    ours = onnxruntime.SessionOptions()
    normfuse.InferenceSession(path, ours)
    with pytest.raises(normfuse.InvalidModelError, match="missing"):  # what that session needed is not the user's word
        normfuse.InferenceSession(path.read_bytes(), ours)


@on_x86
def test_options_that_served_a_network_with_folded_weights() -> None:
    """That session left ONNX Runtime's quantiser of float weights out; the user did not."""
    model = with_float_weights()
    first = of_corpus("wide_alone").SerializeToString()

    def create(data: bytes, given: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
        disable_optimizer(given, "GeluFusionL2")
        before = normfuse.InferenceSession(first, given)
        assert disabled_optimizers(before.get_session_options()) == ["GeluFusionL2", "WeightBiasQuantization"]
        session = normfuse.InferenceSession(data, given)
        assert disabled_optimizers(session.get_session_options()) == ["GeluFusionL2"]
        assert disabled_optimizers(given) == ["GeluFusionL2"]
        return session

    data = model.SerializeToString()
    assert products_of_integers(create, data, image(model)) == THREE
    users = onnxruntime.SessionOptions()
    disable_optimizer(users, "WeightBiasQuantization")
    for each in (first, data, data):
        normfuse.InferenceSession(each, users)
        assert disabled_optimizers(users) == ["WeightBiasQuantization"]


@on_x86
def test_options_used_again_bring_no_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime warns of an entry that is set again, and did so of three for each further session."""

    def overwritten(model: bytes | Path) -> list[str]:
        normfuse.InferenceSession(model, options)
        return re.findall(r"Config with key \[(.*?)\] already exists", capfd.readouterr().err)

    networks = {
        "integers": dense().SerializeToString(),
        "float": depthwise().SerializeToString(),
        "outside": saved_with_data_outside(depthwise(), tmp_path / "model"),
    }
    for network in networks.values():
        options = onnxruntime.SessionOptions()
        assert [overwritten(network) for _ in range(3)] == [[], [], []]
    # Where the next one needs other entries, each is set once. Options with providers are not copied.
    options = normfuse.session_options()
    assert overwritten(networks["float"]) == []
    changed = overwritten(networks["integers"])
    assert "session.disable_quant_qdq" in changed
    assert len(changed) == len(set(changed))


@pytest.mark.parametrize("shared", [True, False])
def test_options_serve_one_session_after_the_other(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sets entries that it needs, such as where its weights are. Sessions with other options do not wait."""
    at_once, most = 0, 0
    created, all_there = sessions.create_or_fall_back, threading.Barrier(4, timeout=60)

    def slowly(*arguments: object) -> onnxruntime.InferenceSession:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if shared:
            time.sleep(0.1)  # for a second one to come, if it may
        else:
            all_there.wait()
        at_once -= 1
        return created(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sessions, "create_or_fall_back", slowly)
    data, options = dense().SerializeToString(), [normfuse.session_options() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(normfuse.InferenceSession, data, options[0 if shared else i]) for i in range(4)]
    assert len({id(each.result()) for each in made}) == 4
    assert (most == 1) == shared


@on_x86
def test_operators_of_a_library_of_the_users(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Options do not say which libraries they know, so ONNX Runtime cannot optimise it by itself: a line says so."""
    library = tmp_path / "library.so"
    library.write_bytes(Path(normfuse.get_library_path()).read_bytes().replace(b"ai.normfuse", b"my.normfuse"))
    model = depthwise()
    x, expected = image(model), np.maximum(results(model, image(model))["y"], 0)
    program = write_program([ProgramStep("Relu")])
    model.graph.node.append(helper.make_node("FusedActivation", ["y"], ["r"], domain="my.normfuse", steps=program))
    model.opset_import.append(helper.make_opsetid("my.normfuse", 1))
    model.graph.output[0].name = "r"
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library))
    host_optimization._say_once.cache_clear()
    with caplog.at_level("INFO", logger="normfuse"):
        for _ in range(2):
            (got,) = normfuse.InferenceSession(model, options).run(None, x)
            assert np.abs(got - expected).max() <= 1.01 * STEP
    (line,) = (record for record in caplog.records if "session plan" not in record.getMessage())
    assert "my.normfuse" in line.getMessage()
