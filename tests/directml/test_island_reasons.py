"""What ``normfuse inspect --backend directml`` says of islands: which there are, and why an operator joins none."""

from __future__ import annotations

import harness
import numpy as np
import pytest
from parsed_models import parse

from normfuse import models
from normfuse.inspection.lowering import Lowering, lower
from normfuse.spec import REASONS

# By what is in the way: a graph with one such node, the node's operator, and the words that say so.
REFUSED = {
    "operator": ("g (float[4, 8] x) => (float[4, 8] y) { y = Hardmax(x) }", "Hardmax", "islands have no such operator"),
    "equation": (
        'g (float[4, 8] x) => (float[8, 4] y) { y = Einsum <equation = "ij->ji"> (x) }',
        "Einsum",
        "the equation 'ij->ji' is no product of two operands",
    ),
    "value": (
        """g (float[1, 1, 4, 4] x) => (float[1, 1, 8, 8] y) <float[4] s = {1.0, 1.0, 2.0, 2.0}> {
            y = Resize <mode = "cubic"> (x, , s) }""",
        "Resize",
        "its attribute mode is 'cubic'; what can be expressed is: nearest linear",
    ),
    "rounded up": (
        """g (float[1, 1, 4, 6] x) => (float[1, 1, 2, 3] y) {
            y = AveragePool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x) }""",
        "AveragePool",
        "its attribute ceil_mode is '1'; what can be expressed is: 0",
    ),
    "attribute": (
        """g (float[1, 1, 4, 6] x, float[1, 1, 1, 1] w) => (float[1, 1, 4, 6] y) {
            y = ConvTranspose <output_shape = [4, 6]> (x, w) }""",
        "ConvTranspose",
        "its attribute output_shape cannot be expressed",
    ),
    "outputs": (
        """g (float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y, int64[1, 1, 2, 2] i) {
            y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }""",
        "MaxPool",
        "it has 2 outputs, of which 1 can be expressed",
    ),
    "type": (
        "g (double[4, 8] x, double[8, 4] w) => (double[4, 4] y) { y = MatMul(x, w) }",
        "MatMul",
        "'x' has element type float64",
    ),
    "rank": (
        "g (float[1, 1, 4, 4, 4, 4] x, float[1, 1, 1, 1, 1, 1] w) => (float[1, 1, 4, 4, 4, 4] y) { y = Conv(x, w) }",
        "Conv",
        "'x' has 6 dimensions; 3 to 5 can be expressed",
    ),
    "constant": (
        'g (float[1, 1, 4, 4] x, float[4] s) => (float[1, 1, M, N] y) { y = Resize <mode = "linear"> (x, , s) }',
        "Resize",
        "'s' is no constant of float32",
    ),
    "vector": (
        """g (uint8[4, 8] a, uint8[8, 2] b, uint8[4] z) => (int32[4, 2] y) { y = MatMulInteger(a, b, z) }""",
        "MatMulInteger",
        "'z' is not known to be one element",
    ),
    "column": (
        """g (uint8[4, 8] a, uint8[8, 2] b, uint8 z, uint8[1, 2] w) => (int32[4, 2] y) {
            y = MatMulInteger(a, b, z, w) }""",
        "MatMulInteger",
        "'w' is not known to be a vector",
    ),
    "no elements": (
        """g (float[4, 8] x) => (float[0, 8] y) <int64[1] zero = {0}> { n = Neg(x) y = Slice(n, zero, zero) }""",
        "Slice",
        "'y' has a dimension of 0",
    ),
    "int64 of floats": (
        "g (float[4, 8] x) => (int64[4, 8] y) { n = Neg(x) y = Cast <to = 7> (n) }",
        "Cast",
        "'y' is of int64, of floats that may be larger than 32 bits",
    ),
    "computing with int64 of floats": (
        """g (float[4, 8] x, int64[4, 8] z, bool[4, 8] c) => (bool[4, 8] y) {
            n = Neg(x) i = Cast <to = 7> (n) m = Mul(i, z) k = Where(c, m, z) y = Equal(k, z) }""",
        "Equal",
        "'k' is of int64, of floats that may be larger than 32 bits",
    ),
    "shape": (
        """g (float[4, 8] x, float[8, 2] w, int64[2, 2] sizes, int64 at) => (float[M, N] y) {
            p = MatMul(x, w) s = Gather(sizes, at) y = Reshape(p, s) }""",
        "Reshape",
        "'s', which decides a shape, is computed by the GPU or of large tensors",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_why_an_operator_joins_none(case: str) -> None:
    text, op_type, why = REFUSED[case]
    said = {each.op_type: each for each in lower(parse(text, 18)).on_cpu}
    assert said[op_type].message.endswith(why)
    assert (said[op_type].reason, said[op_type].advice) == ("stays_on_cpu", REASONS["stays_on_cpu"].advice)


UINT4 = """g (uint4[4, 8] x, float c, float[8] s) => (float[4, 8] y) {
    d = DequantizeLinear(x, c) y = LayerNormalization(d, s) }"""
# Of chains: the model, a level, the reason and the words.
DECLINED = [
    (
        "g (bfloat16[4, 8] x, bfloat16[8] s) => (bfloat16[4, 8] y) { y = LayerNormalization(x, s) }",
        *("6_4", "directml_unsupported", "a tensor of type bfloat16 (X)"),
    ),
    *(
        (
            f"g (float[{rows}, 8] x, float[8] s) => (float[{rows}, 8] y) {{ y = LayerNormalization(x, s) }}",
            *("6_4", "directml_unsupported", why),
        )
        for rows, why in ((2**30, "more than 2^32 - 1 elements"), (0, "a dimension of 0"))
    ),
    (UINT4, "6_2", "directml_level", "of type uint4 (X) needs DirectML feature level 6_3; this library has 6_2"),
    (UINT4, "6_4", None, ""),
]


@pytest.mark.parametrize(("text", "level", "reason", "why"), DECLINED)
def test_why_a_chain_is_declined(text: str, level: str, reason: str | None, why: str) -> None:
    (site,) = lower(parse(text), level).sites
    assert site.reason == reason
    assert site.message.endswith(why)


def test_versions_and_levels() -> None:
    text = "g (float[4, 8] x, float[4, 8] z) => (bool[4, 8] y) { n = Neg(x) y = LessOrEqual(n, z) }"
    assert [each.op_type for each in lower(parse(text, 18), "6_2").on_cpu] == []
    (said,) = lower(parse(text, 18), "2_1").on_cpu
    assert said.message.endswith("it needs DirectML feature level 3_0")


def test_what_pays_and_what_does_not() -> None:
    """A chain alone is worth no copy; a large product is; data that only moves is no island at all."""
    chain = lower(models.chain([2, 8]))
    (island,) = chain.islands
    assert (island.chains, island.reason) == (1, "not_worth_the_gpu")
    large = (
        "g (float[2048, 2048] x, float[2048, 2048] w) => (float[2048, 2048] y) { p = MatMul(x, w) y = MatMul(p, w) }"
    )
    (island,) = lower(parse(large, 18)).islands
    assert (island.nodes, island.chains, island.reason) == (("p", "y"), 0, None)
    moved = "g (float[4, 8] x) => (float[8, 4] y) { t = Transpose(x) y = Flatten(t) }"
    (island,) = lower(parse(moved, 18)).islands
    assert (island.reason, island.message) == (
        "stays_on_cpu",
        f"{island.nodes[0]} joins no island on DirectML: it only moves data",
    )


@pytest.mark.parametrize("claim", ["profitable", "all"])
def test_they_are_the_islands_that_sessions_claim(fake: dict[str, str], claim: str) -> None:
    """On a graph that an operator without a row tears in two, with a chain in each half."""
    model = parse(
        """g (float[1, 512, 512] x, float[512, 512] w, float[512] s) => (float[1, 512, 512] y, float[512, 1, 512] z) {
            a = MatMul(x, w) b = LayerNormalization(a, s) c = Hardmax(b) d = Mul(b, c) e = LayerNormalization(d, s)
            y = MatMul(e, w) z = Transpose <perm = [1, 0, 2]> (c) }""",
        18,
    )
    lowering: Lowering = lower(model)
    claimed = [island for island in lowering.islands if island.reason is None or (claim == "all" and island.chains)]
    session = harness.create_session(model, "ep", backend="directml", claim=claim, **fake)
    assert len(harness.ep_groups(session)) == len(claimed) > 0
    ones = np.ones(512, np.float32)
    y, _ = session.run(None, {"x": np.ones((1, 512, 512), np.float32), "w": np.diag(ones), "s": ones})
    np.testing.assert_array_equal(y, 0)  # rows of one value
    assert [each.name for each in lowering.on_cpu] == ["c"]
