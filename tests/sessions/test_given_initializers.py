"""Initializers that session options give: a session runs with these, whatever the model's file says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

import normfuse
from normfuse.meaning import Array

TEXT = """<ir_version: 10, opset_import: ["": 17]> g (float[4, 64] x) => (float[4, 64] y) {
    n = LayerNormalization(x, scale, bias) c = Clip(n, , most) y = Mul(c, factor) }"""
FILE = {
    "scale": np.ones(64, np.float32),
    "bias": np.zeros(64, np.float32),
    "most": np.array(0.5, np.float32),
    "factor": np.full(64, 2, np.float32),
}
GIVEN = np.linspace(1, 3, 64, dtype=np.float32)
X = (np.linspace(0, 1, 64) * np.arange(1, 5)[:, None]).astype(np.float32)
LEFT = pytest.warns(UserWarning, match="runs it as it is, not rewritten")


def model_of(external: tuple[str, ...] = ()) -> bytes:
    model = onnx.parser.parse_model(TEXT)
    for name, array in FILE.items():
        tensor = numpy_helper.from_array(array, name)
        if name in external:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "e.data"), ("offset", "0"), ("length", str(array.nbytes))):
                entry = tensor.external_data.add()
                entry.key, entry.value = key, value
        model.graph.initializer.append(tensor)
    return bytes(model.SerializeToString())


def expected(**given: Array) -> Array:
    values = {**FILE, **given}
    x = X.astype(np.float64)
    n = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    return np.minimum(n * values["scale"] + values["bias"], values["most"]) * values["factor"]


def value(array: Array) -> onnxruntime.OrtValue:
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def check(session: onnxruntime.InferenceSession, want: Array) -> None:
    np.testing.assert_allclose(session.run(None, {"x": X})[0], want, atol=1e-5)


@pytest.mark.parametrize("name", ["factor", "scale", "most"])
def test_an_initializer_of_another_value(name: str) -> None:
    given = np.array(0.25, np.float32) if name == "most" else GIVEN
    kept = value(given)
    options = onnxruntime.SessionOptions()
    options.add_initializer(name, kept)
    with LEFT:
        session = normfuse.InferenceSession(model_of(), options)
    check(session, expected(**{name: given}))


# Scales of a pair that are equal and two initializers: the session may have another value of one.
PAIRS = """<ir_version: 10, opset_import: ["": 21]> g (float[4, 64] x) => (float[4, 64] y)
    <float s = {0.015625}, float t = {0.015625}, float u = {0.0625}> {
    a = QuantizeLinear <output_dtype = 3> (x, s) b = DequantizeLinear(a, t)
    n = Softmax(b) q = QuantizeLinear <output_dtype = 2> (b, u) r = DequantizeLinear(q, u) y = Add(n, r) }"""
BRANCH = """<ir_version: 10, opset_import: ["": 17]>
    g (float[4, 64] x, bool c) => (float[4, 64] y) <float[64] factor = {FACTOR}> {
    y = If(c) <then_branch = t () => (float[4, 64] a) { m = Softmax(x) a = Mul(m, factor) },
               else_branch = e () => (float[4, 64] b) { b = Identity(x) }> }"""


def expected_of_pairs(s: float = 1 / 64, t: float = 1 / 64, u: float = 1 / 16) -> Array:
    b = np.clip(np.rint(X.astype(np.float64) / s), -128, 127) * t
    e = np.exp(b - b.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True) + np.clip(np.rint(b / u), 0, 255) * u


WAYS: list[dict[str, Any]] = [{"claim": "all"}, {"claim": "profitable"}, {"compile": 0}]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", [*FILE, "another"])
def test_the_provider_takes_the_given_value(name: str, way: dict[str, Any]) -> None:
    given = np.array(0.25, np.float32) if name == "most" else GIVEN
    kept = value(given)
    options = harness.session_options("ep", **way)
    options.add_initializer(name, kept)
    session = harness.create_session(model_of(), "ep", options)
    check(session, expected(**{name: given}))
    assert harness.ep_groups(session) or way != {"claim": "all"}


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("names", ["s", "t", "u", "st", "stu"])
def test_the_provider_takes_given_scales(names: str, way: dict[str, Any]) -> None:
    kept = value(np.array(1 / 32, np.float32))
    options = harness.session_options("ep", **way)
    for name in names:
        options.add_initializer(name, kept)
    session = harness.create_session(onnx.parser.parse_model(PAIRS), "ep", options)
    check(session, expected_of_pairs(**dict.fromkeys(names, 1 / 32)))


def test_a_branch_reads_what_is_given() -> None:
    kept = value(GIVEN)
    options = harness.session_options("ep")
    options.add_initializer("factor", kept)
    model = onnx.parser.parse_model(BRANCH.replace("FACTOR", ", ".join(["2"] * 64)))
    session = harness.create_session(model, "ep", options)
    e = np.exp(X.astype(np.float64))
    got = session.run(None, {"x": X, "c": np.array(True)})[0]
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True) * GIVEN, atol=1e-5)


# ONNX Runtime reads what is given where it lies.
VALUE, BYTES = value(GIVEN), GIVEN.tobytes()


def by_value(options: onnxruntime.SessionOptions) -> None:
    options.add_external_initializers(["factor"], [VALUE])


def by_file(options: onnxruntime.SessionOptions) -> None:
    options.add_external_initializers_from_files_in_memory(["e.data"], [BYTES], [len(BYTES)])


@pytest.mark.parametrize("there", [True, False], ids=["another file lies there", "no file lies there"])
@pytest.mark.parametrize("give", [by_value, by_file])
def test_external_initializers(tmp_path: Path, there: bool, give: Callable[[onnxruntime.SessionOptions], None]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model_of(("factor",)))
    if there:
        (tmp_path / "e.data").write_bytes(FILE["factor"].tobytes())
    options = onnxruntime.SessionOptions()
    give(options)
    with LEFT:
        session = normfuse.InferenceSession(path, options)
    check(session, expected(factor=GIVEN))
    options = harness.session_options("ep")
    give(options)
    session = harness.create_session(path, "ep", options)
    check(session, expected(factor=GIVEN))
    assert harness.ep_groups(session)


def test_what_is_given_to_another_model_does_not_matter() -> None:
    kept = value(GIVEN)
    options = onnxruntime.SessionOptions()
    options.add_initializer("another", kept)
    session = normfuse.InferenceSession(model_of(), options)
    check(session, expected())
    assert session.get_providers()[0] == normfuse.get_ep_name()


def test_where_it_cannot_be_seen_the_model_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normfuse.host.given_initializers.copied", lambda options: options.no_such_thing)
    with pytest.warns(UserWarning, match="It cannot be seen whether"):
        session = normfuse.InferenceSession(model_of(), onnxruntime.SessionOptions())
    check(session, expected())


def test_a_given_value_of_a_constant_node() -> None:
    """ONNX Runtime makes an initializer of the node first."""
    text = """<ir_version: 10, opset_import: ["": 17]> g (float[4, 64] x) => (float[4, 64] y) <
        float[64] scale = {%s}> { most = Constant <value_float = 0.5> () n = LayerNormalization(x, scale)
        y = Clip(n, , most) }""" % ", ".join(["1"] * 64)  # noqa: UP031 -- braces
    model = onnx.parser.parse_model(text).SerializeToString()
    options = onnxruntime.SessionOptions()
    given = value(np.array(0.25, np.float32))
    options.add_initializer("most", given)
    with LEFT:
        session = normfuse.InferenceSession(model, options)
    assert session.run(None, {"x": X})[0].max() == np.float32(0.25)


@pytest.mark.parametrize("cache", ["0", "cache"])
def test_a_folder_that_options_name_has_the_data(tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a model that is given as a path, beside which another file of the name may lie."""
    monkeypatch.setenv("NORMFUSE_CACHE", cache if cache == "0" else str(tmp_path / cache))
    for folder, factor in (("here", 1), ("there", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "e.data").write_bytes((FILE["factor"] * factor).tobytes())
    path = tmp_path / "here" / "model.onnx"
    path.write_bytes(model_of(external=("factor",)))
    for folder, factor in (("here", 1), ("there", 3), ("there", 3), ("here", 1)):
        options = onnxruntime.SessionOptions()
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(tmp_path / folder))
        for session in (onnxruntime.InferenceSession(path, options), normfuse.InferenceSession(path, options)):
            check(session, expected(factor=FILE["factor"] * factor))
