"""The documentation's page on ONNX's node cases, made from the tables that the tests run by.

``PYTHONPATH=tests:tests/conformance python -m conformance_page`` writes it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx
from conformance_cases import (
    DECLINED,
    EXPANDED,
    EXPANDED_FUSED,
    EXPANDED_LEFT,
    HOST_REFUSES,
    NO_OPERATOR_OF_OURS,
    PLAIN,
    ours,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pages" / "conformance.md"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def by_reason(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    names: dict[str, list[str]] = {}
    for name, why in rows:
        names.setdefault(why, []).append(name)
    return [("; ".join(alike), why) for why, alike in names.items()]


def page() -> str:
    """The page as Markdown."""
    passed = Counter(case.op_type for case in PLAIN if ours(case))
    every = Counter(case.op_type for case in PLAIN)
    expanded = Counter(case.op_type for case in EXPANDED)
    rows = [
        (f"`{op}`", every[op], passed[op], expanded[op], EXPANDED_FUSED.get(op, 0) if expanded[op] else "")
        for op in sorted({*every, *expanded})
    ]
    rows.append(("all", every.total(), passed.total(), expanded.total(), sum(EXPANDED_FUSED.values())))
    left = [(f"`{op}`, {every[op]} cases", why) for op, why in NO_OPERATOR_OF_OURS.items()]
    left += [(f"`{name}`", f"{why} (`{reason}`)") for name, (reason, why) in sorted(DECLINED.items())]
    left += [(f"`{name}`", "ONNX Runtime itself does not load or run it") for name in sorted(HOST_REFUSES)]
    bodies = [(f"`{op}`, {expanded[op]} cases", why) for op, why in sorted(EXPANDED_LEFT.items())]
    return (
        "\n\n".join(
            [
                "# ONNX's node cases",
                f"`onnx.backend.test` of onnx {onnx.__version__} holds these cases on normalisation, quantisation and "
                "activation. Each runs in a session with `claim=all`; *ran* counts the cases that pass and that the "
                "session's assignment record shows as run by the execution provider. IR version and opset are lowered "
                "to what ONNX Runtime 1.31 loads; the limits of Clip are made initialisers, as models have them.",
                "An *expanded* case is the operator's function body. All of them stay right through `optimize`, with "
                "the provider and without; *found* counts those that the rewriting pass fuses back into one operator.",
                table(["operator", "cases", "ran", "expanded", "found"], rows),
                "## What does not run here",
                table(["case", "why"], by_reason(left)),
                "## Expanded cases that are not found",
                "They run as they are, and give the right results.",
                table(["body", "why"], by_reason(bodies)),
                "The tests are in `tests/conformance`.",
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
