"""Real float networks as onnxruntime's own quantiser writes them: in QDQ form, and in the operator-oriented one.

Each file is made once, into the cache of the models, from inputs with a fixed seed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from model_zoo import CACHE, MODELS, Feeds, RealModel, text_line, text_lines

from normfuse.files.model_files import load_model
from normfuse.inspection.quantization import Quantization, quantization_of

_CALIBRATING_INPUTS = 4
# Before it, DequantizeLinear has one scale for a whole tensor.
_OPSET_WITH_AXES = 13


@dataclass(frozen=True)
class Scheme:
    """Types of activations and weights, by the names of onnxruntime.quantization.QuantType."""

    activations: str
    weights: str
    per_channel: bool = False
    form: str = "QDQ"
    """By the name of onnxruntime.quantization.QuantFormat."""


SCHEMES = {
    "a16w8": Scheme("QUInt16", "QInt8"),  # what tool chains for NPUs write
    "s8s8": Scheme("QInt8", "QInt8"),  # the default of quantize_static
    "u8s8pc": Scheme("QUInt8", "QInt8", per_channel=True),
}
OPERATOR_SCHEMES = {
    "s8s8op": Scheme("QInt8", "QInt8", form="QOperator"),
    "u8s8op": Scheme("QUInt8", "QInt8", form="QOperator"),
    "u8s8pcop": Scheme("QUInt8", "QInt8", per_channel=True, form="QOperator"),
}


def full_sentences(generator: np.random.Generator) -> Feeds:
    """128 word pieces without padding."""
    ids = generator.integers(1996, 29_000, (1, 128))
    ids[:, 0], ids[:, -1] = 101, 102
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def page_of_glyphs(generator: np.random.Generator) -> Feeds:
    """Glyphs of strokes scattered over a blotchy background, 0 to 255, as the detector of a CAPTCHA reads them."""
    image = np.kron(generator.uniform(90, 250, (3, 13, 13)), np.ones((32, 32))) + generator.normal(0, 6, (3, 416, 416))
    for _ in range(int(generator.integers(4, 9))):
        top, left, size = (int(generator.integers(*limits)) for limits in ((10, 350), (10, 350), (30, 60)))
        ink = generator.uniform(0, 90, (3, 1, 1))
        for _ in range(int(generator.integers(3, 7))):
            at = int(generator.integers(0, size - 4))
            rows, columns = (
                (slice(at, at + 4), slice(0, size)) if generator.random() < 0.5 else (slice(0, size), slice(at, at + 4))
            )
            image[:, top : top + size, left : left + size][:, rows, columns] = ink
    return {"images": np.clip(image, 0, 255).astype(np.float32)[None]}


@dataclass(frozen=True)
class Network:
    """A float network, and the inputs that its quantised files are calibrated and measured with."""

    model: RealModel
    feeds: Callable[[np.random.Generator], Feeds]

    def path(self) -> Path:
        return self.model.path()

    def inputs(self, seed: int) -> Iterator[Feeds]:
        return (self.feeds(np.random.default_rng(seed + i)) for i in range(_CALIBRATING_INPUTS))


def small_page(generator: np.random.Generator) -> Feeds:
    """A corner of such a page, from 0 to 1."""
    return {"images": page_of_glyphs(generator)["images"][..., :320, :320] / np.float32(255)}


DETECTOR = RealModel("detector", "ddddocr==1.6.1", "ddddocr/common_det.onnx", page_of_glyphs)  # a YOLOX, with SiLU
YOLOV8 = RealModel("yolov8", "nudenet==3.4.2", "nudenet/320n.onnx", small_page)
NETWORKS = {
    "minilm-l3": Network(MODELS["minilm-l3"], full_sentences),
    "ocr-direction": Network(
        MODELS["ocr-direction"], lambda g: {"x": np.concatenate([text_line(g, 192)["x"] for _ in range(6)])}
    ),
    "ocr-recognition": Network(MODELS["ocr-recognition"], text_lines),
    "detector": Network(DETECTOR, page_of_glyphs),
    "yolov8": Network(YOLOV8, small_page),
}
NAMES = tuple(f"{network}-{scheme}" for network in NETWORKS for scheme in SCHEMES)
OPERATOR_NAMES = tuple(f"{network}-{scheme}" for network in NETWORKS for scheme in OPERATOR_SCHEMES)


def network_of(name: str) -> Network:
    """The float network of a quantised file's name."""
    return NETWORKS[name.rpartition("-")[0]]


def scheme_of(name: str) -> Scheme:
    """How a file of this name is quantised."""
    return (SCHEMES | OPERATOR_SCHEMES)[name.rpartition("-")[2]]


def quantized_file(name: str) -> Path:
    """Path of a file of `NAMES` or `OPERATOR_NAMES`, made on the first use. Two processes may ask at the same time."""
    target = CACHE / "quantised" / f"{name}-{onnxruntime.__version__}.onnx"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            part = Path(folder) / "part.onnx"
            quantize(network_of(name), scheme_of(name), part)
            part.replace(target)
    return target


@cache
def said_of(name: str) -> Quantization:
    """What `quantization_of` says of the file and its pairs: seconds, and two tests of a network ask."""
    said = quantization_of(load_model(quantized_file(name)), with_pairs=True)
    assert said is not None
    return said


class _Calibration:
    """What onnxruntime.quantization asks for inputs (a CalibrationDataReader)."""

    def __init__(self, feeds: Iterator[Feeds]) -> None:
        self.feeds = feeds

    def get_next(self) -> Feeds | None:
        return next(self.feeds, None)


def quantize(network: Network, scheme: Scheme, target: Path) -> None:
    """Write the network in the form of the scheme, with onnxruntime's defaults but for the types."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    source, prepared = target.with_name("source.onnx"), target.with_name("prepared.onnx")
    model = onnx.load(network.path())
    opset = next(each.version for each in model.opset_import if each.domain == "")
    if scheme.per_channel and opset < _OPSET_WITH_AXES:
        model = onnx.version_converter.convert_version(model, _OPSET_WITH_AXES)
    onnx.save(model, source)
    quant_pre_process(source, prepared, skip_symbolic_shape=True)
    quantization.quantize_static(
        prepared,
        target,
        _Calibration(network.inputs(seed=1000)),
        quant_format=quantization.QuantFormat[scheme.form],
        activation_type=quantization.QuantType[scheme.activations],
        weight_type=quantization.QuantType[scheme.weights],
        per_channel=scheme.per_channel,
    )
