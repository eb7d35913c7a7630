"""Verification finds differences, names the first of them, and is not fooled by what is no difference."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper
from parsed_models import parse

import normfuse
from normfuse import models
from normfuse.graph_rewrites.engine.sites import Site
from normfuse.verification import verify_models
from normfuse.verification.comparison import Difference, model_precision
from normfuse.verification.inputs import STYLES, InputMaker


def weight(model: onnx.ModelProto, node: str, position: int) -> onnx.TensorProto:
    name = next(n for n in model.graph.node if n.name == node).input[position]
    return next(t for t in model.graph.initializer if t.name == name)


def change(tensor: onnx.TensorProto, factor: float) -> None:
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array((array * factor).astype(array.dtype), tensor.name))


def test_a_model_equals_itself() -> None:
    model = models.transformer_encoder(layers=1, hidden=32)
    report = normfuse.verify(model, model)
    assert report.passed
    assert report.error < 1e-5
    assert report.samples == 4


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_small_change_is_found_and_placed(layer: int) -> None:
    original = models.transformer_encoder(layers=3, hidden=32)
    changed = onnx.ModelProto.FromString(original.SerializeToString())
    divisions = [n for n in changed.graph.node if n.op_type == "Div" and n.input[0].startswith("Sub")]
    scaling = next(n for n in changed.graph.node if n.input[0] == divisions[1 + 2 * layer].output[0])
    change(weight(changed, scaling.name, 1), 1.001)
    site = Site(scaling.name, "LayerNormalization", "", (scaling.name,), "FusedNormalization", "the changed one")
    other = Site("Add_1", "LayerNormalization", "", ("Add_1",), "FusedNormalization", "another one")
    report = verify_models(ir.from_proto(original), ir.from_proto(changed), sites=[other, site])
    assert not report.passed
    assert report.first_difference == scaling.output[0]
    assert report.first_site == site
    assert "the changed one" in report.message


@pytest.mark.parametrize(
    ("shape", "channels"),
    [(("n", "a", "b", 3), 3), (("n", "a", "b", 7), 1), (("n", "c", "a", "b"), 1), (("n", 3, "a", "b"), 1)],
)
def test_sizes_of_an_image(shape: tuple[int | str, ...], channels: int) -> None:
    """Height and width are alike, wherever the channels stand."""
    g = models.GraphBuilder(opset=17)
    g.output(g.add("Relu", g.input("x", shape)), shape)
    maker = InputMaker(ir.from_proto(g.model("image")))
    for profile in range(maker.profile_count):
        sizes = maker.make(profile, seed=3)["x"].shape
        spatial = [size for axis, size in enumerate(sizes[1:], 1) if axis != channels and isinstance(shape[axis], str)]
        assert len(set(spatial)) == 1
        assert spatial[0] >= 8 or profile == maker.profile_count - 1


def test_token_ids_stay_within_the_table() -> None:
    maker = InputMaker(ir.from_proto(models.transformer_encoder(layers=1, hidden=32, vocabulary=5)))
    for profile in range(maker.profile_count):
        sample = maker.make(profile, seed=3)
        assert sample["input_ids"].dtype == np.int64
        assert sample["input_ids"].min() >= 0
        assert sample["input_ids"].max() < 5
        assert set(np.unique(sample["attention_mask"])) <= {0, 1}
        assert (sample["attention_mask"][:, 0] == 1).all()
        assert sample["input_ids"].shape == sample["attention_mask"].shape


def test_samples_are_noise_and_data_with_a_structure() -> None:
    """Of four, one is noise; padding ends in zeros, ramps rise beside constant rows, and pictures are smooth."""
    g = models.GraphBuilder(opset=17)
    for name, shape, dtype in (
        ("steps", [2, 6, 9], np.float32),
        ("pixels", [1, 32, 32, 3], np.uint8),
        ("timestep", [], np.float32),
    ):
        g.output(g.add("Cast", g.input(name, shape, dtype), to=TensorProto.FLOAT), shape)
    g.output(g.add("Gather", np.ones((50, 3), np.float32), g.input("token_ids", [2, 12], np.int64)), [2, 12, 3])
    maker = InputMaker(ir.from_proto(g.model("of data")))
    random, padded, ramps, smooth = (maker.make(0, 0, style) for style in STYLES)
    assert all(sample["timestep"] >= 1 for sample in (random, padded, ramps, smooth))
    assert random["steps"].all()
    for row in padded["steps"]:
        end = np.trim_zeros(np.ravel(row), "b").size
        assert 0 < end < row.size
    assert (np.ptp(ramps["steps"], axis=-1) == 0).reshape(-1)[1::2].all()
    assert (np.diff(ramps["steps"], axis=-1) > 0).reshape(12, -1)[::2].all()
    for sample, least in ((random, 60), (smooth, 0)):
        assert np.abs(np.diff(sample["pixels"].astype(float), axis=1)).mean() >= least
    assert np.abs(np.diff(smooth["pixels"].astype(float), axis=1)).mean() < 50
    assert {0, 255} <= set(smooth["pixels"].ravel())
    assert not padded["token_ids"][:, -1].any()
    assert padded["token_ids"][:, :6].any()


def test_table_behind_a_cast_a_reshape_and_a_quantised_weight() -> None:
    text = """g (int32[n,4] ids) => (float[m,3] y) {
        t = DequantizeLinear(q, s) i = Cast<to = 7>(ids) r = Reshape(i, flat) y = Gather(t, r) }"""
    constants = {"q": np.zeros((7, 3), np.int8), "s": np.array(0.1, np.float32), "flat": np.array([-1])}
    maker = InputMaker(ir.from_proto(parse(text, 17, **constants)))
    values = np.concatenate([maker.make(0, seed)["ids"].ravel() for seed in range(20)])
    assert set(values) == set(range(7))


def test_symbolic_dimensions_are_tried_at_several_sizes() -> None:
    maker = InputMaker(ir.from_proto(models.diffusion_resblock(channels=32)))
    shapes = {maker.make(profile, 0)["sample"].shape for profile in range(maker.profile_count)}
    assert len({shape[0] for shape in shapes}) > 1
    assert len({shape[2:] for shape in shapes}) > 3
    assert {shape[1] for shape in shapes} == {32}


def test_sums_of_dimensions_agree() -> None:
    text = """g (float[batch,past_length,4] past, float[batch,length,4] new, float[batch,all] mask) =>
        (float[batch,total,4] y) { j = Concat<axis = 1>(past, new) m = Unsqueeze(mask, two) y = Mul(j, m) }"""
    model = parse(text, 17, two=np.array([2]))
    model.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "past_length + length"
    assert normfuse.verify(model, model).passed


def test_numbers_that_a_model_refuses() -> None:
    """Of random numbers 0 and 1 it takes 0 alone, as an index into a single row: others are made for the rest."""
    model = parse("g (float[1,8] x, int64[1] row) => (float[1,8] y) { z = Gather (x, row) y = Relu (z) }", 17)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"  # no size that the numbers are made for
    report = normfuse.verify(model, model, samples=16)
    assert report.passed
    assert report.samples == 16
    assert not report.warnings


def test_users_inputs(tmp_path: Path) -> None:
    model = models.chain(["n", 16], opset=17)
    good = tmp_path / "good.npz"
    np.savez(good, x=np.ones((3, 16)))  # float64 is converted
    assert normfuse.verify(model, model, inputs=[good, {"x": np.zeros((1, 16), np.float32)}]).samples == 2
    np.savez(tmp_path / "other.npz", y=np.ones((3, 16)))
    np.savez(tmp_path / "short.npz", x=np.ones((3, 15)))
    np.savez(tmp_path / "complex.npz", x=np.ones((3, 16), complex))
    np.save(tmp_path / "single.npy", np.ones((3, 16)))
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "cut.npz").write_bytes(good.read_bytes()[:-20])
    for name, words in [
        ("other.npz", "holds 'y'; the model's inputs are x"),
        ("short.npz", r"has shape \[3, 15\], and the model takes \[n, 16\]"),
        ("complex.npz", "has element type complex128"),
        ("single.npy", "holds one array"),
        ("text.npz", "make one with numpy.savez"),
        ("cut.npz", "make one with numpy.savez"),
        ("absent.npz", "does not exist"),
    ]:
        with pytest.raises(normfuse.OptionError, match=words):
            normfuse.verify(model, model, inputs=tmp_path / name)
    with pytest.raises(normfuse.OptionError, match="input 'x'"):
        normfuse.verify(model, model, inputs={})


def test_models_of_different_signature() -> None:
    with pytest.raises(normfuse.OptionError, match="not versions of one model"):
        normfuse.verify(models.chain(["n", 8]), models.swiglu_block(hidden=8))


def test_random_models_cannot_be_verified() -> None:
    model = parse("g (float[n,8] x) => (float[n,8] y) { r = RandomNormalLike(x) y = Add(x, r) }", 17)
    with pytest.raises(normfuse.VerificationError, match="does not give the same result twice"):
        normfuse.verify(model, model)


def test_inputs_that_no_signature_explains() -> None:
    model = parse("g (float[n] x) => (float[123,457] y) { y = Reshape(x, s) }", 17, s=np.array([123, 457]))
    with pytest.raises(normfuse.VerificationError, match=r"accepts none of the inputs.*--inputs"):
        normfuse.verify(model, model)
    assert normfuse.verify(model, model, inputs={"x": np.ones(123 * 457, np.float32)}).passed


def test_a_model_that_onnxruntime_cannot_load() -> None:
    model = parse("g (float[4] x) => (float[4] y) { y = NoSuchOperator(x) }", 17)
    with pytest.raises(normfuse.InvalidModelError, match="onnxruntime cannot load the model"):
        normfuse.verify(model, model)


def difference(a: object, b: object, quantized: bool = False) -> Difference:
    result = Difference("y", quantized)
    result.add(np.asarray(a), np.asarray(b))
    return result


def test_special_values() -> None:
    nan, inf = np.nan, np.inf
    same = np.array([nan, inf, -inf, 0.0, -0.0, 1.0], np.float32)
    assert difference(same, same.copy()).error == 0
    for wrong in ([nan, inf], [inf, -inf], [1.0, nan], [1.0, inf]):
        assert difference(np.float32(wrong[:1]), np.float32(wrong[1:])).error == inf
        assert not difference(np.float32(wrong[:1]), np.float32(wrong[1:])).compared(1.0).passed


@pytest.mark.parametrize("quantized", [False, True])
def test_from_zeros_a_difference_is_absolute(quantized: bool) -> None:
    """As a LogSoftmax over a dimension of length 1 gives them."""
    for far in (1e-7, 1.0):
        got = np.array([[0, far]], np.float32)
        assert difference(np.zeros((1, 2), np.float32), got, quantized).error == np.float32(far)


def test_ulp_distance() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        one = np.array([1.0], dtype)
        assert difference(one, np.nextafter(one, dtype(2))).max_ulp == 1
        tiny = np.nextafter(np.zeros(1, dtype), dtype(1))
        assert difference(tiny, -tiny).max_ulp == 2
        assert difference(np.array([-1.0], dtype), np.array([1.0], dtype)).max_ulp > 2 ** (8 * one.itemsize - 2)


def test_error_is_relative_to_usual_size() -> None:
    a = np.full(1000, 100.0, np.float32)
    a[0] = 1e-3
    b = a.copy()
    b[0] = 2e-3
    found = difference(a, b)
    assert found.max_rel == pytest.approx(1.0, rel=1e-3)
    assert found.error == pytest.approx(1e-5, rel=1e-2)


def test_top1_disagreement_beyond_the_tolerance_fails() -> None:
    a = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], np.float32)
    assert difference(a, a).compared(0.0).top1 == 1.0
    swapped = a[:, ::-1].copy()
    assert difference(a, swapped, quantized=True).compared(1.0).top1 == 0.0
    assert not difference(a, swapped, quantized=True).compared(1.0).passed
    tie = np.array([[1.0, 1.0 + 1e-6]], np.float32)
    assert difference(tie, tie[:, ::-1].copy()).compared(1e-4).passed


def test_other_shape_or_type_fails() -> None:
    a = np.ones(3, np.float32)
    assert "instead of float32[3]" in difference(a, np.ones(4, np.float32)).compared(1.0).note
    assert not difference(a, np.ones(3)).compared(1e9).passed
    assert not difference(np.array(["a"]), np.array(["b"])).compared(1e9).passed


def test_precision_follows_the_model() -> None:
    assert model_precision(ir.from_proto(models.chain([2, 8]))) == ir.DataType.FLOAT
    assert model_precision(ir.from_proto(models.chain([2, 8], dtype="float16"))) == ir.DataType.FLOAT16


def test_a_changed_table_of_a_quantised_model_is_found() -> None:
    model = models.transformer_encoder(layers=1, hidden=32, quantized=True)
    report = normfuse.verify(model, model)
    assert report.passed
    assert report.quantized
    assert report.samples == 16
    broken = onnx.ModelProto.FromString(model.SerializeToString())
    change(next(t for t in broken.graph.initializer if t.name == "word_embeddings"), 1.5)
    report = normfuse.verify(model, broken)
    assert not report.passed
    assert report.first_difference == next(n for n in model.graph.node if n.op_type == "Gather").output[0]


def test_outputs_that_are_all_nan_are_remarked() -> None:
    model = parse("g (float[n,4] x) => (float[n,4] y) { a = Abs(x) s = Sub(m, a) y = Sqrt(s) }", 17, m=-np.ones(1, "f"))
    report = normfuse.verify(model, model)
    assert report.passed
    assert any("NaN for every input" in warning for warning in report.warnings)


def test_string_inputs() -> None:
    model = parse("g (string[n] x) => (string[n] y) { y = Identity(x) }", 17)
    assert normfuse.verify(model, model).passed


def test_sequence_inputs_are_refused_with_a_sentence() -> None:
    model = parse("g (seq(float[]) x) => (int64[1] y) { y = SequenceLength(x) }", 17)
    with pytest.raises(normfuse.VerificationError, match="Input 'x' is not a tensor"):
        normfuse.verify(model, model)
