"""Integers of 64 bits in islands, where they have 32: larger ones may arrive, but never come back as something else."""

from __future__ import annotations

import harness
import numpy as np
import pytest
from directml_islands import open_output, session_of
from parsed_models import parse

from normfuse.meaning import Array

LOWEST, HIGHEST = -(2**31), 2**31 - 1
LARGE = (2**31, LOWEST - 1, 2**32, 2**63 - 1, -(2**63))


# As T5 counts how far apart two positions are: exactly where that is little, by the logarithm elsewhere.
BUCKETS = """g (int64[M, N] i) => (int64[M, N] y)
    <int64 eight = {8}, int64 last = {15}, float scale = {3.0}> {
    f = Cast <to = 1> (i) l = Log(f) s = Mul(l, scale) j = Cast <to = 7> (s)
    k = Add(j, eight) large = Min(k, last) is_small = Less(i, eight) y = Where(is_small, i, large) }"""


def test_a_branch_that_is_not_selected_may_be_large(fake: dict[str, str]) -> None:
    """The logarithm of 0 is, as int64, the lowest there is."""
    model = parse(BUCKETS, 20)
    session = session_of(model, fake)
    assert {"Less", "Where"} <= {node.op_type for group in harness.ep_groups(session) for node in group}
    plain = harness.create_session(model, "cpu")
    for i in (np.arange(40).reshape(4, 10), np.zeros((1, 3), np.int64), np.full((2, 1), HIGHEST)):
        np.testing.assert_array_equal(session.run(None, {"i": i})[0], plain.run(None, {"i": i})[0])


MOVES = {
    "Where(c, i, z)": lambda i: i,
    "Transpose(w)": lambda w: w.T,
    "Reshape(t, flat)": lambda w: w.T.reshape(-1),
    "Slice(w, one, two)": lambda w: w[1:2],
    "Slice(w, two, one, zero, back)": lambda w: w[2:1:-1],
    "Concat <axis = 0> (w, i)": lambda w: np.concatenate([w, w]),
    "Gather <axis = 1> (w, one)": lambda w: w[:, [1]],
    "Expand(w, wide)": lambda w: np.broadcast_to(w, (2, 3, 2)),
}


@pytest.mark.parametrize("move", MOVES)
def test_large_ones_are_an_error_where_they_are_selected(move: str, fake: dict[str, str]) -> None:
    """Of elements that are moved only, whether one of 64 bits is among those that leave the island."""
    model = parse(
        f"""g (int64[3, 2] i, float[3, 2] x, bool[3, 2] c) => (int64 y, float[3, 2] n)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] back = {{-1}},
         int64[1] flat = {{-1}}, int64[3] wide = {{2, 3, 2}}, int64[3, 2] z = {{3, 3, 3, 3, 3, 3}}> {{
        n = Neg(x) w = Where(c, i, z) t = Transpose(w) y = {move} }}""",
        20,
    )
    session = session_of(open_output(model), fake)
    assert not harness.cpu_types(session)
    x = np.ones((3, 2), np.float32)
    rest = np.array([[LOWEST, 1], [2, HIGHEST], [HIGHEST, LOWEST]])
    (y, _) = session.run(None, {"i": rest, "x": x, "c": np.ones((3, 2), bool)})
    np.testing.assert_array_equal(y, MOVES[move](rest))
    for at in np.ndindex(3, 2):
        for large in LARGE:
            i = np.arange(6).reshape(3, 2)
            i[at] = large
            for chosen in (True, False):
                c = i != (0 if chosen else large)
                expected = MOVES[move](np.where(c, i, 3))
                if move.startswith("Concat"):
                    expected = np.concatenate([np.where(c, i, 3), i])
                feeds = {"i": i, "x": x, "c": c}
                if large in expected:
                    with pytest.raises(Exception, match=f"'i' has the value {large}, but integers have 32 bits there"):
                        session.run(None, feeds)
                else:
                    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)


COMPUTING = ["f = Cast <to = 1> (i)", "f = Cast <to = 6> (i)", "f = Cast <to = 9> (i)", "f = Greater(i, z)"]


@pytest.mark.parametrize("reader", COMPUTING)
def test_large_ones_are_an_error_where_all_are_read(reader: str, fake: dict[str, str]) -> None:
    """Also where another reader selects none of them."""
    model = parse(
        f"""g (int64[1, N] i, bool[1, N] c, float[1, N] x) => (int64[1, N] y, float[1, N] n, f)
        <int64[1, 1] z = {{3}}> {{ n = Neg(x) y = Where(c, i, z) {reader} }}""",
        20,
    )
    session = session_of(model, fake)
    assert not harness.cpu_types(session)
    feeds: dict[str, Array] = {"c": np.zeros((1, 2), bool), "x": np.ones((1, 2), np.float32)}
    y, *_ = session.run(None, {**feeds, "i": np.array([[HIGHEST, LOWEST]])})
    np.testing.assert_array_equal(y, [[3, 3]])
    for large in LARGE:
        with pytest.raises(Exception, match=f"'i' has the value {large}, but integers have 32 bits there"):
            session.run(None, {**feeds, "i": np.array([[0, large]])})


@pytest.mark.parametrize("reader", ["Greater({}, z)", "Equal(z, {})", "Cast <to = 1> ({})", "Cast <to = 9> ({})"])
def test_what_computes_with_integers_of_floats_stays_on_the_cpu(reader: str, fake: dict[str, str]) -> None:
    """Whatever became of them since, on the CPU and in an island."""
    model = parse(
        f"""g (float[1, N] x, int64[1, N] z, bool[1, N] c) => (f, h)
        {{ n = Neg(x) m = Mul(n, n) j = Cast <to = 7> (m) a = Add(j, z) k = Where(c, a, z)
           f = {reader.format("a")} h = {reader.format("k")} }}""",
        20,
    )
    session = session_of(model, fake)
    assert harness.cpu_types(session) == sorted(["Add", "Cast", *[model.graph.node[-1].op_type] * 2])
    feeds = {
        "x": np.array([[2.0**20, 1, 0]], np.float32),
        "z": np.array([[2**20, 1, 0]]),
        "c": np.array([[False, True, True]]),
    }
    plain = harness.create_session(model, "cpu").run(None, feeds)
    for given, expected in zip(session.run(None, feeds), plain, strict=True):
        np.testing.assert_array_equal(given, expected)
