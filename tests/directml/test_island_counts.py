"""Small models as PyTorch exports them: one island, one submission and one wait a run."""

from __future__ import annotations

import math

import numpy as np
from directml_islands import in_double, island, session_of
from parsed_models import parse

from normfuse.inspection.gpu_work import count_gpu_work
from normfuse.meaning import Array

ALIGNMENT = 256  # tensors start at multiples of this
RNG = np.random.default_rng(17)


def weights(*shape: int) -> Array:
    return np.asarray(RNG.normal(size=shape).astype(np.float32) / np.float32(math.sqrt(shape[-1])))


def check(text: str, constants: dict[str, Array], x: Array, fake: dict[str, str]) -> None:
    model = parse(text, 18, **constants)
    assert set(constants) <= {name for node in model.graph.node for name in node.input}
    (y,) = island(model, fake).run(None, {"x": x})
    np.testing.assert_allclose(y, in_double(model, {"x": x})[0], rtol=1e-3, atol=1e-4)
    work = count_gpu_work(lambda given: session_of(model, fake, **given), {"x": x})
    assert (work.submissions, work.waits, work.dispatches, work.created) == (1, 1, 1, 0)
    padded = [-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in (x, y)]
    assert [work.bytes_up, work.bytes_down] == padded


# --- a vision transformer

WIDTH, HEADS, PATCH, SIDE = 16, 4, 4, 3
VIT_BLOCK = """
    n{i} = LayerNormalization <axis = -1, epsilon = 1e-6> (h{i}, g{i}, b{i})
    qkv{i} = MatMul(n{i}, wqkv{i}) qb{i} = Add(qkv{i}, bqkv{i}) five{i} = Reshape(qb{i}, split)
    turned{i} = Transpose <perm = [2, 0, 3, 1, 4]> (five{i})
    q{i} = Gather <axis = 0> (turned{i}, zero) k{i} = Gather <axis = 0> (turned{i}, one)
    v{i} = Gather <axis = 0> (turned{i}, two) kt{i} = Transpose <perm = [0, 1, 3, 2]> (k{i})
    scaled{i} = Mul(q{i}, scale) scores{i} = MatMul(scaled{i}, kt{i}) p{i} = Softmax <axis = -1> (scores{i})
    o{i} = MatMul(p{i}, v{i}) ot{i} = Transpose <perm = [0, 2, 1, 3]> (o{i}) joined{i} = Reshape(ot{i}, join)
    proj{i} = MatMul(joined{i}, wo{i}) a{i} = Add(proj{i}, bo{i}) r{i} = Add(h{i}, a{i})
    m{i} = LayerNormalization <axis = -1, epsilon = 1e-6> (r{i}, g{i}, b{i})
    up{i} = MatMul(m{i}, w1{i}) ub{i} = Add(up{i}, b1{i}) d{i} = Div(ub{i}, root) e{i} = Erf(d{i})
    f{i} = Add(e{i}, unit)
    gated{i} = Mul(ub{i}, f{i}) gelu{i} = Mul(gated{i}, half) down{i} = MatMul(gelu{i}, w2{i})
    db{i} = Add(down{i}, b2{i}) h{next} = Add(r{i}, db{i})
"""


