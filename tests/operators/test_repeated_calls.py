"""Calls of one session: what is kept of earlier calls does not change what later ones give."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from normfuse.meaning import Array

F32 = np.float32
# Rows, and elements of a row: more of them than a node keeps geometries of, each met again.
SHAPES = [(3, 7), (40, 768), (1, 768), (0, 64), (2, 1), (9, 1000), (2, 9000)]
CHAINS = {
    "LayerNorm, Gelu": "n = LayerNormalization<axis = -1>(X, w)  Y = Gelu(n)",
    "Add, LayerNorm, and the sum": "S = Add(X, R)  Y = LayerNormalization<axis = -1>(S, w)",
    "Add, Softmax": "s = Add(X, R)  Y = Softmax<axis = -1>(s)",
    "RMSNorm, DynamicQuantizeLinear": "n = RMSNormalization<axis = -1>(X, w)  Y, D, Z = DynamicQuantizeLinear(n)",
    "SiLU, Mul": "g = Sigmoid(X)  s = Mul(X, g)  Y = Mul(s, R)",
}


def model(nodes: str) -> onnx.ModelProto:
    outputs = [f"{kind}{dims} {name}" for kind, dims, name in _results(nodes)]
    text = f"g (float[a, b] X, float[a, b] R, float[b] w) => ({', '.join(outputs)}) {{ {nodes} }}"
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> {text}')


def _results(nodes: str) -> list[tuple[str, str, str]]:
    dynamic = "DynamicQuantizeLinear" in nodes
    results = [("uint8" if dynamic else "float", "[a, b]", "Y")]
    if dynamic:
        results += [("float", "[]", "D"), ("uint8", "[]", "Z")]
    if "S =" in nodes:
        results.append(("float", "[a, b]", "S"))
    return results


def tensors(shape: tuple[int, int], seed: int) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    x, r = (generator.normal(0, 2, shape).astype(F32) for _ in range(2))
    return {"X": x, "R": r, "w": generator.normal(1, 0.1, shape[1]).astype(F32)}


def call(session: onnxruntime.InferenceSession, feeds: dict[str, Array], offset: int) -> dict[str, bytes]:
    """The outputs' bytes; Y lies `offset` elements behind the beginning of a line of the cache, X and R elsewhere."""
    binding = session.io_binding()
    kept = []
    for name, array in feeds.items():
        place = _aligned(array.nbytes, (offset * 3 + 1) * array.itemsize)[: array.nbytes].view(F32)
        place[:] = array.reshape(-1)
        kept.append(place)
        if name in {node.name for node in session.get_inputs()}:
            binding.bind_input(name, "cpu", 0, F32, array.shape, place.ctypes.data)
    names = [node.name for node in session.get_outputs()]
    dtype = np.dtype(np.uint8 if "D" in names else F32)
    y = _aligned(feeds["X"].size * dtype.itemsize + 64, offset * dtype.itemsize)
    y[:] = 0xEE
    binding.bind_output("Y", "cpu", 0, dtype, feeds["X"].shape, y.ctypes.data)
    for name in names:
        if name != "Y":
            binding.bind_output(name)
    session.run_with_iobinding(binding)
    size = feeds["X"].size * dtype.itemsize
    assert (y[size:] == 0xEE).all(), "written behind Y"
    others = binding.get_outputs()
    return {
        name: y[:size].tobytes() if name == "Y" else harness.from_ort(v).tobytes()
        for name, v in zip(names, others, strict=True)
    }


def _aligned(size: int, offset: int) -> np.ndarray:
    memory = np.zeros(size + offset + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + offset
    return memory[begin : begin + size]


@pytest.mark.every_isa
@pytest.mark.parametrize("path", ["", "nontemporal"])
@pytest.mark.parametrize("chain", CHAINS)
def test_a_call_after_others_gives_the_bits_of_a_first_call(
    chain: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Non-temporal stores ask for Y at the beginning of a line of the cache."""
    monkeypatch.setenv("NORMFUSE_PATH", path)
    proto = model(CHAINS[chain])
    used = harness.create_session(proto, "ep")
    first = {}
    for index, shape in enumerate(SHAPES * 2):
        feeds = tensors(shape, index % len(SHAPES))
        for offset in (1, 0, 5):
            got = call(used, feeds, offset)
            key = index % len(SHAPES), offset
            if key not in first:
                first[key] = call(harness.create_session(proto, "ep"), feeds, offset)
            assert got == first[key], (shape, offset)


@pytest.mark.parametrize("chain", CHAINS)
def test_calls_at_the_same_time_that_are_the_first_of_their_shapes(chain: str) -> None:
    proto = model(CHAINS[chain])
    alone = harness.create_session(proto, "ep")
    cases = [(tensors(shape, seed), seed % 3) for seed, shape in enumerate(SHAPES)]
    expected = [call(alone, feeds, offset) for feeds, offset in cases]
    for _ in range(5):
        session = harness.create_session(proto, "ep")
        together = threading.Barrier(4, timeout=60)

        def work(
            number: int,
            session: onnxruntime.InferenceSession = session,
            together: threading.Barrier = together,
        ) -> None:
            for i in range(len(cases)):
                together.wait()
                feeds, offset = cases[(i + number // 2) % len(cases)]
                assert call(session, feeds, offset) == expected[(i + number // 2) % len(cases)]

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
