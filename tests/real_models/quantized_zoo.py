"""Real float networks as onnxruntime's own quantiser writes them: in QDQ form, and in the operator-oriented one.

Each file is made once, into the cache of the models, from inputs with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from model_zoo import CACHE, MODELS, Feeds, RealModel, Scheme, quantize, text_line, text_lines

from normfuse.files.model_files import load_model
from normfuse.inspection.quantization import Quantization, quantization_of

_CALIBRATING_INPUTS = 4

SCHEMES = {
    "a16w8": Scheme("QUInt16"),  # what tool chains for NPUs write
    "s8s8": Scheme("QInt8"),  # the default of quantize_static
    "u8s8pc": Scheme("QUInt8", per_channel=True),
}
OPERATOR_SCHEMES = {
    "s8s8op": Scheme("QInt8", form="QOperator"),
    "u8s8op": Scheme("QUInt8", form="QOperator"),
    "u8s8pcop": Scheme("QUInt8", per_channel=True, form="QOperator"),
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


NETWORKS = {
    "minilm-l3": Network(MODELS["minilm-l3"], full_sentences),
    "ocr-direction": Network(
        MODELS["ocr-direction"], lambda g: {"x": np.concatenate([text_line(g, 192)["x"] for _ in range(6)])}
    ),
    "ocr-recognition": Network(MODELS["ocr-recognition"], text_lines),
    "detector": Network(MODELS["detector"], page_of_glyphs),
    "yolov8": Network(MODELS["yolov8"], small_page),
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
    """Path of a file of `NAMES` or `OPERATOR_NAMES`, made on the first use."""
    network, target = network_of(name), CACHE / "quantised" / f"{name}-{onnxruntime.__version__}.onnx"
    return quantize(network.path(), scheme_of(name), network.inputs(seed=1000), target)


def check_pairs(said: Quantization, model: onnx.ModelProto, *, not_seen: float = 0.0) -> None:
    """Assert that there is a reason for each pair of a model; a share of them may be seen no more."""
    assert not said.not_asked
    pairs = [node.name for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert sorted(node for group in said.pairs for node in group.nodes) == sorted(pairs)
    assert all(group.message for group in said.pairs)
    becomes = {"fused", "folded", "repeated", "in_integers", "claimed", "left", "not_seen"}
    assert {group.becomes for group in said.pairs} <= becomes
    unseen = sum(len(group.nodes) for group in said.pairs if group.becomes == "not_seen")
    assert unseen <= not_seen * len(pairs)


@cache
def said_of(name: str) -> Quantization:
    """What `quantization_of` says of the file and its pairs: seconds, and two tests of a network ask."""
    said = quantization_of(load_model(quantized_file(name)), with_pairs=True)
    assert said is not None
    return said