def test_a_vision_transformer(fake: dict[str, str]) -> None:
    tokens = SIDE * SIDE + 1
    constants = {
        "patch": weights(WIDTH, 3, PATCH, PATCH) / 4,
        "patch_bias": weights(WIDTH),
        "class": weights(1, 1, WIDTH),
        "position": weights(1, tokens, WIDTH),
        "flat": np.array([2, WIDTH, -1], np.int64),
        "split": np.array([2, tokens, 3, HEADS, WIDTH // HEADS], np.int64),
        "join": np.array([2, tokens, WIDTH], np.int64),
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "two": np.array(2, np.int64),
        "scale": np.array(0.5, np.float32),
        "root": np.array(math.sqrt(2), np.float32),
        "unit": np.array(1, np.float32),
        "half": np.array(0.5, np.float32),
        "head": weights(5, WIDTH),
        "head_bias": weights(5),
        "last_g": weights(WIDTH),
        "last_b": weights(WIDTH),
    }
    constants["batch"] = np.array([2, 1, WIDTH], np.int64)
    for i in range(2):
        shapes: dict[str, tuple[int, ...]] = {
            "g": (WIDTH,),
            "b": (WIDTH,),
            "wqkv": (WIDTH, 3 * WIDTH),
            "bqkv": (3 * WIDTH,),
            "wo": (WIDTH, WIDTH),
            "bo": (WIDTH,),
            "w1": (WIDTH, 4 * WIDTH),
            "b1": (4 * WIDTH,),
            "w2": (4 * WIDTH, WIDTH),
            "b2": (WIDTH,),
        }
        constants |= {f"{name}{i}": weights(*shape) for name, shape in shapes.items()}
    size = SIDE * PATCH
    text = f"""vit (float[2, 3, {size}, {size}] x) => (float[2, 5] y) {{
        c = Conv <strides = [{PATCH}, {PATCH}]> (x, patch, patch_bias) r = Reshape(c, flat)
        t = Transpose <perm = [0, 2, 1]> (r) k = Expand(class, batch) j = Concat <axis = 1> (k, t)
        h0 = Add(j, position) {VIT_BLOCK.format(i=0, next=1)} {VIT_BLOCK.format(i=1, next=2)}
        n = LayerNormalization <axis = -1, epsilon = 1e-6> (h2, last_g, last_b)
        first = Gather <axis = 1> (n, zero) y = Gemm <transB = 1> (first, head, head_bias) }}"""
    x = np.asarray(RNG.normal(size=(2, 3, size, size)).astype(np.float32))
    check(text, constants, x, fake)


# --- a U-Net


def test_a_unet(fake: dict[str, str]) -> None:
    """Group normalisation and SiLU as PyTorch writes them, down by strides, up by Resize, joined by Concat."""
    shapes: dict[str, tuple[int, ...]] = {
        "w1": (4, 2, 3, 3),
        "w2": (8, 4, 3, 3),
        "w3": (4, 12, 3, 3),
        "s1": (4, 1, 1),
        "b1": (4, 1, 1),
        "s2": (8, 1, 1),
        "b2": (8, 1, 1),
        "w4": (2, 4, 3, 3),
    }
    constants = {name: weights(*shape) for name, shape in shapes.items()}
    constants |= {
        "groups": np.array([0, 2, -1], np.int64),
        "ones": np.ones(2, np.float32),
        "zeros": np.zeros(2, np.float32),
        "doubled": np.array([1, 1, 2, 2], np.float32),
    }
    normalise = """g{i} = Reshape(c{i}, groups) n{i} = InstanceNormalization <epsilon = 1e-5> (g{i}, ones, zeros)
        shape{i} = Shape(c{i}) u{i} = Reshape(n{i}, shape{i}) m{i} = Mul(u{i}, s{i}) a{i} = Add(m{i}, b{i})
        p{i} = Sigmoid(a{i}) h{i} = Mul(a{i}, p{i})"""
    text = f"""unet (float[1, 2, 8, 8] x) => (float[1, 2, 8, 8] y) {{
        c1 = Conv <pads = [1, 1, 1, 1]> (x, w1) {normalise.format(i=1)}
        c2 = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (h1, w2) {normalise.format(i=2)}
        up = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
            (h2, , doubled)
        joined = Concat <axis = 1> (up, h1) c3 = Conv <pads = [1, 1, 1, 1]> (joined, w3)
        r = Relu(c3) y = Conv <pads = [1, 1, 1, 1]> (r, w4) }}"""
    x = np.asarray(RNG.normal(size=(1, 2, 8, 8)).astype(np.float32))
    check(text, constants, x, fake)
