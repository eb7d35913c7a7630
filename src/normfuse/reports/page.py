"""The report as one page that needs nothing else: no script, no network, style and drawings inside.

Made from the data of the JSON report alone (``normfuse schema report``), by one function a section.
"""

from __future__ import annotations

import importlib.resources
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from normfuse.reports.drawing import draw_chain, draw_nodes
from normfuse.spec import OPERATOR_DOMAIN

Data = Mapping[str, Any]

_NAMES_SHOWN = 500


def html_text(report: Data) -> str:
    """Return the report of :func:`normfuse.optimize` as an HTML page."""
    from normfuse.optimization.optimize import NOTHING_TO_GAIN

    fused = [site for site in report["sites"] if site["fused_into"] is not None]
    others = [site for site in report["sites"] if site["fused_into"] is None]
    left = [site for site in others if site["reason"] not in NOTHING_TO_GAIN]
    at_ease = [site for site in others if site["reason"] in NOTHING_TO_GAIN]
    sections = [
        ("summary", "Summary", _summary(report, len(fused), len(fused) + len(left))),
        ("fused", "What was fused", _fused(fused, report["examples"])),
        ("left", "What was left, and why", _left(left) or "<p>Nothing: every site that could gain is fused.</p>"),
        ("alone", "Nothing to gain", _left(at_ease) or "<p>No other sites.</p>"),
        ("operators", "Operators", _operators(report)),
        ("error", "Error", _error(report["verification"])),
        *_quantization(report["folding"], report["removal"]),
        ("tuning", "Tuning", _tuning(report["tuning"])),
        ("speed", "Speed", _speed(report.get("benchmark"))),
        ("rules", "Rules applied", _rules(report["rules"])),
    ]
    name = escape(Path(report["model"]).name)
    style = importlib.resources.files("normfuse.reports").joinpath("report_style.css").read_text(encoding="utf-8")
    links = "".join(f'<li><a href="#{anchor}">{title}</a></li>' for anchor, title, _ in sections)
    body = "\n".join(
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">\n<h2 id="{anchor}-title">{title}</h2>\n{text}\n'
        "</section>"
        for anchor, title, text in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>normfuse: {name}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header>
<h1>normfuse: {name}</h1>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main id="main">
{body}
</main>
<footer>Written by normfuse {escape(report["normfuse_version"])} for target {escape(report["target"])}.</footer>
</body>
</html>
"""


def _summary(report: Data, fused: int, found: int) -> str:
    verification = report["verification"]
    if verification is None:
        verdict = '<span class="bad">not compared</span>'
    elif verification["passed"]:
        verdict = f'<span class="good">agree</span>, error {_number(verification["error"])}'
    else:
        verdict = f'<span class="bad">{verification["result"]}</span>'
    before, after = sum(report["operators_before"].values()), sum(report["operators_after"].values())
    figures = [
        ("Sites fused", f"{fused} of {found}"),
        ("Operators", f"{before} → {after}"),
        (
            "Size",
            f"{size_text(report['bytes_before'])} → {size_text(report.get('bytes_written', report['bytes_after']))}",
        ),
        ("Results", verdict),
        ("Rewriting", f"{report['rewrite_seconds']:.2f} s"),
    ]
    if "benchmark" in report:
        figures.append(("Speed", f"{max(t['speedup'] for t in report['benchmark']['timings']):.2f} times"))
    claims = report["claims"]
    if claims is not None and not claims["not_asked"]:
        figures.insert(1, ("Run here", f"{claims['run']} of {claims['run'] + len(claims['given_back'])}"))
    cells = "".join(f"<div><dt>{title}</dt><dd>{text}</dd></div>" for title, text in figures)
    files = [f"<p>Original: <code>{escape(report['model'])}</code>"]
    if "output" in report:
        files.append(f"<br>Written: <code>{escape(report['output'])}</code>")
    warnings = "".join(f'<p class="bad" role="note">Warning: {escape(text)}</p>' for text in report["warnings"])
    return f'<dl class="figures">{cells}</dl>{"".join(files)}</p>{warnings}'


def _fused(sites: Sequence[Data], examples: Sequence[Data]) -> str:
    if not sites:
        return "<p>Nothing.</p>"
    kinds: dict[tuple[str, str], list[Data]] = defaultdict(list)
    for site in sites:
        kinds[site["description"], site["fused_into"]].append(site)
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
    rows = [(escape(description), escape(into), len(alike)) for (description, into), alike in ordered]
    parts = [f'<div class="kinds">{_table("Sites of each kind", ("chain", "became"), ("sites",), rows)}</div>']
    for (description, into), alike in ordered:
        pictures = [e for e in examples if (e["description"], e["fused_into"]) == (description, into)]
        parts.append(f'<div class="kind"><h3>{escape(description)}</h3>')
        parts += [_before_and_after(example) for example in pictures[:3]]
        parts.append(_names(alike) + "</div>")
    return "\n".join(parts)


def _before_and_after(example: Data) -> str:
    nodes = example["nodes"]
    operators = " → ".join(node["op_type"] for node in nodes)
    before = draw_nodes(nodes, f"Before: {operators}")
    after = draw_chain(
        example["fused_into"],
        example["description"].split(" -> "),
        f"After: one {example['fused_into']} that does {example['description']}",
    )
    count = example["count"]
    words = f"Before: {len(nodes)} node{'s' if len(nodes) > 1 else ''}" + (f", at {count} sites" if count > 1 else "")
    return (
        f'<div class="drawings"><figure>{before}<figcaption>{words}</figcaption></figure>'
        f"<figure>{after}<figcaption>After: 1 node</figcaption></figure></div>"
    )


def _left(sites: Sequence[Data]) -> str:
    reasons: dict[tuple[str, str], list[Data]] = defaultdict(list)
    for site in sites:
        reasons[site["reason"] or "", site["advice"]].append(site)
    parts = []
    for (reason, advice), alike in sorted(reasons.items(), key=lambda item: -len(item[1])):
        first = alike[0]
        parts.append(
            f'<div class="reason"><h3><code>{escape(reason)}</code>: {len(alike)} site{"s" if len(alike) > 1 else ""}'
            f"</h3><p>For example {escape(first['description'])} <code>{escape(first['name'])}</code>: "
            f"{escape(first['message'])}.</p>"
            + (f"<p>What to do: {escape(advice)}</p>" if advice else "")
            + _names(alike, with_messages=True)
            + "</div>"
        )
    return "\n".join(parts)


def _names(sites: Sequence[Data], *, with_messages: bool = False) -> str:
    items = []
    for site in sites[:_NAMES_SHOWN]:
        where = f" in {escape(site['graph'])}" if site["graph"] else ""
        message = f": {escape(site['message'])}" if with_messages else ""
        items.append(f"<li><code>{escape(site['name'])}</code>{where}{message}</li>")
    more = f"<p>and {len(sites) - _NAMES_SHOWN} more</p>" if len(sites) > _NAMES_SHOWN else ""
    words = f"{len(sites)} site{'s' if len(sites) > 1 else ''} by name"
    return f"<details><summary>{words}</summary><ul>{''.join(items)}</ul>{more}</details>"


def by_operator(counts: Mapping[str, int]) -> Counter[str]:
    """Return operator -> number, the functions that stand for one of normfuse's operators counted as that one."""
    result: Counter[str] = Counter()
    for name, count in counts.items():
        result[name.partition("_")[0] if name.startswith(f"{OPERATOR_DOMAIN}::") else name] += count
    return result


def _operators(report: Data) -> str:
    before, after = by_operator(report["operators_before"]), by_operator(report["operators_after"])
    names = sorted({*before, *after}, key=lambda name: (-before.get(name, 0), name))
    changed = [name for name in names if before.get(name, 0) != after.get(name, 0)]
    rows: list[tuple[Any, ...]] = [
        (escape(name), before.get(name, 0), after.get(name, 0), f"{after.get(name, 0) - before.get(name, 0):+d}")
        for name in changed
    ]
    total = sum(before.values()), sum(after.values())
    rows.append(("all operators", *total, f"{total[1] - total[0]:+d}"))
    return _table("Nodes whose number changed, subgraphs included", ("operator",), ("before", "after", "change"), rows)


def _error(verification: Data | None) -> str:
    if verification is None:
        return "<p>The result was not compared with the original.</p>"
    colour = "good" if verification["passed"] else "bad"
    parts = [f'<p class="{colour}">{escape(verification["message"])}</p>']
    for run in verification["runs"]:
        rows = [
            (
                escape(output["name"]),
                escape(output["dtype"]),
                *(_number(output[key]) for key in ("max_abs", "max_rel", "max_ulp", "error", "tolerance")),
                "yes" if output["passed"] else f'<strong class="{colour}">no</strong>',
            )
            for output in run["outputs"]
        ]
        numeric = ("absolute", "relative", "units in the last place", "error", "allowed", "passed")
        parts.append(_table(f"The optimised model {escape(run['name'])}", ("output", "type"), numeric, rows))
    parts += [f"<p>{escape(text)}</p>" for text in verification["warnings"]]
    return "\n".join(parts)


def _quantization(folding: Data | None, removal: Data | None) -> Iterator[tuple[str, str, str]]:
    """Yield the section on quantised weights and activations, where anything was to be done about them."""
    parts = []
    if folding is not None:
        rows = [
            ("dequantised once", folding["folded"]),
            ("tables looked up as integers", folding["tables"]),
            ("left, because ONNX Runtime would quantise them again", folding["left"]),
            ("bytes added", f"{folding['bytes_added']:+,}"),
        ]
        if folding["gain"] is not None:
            rows.append(("speed with them against that without", _ratio(folding["gain"]["median"])))
        rows.append(("in the model that was written", "yes" if folding["written"] else "no"))
        parts.append(_table("Quantised weights", ("what became of them",), ("number",), rows))
    if removal is not None:
        parts += _removal(removal)
    if parts:
        yield "quantisation", "Quantisation", "\n".join(parts)


def _removal(removal: Data) -> Iterator[str]:
    rows = [
        ("removed", removal["removed"]),
        ("of these with a Clip in their place", removal["clipped"]),
        ("kept", len(removal["kept"])),
    ]
    yield _table("Quantised activations", ("what became of them",), ("number",), rows)
    moved = [
        (
            escape(one["name"]),
            *(_number(one[key]) for key in ("max_abs", "relative")),
            "" if one["top1"] is None else f"{float(one['top1']):.0%}",
        )
        for one in removal["differences"]
    ]
    numeric = ("absolute", "relative", "same largest element")
    if moved:
        caption = f"How far that moves the outputs, on {removal['samples']} samples"
        yield _table(caption, ("output",), numeric, moved)
    kept = [(escape(pair["name"]), escape(pair["reason"])) for pair in removal["kept"][:_NAMES_SHOWN]]
    if kept:
        yield _table("Quantisations that stay", ("node", "because"), (), kept)


def _tuning(tuning: Data | None) -> str:
    if tuning is None:
        return "<p>Not tuned: the cost model decides what is run; <code>--tune</code> measures it.</p>"
    groups = [
        (
            escape(group["group"]),
            group["sites"],
            "on" if group["on"] else "off",
            "on" if group["by_cost_model"] else "off",
            "not measured" if group["gain"] is None else _ratio(group["gain"]),
            "" if group["error"] is None else _ratio(group["error"]),
        )
        for group in tuning["groups"]
    ]
    caption = (
        f"Groups of chains on {escape(tuning['isa'])}, ONNX Runtime {escape(tuning['onnxruntime'])}; threads: "
        f"{tuning['threads'] or 'all'}; gain: speed of the model with the group on / with it off"
    )
    names = {
        "off": "rewritten, every group off",
        "cost": "rewritten, by the cost model",
        "on": "rewritten, every group on",
    }
    runs = {names[start]: ratio for start, ratio in tuning["starts"].items()}
    runs |= {"the original once more": tuning["original_again"], f"tuned: {tuning['written']}": tuning["speedup"]}
    rows = [
        (escape(name), _ratio(ratio["median"]), f"{_ratio(ratio['low'])} to {_ratio(ratio['high'])}")
        for name, ratio in runs.items()
    ]
    numeric = ("sites", "decision", "cost model", "gain", "±")
    return (
        _table(caption, ("group",), numeric, groups)
        + "\n"
        + _table("The whole model against the original", ("run",), ("speed", "middle half"), rows)
    )


def _speed(benchmark: Data | None) -> str:
    if benchmark is None:
        return "<p>Not measured; <code>--measure SECONDS</code> adds it.</p>"
    rows = [
        (
            escape(timing["name"]),
            _number(timing["median_ms"]),
            f"{_number(timing['quartiles_ms'][0])} to {_number(timing['quartiles_ms'][1])}",
            f"{timing['speedup']:.2f}",
            _number(timing["error"]),
        )
        for timing in benchmark["timings"]
    ]
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in benchmark["inputs"].items())
    caption = (
        f"{escape(shapes)}; threads: {benchmark['threads'] or 'all'}; ONNX Runtime "
        f"{escape(benchmark['onnxruntime_version'])}; milliseconds of a run; {benchmark['chain_share']:.1%} of the "
        "original's kernel time are spent in what is fused"
    )
    saturation = benchmark["saturation"]
    remark = "" if saturation is None else f"<p>{escape(saturation['message'])}</p>"
    return _table(caption, ("run",), ("median", "middle half", "speed", "error"), rows) + remark


def _rules(rules: Data) -> str:
    rows = [(escape(name), count) for name, count in sorted(rules.items(), key=lambda item: (-item[1], item[0]))]
    return _table("Rewriting rules", ("rule",), ("times",), rows) if rows else "<p>None.</p>"


def _table(caption: str, texts: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table whose first columns are text and whose other ones are numbers; cells are HTML already."""
    head = "".join(f'<th scope="col">{name}</th>' for name in texts)
    head += "".join(f'<th scope="col" class="n">{name}</th>' for name in numbers)
    lines = []
    for first, *rest in rows:
        cells = "".join(
            f'<td class="n">{cell}</td>' if index >= len(texts) - 1 else f"<td>{cell}</td>"
            for index, cell in enumerate(rest)
        )
        lines.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    # Wide tables scroll by themselves on a phone; the focus lets the keyboard do it too.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table><caption>{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _ratio(value: float | str) -> str:
    return f"{float(value):.3f}"


def _number(value: float | str | None) -> str:
    return "" if value is None else f"{float(value):.3g}"


def size_text(count: int) -> str:
    """Return a number of bytes as people read it, in powers of 1000."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
