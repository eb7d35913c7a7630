"""The results as Markdown and as a drawing."""

import platform
from html import escape
from pathlib import Path
from typing import Any


def machine() -> str:
    """Processor and number of CPUs; no host name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        count = sum(line.startswith("processor") for line in lines)
    except (OSError, StopIteration):
        return platform.machine()
    return f"{name}, {count} CPUs"


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def error(row: Any) -> str:
    return "" if row is None or row.error is None else f"{row.error:.1e}"


def best_peer(result: Any) -> str:
    """The fastest one that is neither ORT nor normfuse, and how many times our time it takes."""
    others = {k: v for k, v in result.ratios.items() if not k.startswith("ORT") and k not in ("normfuse", "copy")}
    if not others:
        return ""
    name = min(others, key=lambda key: others[key])
    return f"{others[name]:.2f} ({name})"


def markdown(results: list[Any], machine_name: str, versions: dict[str, str]) -> str:
    lines = [f"{machine_name}; " + ", ".join(f"{name} {number}" for name, number in versions.items())]
    for threads in sorted({result.threads for result in results}):
        lines += ["", f"### {threads} thread{'s' if threads > 1 else ''}", ""]
        lines.append(
            "| job | normfuse | GB/s | share of a copy | ORT / normfuse | best other peer / normfuse | ns/element | "
            "error | ORT's error |"
        )
        lines.append("|---|---|---|---|---|---|---|---|---|")
        for result in (r for r in results if r.threads == threads):
            lines += table_rows(result)
    return "\n".join(lines) + "\n"


def ratio_to_ort(result: Any) -> str:
    low, high = result.middle["ORT"]
    return f"{result.ratios['ORT']:.2f} ({low:.2f} to {high:.2f})"


def table_rows(result: Any) -> list[str]:
    ours = result.rows["normfuse"]
    variants = [f"{v:.2f} ({k.partition(', ')[2]})" for k, v in result.ratios.items() if k.startswith("ORT, ")]
    cells = [
        result.job + (f" ({ours.note})" if ours.note else ""),
        duration(ours.seconds),
        f"{result.gigabytes_per_second('normfuse'):.1f}",
        f"{result.share:.2f}",
        "; ".join([ratio_to_ort(result), *variants]),
        best_peer(result),
        f"{ours.seconds * 1e9 / result.elements:.3f}",
        error(ours),
        error(result.rows["ORT"]),
    ]
    return ["| " + " | ".join(cells) + " |"]


# --- the drawing -----------------------------------------------------------------------------------------------------

WIDTH, LEFT, ROW, TOP = 860, 330, 24, 46
LIMIT = 12.0  # longer bars are cut; their figure stands beside them


def bar(result: Any, y: int) -> str:
    ratio = result.ratios["ORT"]
    length = (WIDTH - LEFT - 70) * min(ratio, LIMIT) / LIMIT
    return (
        f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(result.job)}</text>'
        f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{ROW - 8}" rx="2" class="bar"/>'
        f'<text x="{LEFT + length + 6:.1f}" y="{y + 12}">{ratio:.1f}</text>'
    )


def plot(results: list[Any]) -> str:
    """Bars: ORT's time divided by normfuse's, one thread (or the fewest that were measured)."""
    fewest = min(result.threads for result in results)
    shown = [result for result in results if result.threads == fewest]
    height = TOP + ROW * len(shown) + 10
    one = LEFT + (WIDTH - LEFT - 70) / LIMIT
    bars = "\n".join(bar(result, TOP + ROW * index) for index, result in enumerate(shown))
    title = f"Speed relative to ONNX Runtime's CPU execution provider, {fewest} thread{'s' if fewest > 1 else ''}"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">
<style>
text {{ font: 12px sans-serif; fill: #24292f }}
.bar {{ fill: #2f6fba }}
.line {{ stroke: #57606a; stroke-dasharray: 3 3 }}
.title {{ font-size: 14px; font-weight: bold }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} .bar {{ fill: #6cb0ff }} .line {{ stroke: #8b949e }} }}
</style>
<text x="8" y="20" class="title">{title}</text>
<text x="{one:.1f}" y="{TOP - 6}" text-anchor="middle">1 = ONNX Runtime</text>
<line x1="{one:.1f}" y1="{TOP}" x2="{one:.1f}" y2="{height - 8}" class="line"/>
{bars}
</svg>
"""
