"""The covering arrays that the tests' parameters are thinned by."""

from itertools import combinations, product

import pytest
from covering import covering, parametrize_covering, parametrize_spread

FACTORS = (range(6), range(3), range(5), range(2), range(4))


def combinations_of(rows: list[tuple[int, ...]], strength: int) -> set[object]:
    return {each for row in rows for each in combinations(enumerate(row), strength)}


@pytest.mark.parametrize(("strength", "most"), [(1, 6), (2, 40), (3, 180), (5, 720)])
def test_every_combination_is_in_a_few_rows(strength: int, most: int) -> None:
    rows = [row for row in product(*FACTORS) if strength < 3 or row[0] != row[2]]
    chosen = [rows[place] for place in covering(rows, strength)]
    assert combinations_of(chosen, strength) == combinations_of(rows, strength)
    assert len(chosen) <= most


def test_the_rest_of_the_product_is_slow() -> None:
    mark = parametrize_covering("a,b,c", "xyz", [1, 2], [[], {}], where=lambda a, b, c: a != "z" or b == 1)
    names, cases = mark.args
    assert names == "a,b,c"
    assert [case.values for case in cases] == [
        row for row in product("xyz", [1, 2], [[], {}]) if row[0] != "z" or row[1] == 1
    ]
    kept = [case.values for case in cases if not case.marks]
    assert {case.marks[0].name for case in cases if case.marks} == {"slow"}
    assert {(a, b) for a, b, _ in kept} == {("x", 1), ("x", 2), ("y", 1), ("y", 2), ("z", 1)}
    assert len(kept) == 6


def test_each_of_the_first_has_a_few_of_the_others_and_none_is_left_out() -> None:
    mark = parametrize_spread(
        "a,b,c,d", [(n, -n) for n in range(9)], "xyz", [1, 2], each=2, where=lambda _, b, c: b + str(c) != "z2"
    )
    cases = mark.args[1]
    assert len(cases) == 9 * 5
    kept = [case.values for case in cases if not case.marks]
    assert [sum(a == n for a, *_ in kept) for n in range(9)] == [2] * 9
    assert {(b, c) for *_, b, c in kept} == {("x", 1), ("x", 2), ("y", 1), ("y", 2), ("z", 1)}
