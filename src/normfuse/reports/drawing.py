"""Drawings of nodes for the report page: inline SVG, coloured by the page's own style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_BOX_HEIGHT, _GAP_X, _GAP_Y, _MARGIN, _CHARACTER = 30, 16, 22, 6, 7.6


def draw_nodes(nodes: Sequence[Mapping[str, Any]], title: str) -> str:
    """Return nodes (``op_type``, ``inputs``: indices of earlier ones) as a graph that runs downwards.

    Args:
        nodes: In an order in which every node comes after those that it reads from.
        title: What the drawing shows, for those who hear the page.
    """
    levels: list[int] = []
    for node in nodes:
        levels.append(1 + max((levels[index] for index in node["inputs"]), default=-1))
    rows: list[list[int]] = [[] for _ in range(max(levels, default=-1) + 1)]
    for index, level in enumerate(levels):
        rows[level].append(index)
    widths = [_CHARACTER * len(node["op_type"]) + 16 for node in nodes]
    total = max((_row_width(row, widths) for row in rows), default=0.0) + 2 * _MARGIN
    places: dict[int, tuple[float, float]] = {}
    for level, row in enumerate(rows):
        x = (total - _row_width(row, widths)) / 2
        for index in row:
            places[index] = (x + widths[index] / 2, _MARGIN + level * (_BOX_HEIGHT + _GAP_Y))
            x += widths[index] + _GAP_X
    lines = [
        _line(places[source], places[target], levels[target] - levels[source] > 1, total)
        for target, node in enumerate(nodes)
        for source in node["inputs"]
    ]
    boxes = [_box(places[index], widths[index], node["op_type"], "before") for index, node in enumerate(nodes)]
    return _svg(total, len(rows), lines + boxes, title)


def draw_chain(name: str, steps: Sequence[str], title: str) -> str:
    """Return one fused node, with the steps that it does inside."""
    width = max(_CHARACTER * len(text) for text in (name, *steps)) + 28
    height = _BOX_HEIGHT + 20 * len(steps)
    middle = width / 2 + _MARGIN
    parts = [
        f'<rect class="after" x="{_MARGIN}" y="{_MARGIN}" width="{width:.0f}" height="{height}" rx="8"/>',
        f'<text class="name" x="{middle:.0f}" y="{_MARGIN + 20}">{escape(name)}</text>',
    ]
    for number, step in enumerate(steps):
        parts.append(f'<text x="{middle:.0f}" y="{_MARGIN + 42 + 20 * number}">{escape(step)}</text>')
    return _tag(width + 2 * _MARGIN, height + 2 * _MARGIN, parts, title)


def _row_width(row: Sequence[int], widths: Sequence[float]) -> float:
    return sum(widths[index] for index in row) + _GAP_X * (len(row) - 1)


def _box(place: tuple[float, float], width: float, text: str, kind: str) -> str:
    x, y = place
    return (
        f'<rect class="{kind}" x="{x - width / 2:.1f}" y="{y:.0f}" width="{width:.1f}" height="{_BOX_HEIGHT}" rx="6"/>'
        f'<text x="{x:.1f}" y="{y + 20:.0f}">{escape(text)}</text>'
    )


def _line(source: tuple[float, float], target: tuple[float, float], is_long: bool, total: float) -> str:
    """Return the line from one box to another; one that passes other rows bends outwards, round their boxes."""
    (x1, y1), (x2, y2) = (source[0], source[1] + _BOX_HEIGHT), target
    if not is_long:
        return f'<path d="M{x1:.1f} {y1:.0f}L{x2:.1f} {y2:.0f}"/>'
    side = total - 2 if x1 + x2 >= total else 2
    return f'<path d="M{x1:.1f} {y1:.0f}C{side:.1f} {y1 + _GAP_Y:.0f} {side:.1f} {y2 - _GAP_Y:.0f} {x2:.1f} {y2:.0f}"/>'


def _svg(width: float, rows: int, parts: Sequence[str], title: str) -> str:
    return _tag(width, 2 * _MARGIN + rows * _BOX_HEIGHT + max(rows - 1, 0) * _GAP_Y, parts, title)


def _tag(width: float, height: float, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}">{"".join(parts)}</svg>'
    )
