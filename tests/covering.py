"""Covering arrays: of a product of parameters, the cases that the main part of the tests runs.

Most faults show with one value of one parameter, nearly all with two or three values together. A covering array has
each combination of the values of any two parameters (or three) in at least one case, in far fewer than the product has.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(rows: Sequence[Sequence[Hashable]], strength: int = 2) -> list[int]:
    """Places of rows that together have every combination of so many values that any row has, in ascending order.

    Greedy: each time the first of the rows with the most combinations that are new.
    """
    new = [set(combinations(enumerate(row), strength)) for row in rows]
    missing = set().union(*new)
    chosen = []
    while missing:
        best, most = -1, 0
        for place, row in enumerate(new):
            if len(row) > most:  # it has no more than when it was last looked at
                row &= missing
                if len(row) > most:
                    best, most = place, len(row)
        chosen.append(best)
        missing -= new[best]
    return sorted(chosen)


def parametrize_covering(
    names: str, *values: Sequence[Any], strength: int = 2, where: Callable[..., bool] = lambda *_: True
) -> pytest.MarkDecorator:
    """As one `pytest.mark.parametrize` with the product of the names' values: what is outside of the array is "slow".

    ``where`` says which cases of the product there are.
    """
    cases = [
        (places, row)
        for places, row in zip(product(*(range(len(each)) for each in values)), product(*values), strict=True)
        if where(*row)
    ]
    kept = set(covering([places for places, _ in cases], strength))
    return pytest.mark.parametrize(
        names, [pytest.param(*row, marks=() if i in kept else pytest.mark.slow) for i, (_, row) in enumerate(cases)]
    )


def parametrize_spread(
    names: str,
    first: Sequence[Any],
    *values: Sequence[Any],
    each: int,
    where: Callable[..., bool] = lambda *_: True,
    ids: Callable[[Any], str | None] | None = None,
) -> pytest.MarkDecorator:
    """The product, too, of many first values that have little to do with the others: each with a few, the rest "slow".

    Neighbours have others, so that every case of the others has some of the first. Values that are tuples stand for
    several names.
    """
    cases = []
    for place, value in enumerate(first):
        others = [row for row in product(*values) if where(value, *row)]
        kept = {(place + i * len(others) // each) % len(others) for i in range(each)}
        given = value if isinstance(value, tuple) else (value,)
        for i, row in enumerate(others):
            cases.append(pytest.param(*given, *row, marks=() if i in kept else pytest.mark.slow))
    return pytest.mark.parametrize(names, cases, ids=ids)
