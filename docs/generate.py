"""What the site has besides the folder of pages (a hook of mkdocs).

Reference pages are made from the tables and the rules themselves each time; files of the repository that are read there
too, such as CONTRIBUTING.md and the decisions, are taken in as they are, with their links turned into the site's.
"""

import dataclasses
import html
import inspect
import posixpath
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.main import get_command

import normfuse
from normfuse import spec
from normfuse.cli import app
from normfuse.folders import optimize_folder
from normfuse.graph_rewrites import rules
from normfuse.inspection.lowering import lower
from normfuse.measuring.benchmark import benchmark
from normfuse.optimization.checking import check


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *parts])


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


PROGRAM = "Dequantize scale=x_scale; Add residual; Normalize axes=-1 epsilon=1e-05; Mul gamma; Add beta; Gelu"


def operators() -> str:
    parts = [
        "# Operators",
        f"Domain `{spec.OPERATOR_DOMAIN}`, version {spec.OPSET_VERSION}. A node's op type is the operator's name; a "
        "call of a model-local function has the name followed by `_` and any suffix.",
        table(
            ["operator", "computes", "outputs"],
            [(code(each.name), each.summary, ", ".join(map(code, each.outputs))) for each in spec.OPERATORS.values()],
        ),
        "Outputs are positional, `''` where absent. Attributes:",
        table(["attribute", "type", "meaning"], [(code(a.name), a.type, a.doc) for a in spec.ATTRIBUTES.values()]),
        *programs(),
    ]
    for operator in spec.OPERATORS.values():
        edges = [(each.name, each.doc) for each in spec.EDGES.values() if operator.name in each.operators]
        parts += [f"## Edges of {operator.name}", table(["edge case", "result"], edges)]
    return "\n\n".join(parts)


def programs() -> list[str]:
    labels = ", ".join(spec.labels_of(spec.read_program(PROGRAM)))
    steps = [
        (
            code(f"{each.name} operand" if each.has_operand else each.name),
            each.place,
            ", ".join(map(code, each.arguments)) + stored(each.name),
            each.since,
            each.doc,
        )
        for each in spec.STEPS.values()
    ]
    arguments = [
        (code(each.name), values(each), default(each.default), each.since, each.doc) for each in spec.ARGUMENTS.values()
    ]
    return [
        "## Programs",
        f"The attribute `steps` says what the node computes, step by step; these are the inputs X, {labels}:",
        f"```text\n{PROGRAM}\n```",
        "Steps are separated by semicolons. A step is its name, the operand if it has one, and arguments as "
        "`key=value`, separated by blanks. Operands, and arguments that are tensors, are labels of letters, digits and "
        f"underscores: the first one is input 1 of the node, the next one input 2, and so on, at most "
        f"{spec.MOST_TENSORS}. Each label stands once, and each input has one. Numbers are written as `1`, `-0.5`, "
        "`1e-05`, `inf`, `-inf` or `nan`.",
        "Places, in this order: first, before, core, behind, last; `beside` is before or behind. First, core and last "
        "stand at most once. `FusedNormalization` has a core, the other operators have none: their steps are behind. "
        "An [activation](activations.md) is a step behind: its arguments are its parameters, its operand is its slope.",
        table(["step", "place", "arguments", "since", "meaning"], steps),
        "Arguments:",
        table(["argument", "type", "default", "since", "meaning"], arguments),
        "Since: the version of the specification that it came with. A node has as `spec_version` the largest of its "
        f"steps and arguments; this library knows versions up to {spec.SPEC_VERSION}.",
    ]


def stored(step: str) -> str:
    """The element types that a step can store."""
    names = spec.types_stored_by(step)
    return f" ({', '.join(map(code, names))})" if names else ""


def values(each: spec.Argument) -> str:
    """What an argument may be."""
    return ", ".join(map(code, each.values)) or {"ints": "ints, separated by commas", "flag": "`0`, `1`"}.get(
        each.type, each.type
    )


def default(value: object) -> str:
    return "" if value is None or value == () else code(value)


def spelling(each: Any) -> str:
    until = f" to {each.until}" if each.until else ""
    name = f"{each.domain}::{each.op_type}" if each.domain else each.op_type
    return f"`{name}` from {each.since}{until}"


def price(each: spec.Price) -> tuple[str, ...]:
    return tuple(f"{value:g}" for value in (each.ort, each.avx512, each.avx2, each.baseline))


def drawn(each: spec.Activation) -> tuple[str, str]:
    ranges = (f"{name} {one.low:g} to {one.high:g}" for name, one in each.drawn.items())
    return ", ".join(ranges), ", ".join(name for name, one in each.drawn.items() if one.nonzero)


def body(each: spec.Activation) -> str:
    forms = []
    for one in each.bodies:
        when = [f"from {one.since}"] if one.since > 1 else []
        when += ["with the defaults"] if one.defaults else []
        forms.append(f"{code(one.nodes)} {' '.join(when)}".strip())
    return "; ".join(forms) or "the ONNX node"


def normalised(each: spec.Normalization) -> str:
    axes = each.axes
    if axes.in_groups:
        return f"each of `{axes.attribute}` groups of channels"
    if axes.first is None:
        return f"the dimensions `{axes.attribute}`, by default {list(axes.default)}"
    start = f"`{axes.attribute}`, by default {axes.first}," if axes.attribute else str(axes.first)
    if axes.is_single:
        return f"dimension {start.rstrip(',')}"
    return f"all dimensions from {start} on"


def normalizations() -> str:
    rows = []
    for each in spec.NORMALIZATIONS:
        name = f"{each.domain}::{each.op_type}" if each.domain else each.op_type
        place = "under the root" if each.epsilon_on == "variance" else "added to the root"
        by_default = ", by default" if each.epsilon_is_attribute else ""
        epsilon = "none" if each.epsilon is None else f"{each.epsilon:g}{by_default}, {place}"
        versions = f"{each.since} to {each.until}" if each.until else f"from {each.since}"
        mean = "no" if each.method != "standard" or not each.use_mean else "yes"
        ports = [", ".join(map(code, names)) for names in (each.inputs, each.outputs)]
        rows.append((code(name), versions, each.method, normalised(each), epsilon, mean, each.affine_align, *ports))
    header = ["operator", "version", "method", "normalised", "epsilon", "mean", "scale and bias", "inputs", "outputs"]
    return page(
        "Normalisations",
        "The operators that are a normalisation by themselves; the execution provider and the rewriting pass "
        "(without softmax) read them by this table. Inputs and outputs stand by position, under the names that "
        "programs have for them; how scale and bias meet X is the argument `align` of their steps.",
        table(header, rows),
    )


PRICE_COLUMNS = ["ORT", "AVX-512", "AVX2, NEON", "baseline"]


def activations() -> str:
    rows, costs, bodies = [], [], []
    for each in spec.ACTIVATIONS.values():
        parameters = ", ".join(f"{name} = {value:g}" for name, value in each.parameters.items())
        composed = "composed" if each.composed else "not there"
        directml = f"{each.directml.op} ({each.directml.level})" if each.directml else composed
        fused = each.directml.fused if each.directml else ""
        spellings = "; ".join(map(spelling, each.spellings))
        rows.append(
            (code(each.name), code(each.formula), parameters, each.since, spellings, directml, fused or "never")
        )
        costs.append((code(each.name), *price(each.price)))
        bodies.append((code(each.name), *drawn(each), body(each)))
    return page(
        "Activations",
        "They are steps of [programs](operators.md#programs). The last two columns: DirectML's operator with its "
        "feature level, and the level from which DirectML fuses it into a normalisation.",
        table(["name", "formula", "parameters", "since", "ONNX nodes", "DirectML", "fused"], rows),
        "## Tests and portable models",
        "What the self-test and the tests draw parameters from, which of them must not be 0, and what a portable "
        "model's function writes, by opset: calls are ONNX nodes, `*` is a Mul.",
        table(["name", "parameters drawn", "not 0", "function body"], bodies),
        "## Prices",
        "Nanoseconds per element, alone: ONNX Runtime's own kernels, and normfuse's on each instruction set. "
        "[Prices](prices.md) has the other steps, and what measured them.",
        table(["name", *PRICE_COLUMNS], costs),
    )


def prices() -> str:
    steps = [(code(name), each.doc, *price(each)) for name, each in spec.PRICES.items()]
    lists = [(code(name), each.doc, ", ".join(each.names)) for name, each in spec.HOST_OPERATORS.items()]
    calls = [(code(name), each.doc, f"{each.nanoseconds:g}") for name, each in spec.CALLS.items()]
    return page(
        "Prices",
        "What the cost model adds up: it decides what `claim=profitable` takes, and how many threads a call is "
        "worth. `python benchmarks/costs.py` measures them, once for each value of `NORMFUSE_ISA`; these are of an "
        "AMD EPYC (Zen 4), one thread, float32 in the level-2 cache, ONNX Runtime 1.31.1. The ratios decide, and "
        "vary little between machines.",
        "## Steps",
        "Nanoseconds per element: in ONNX Runtime a node of its own, in normfuse what the step adds to the pass. "
        "The [activations](activations.md) have theirs in their own table.",
        table(["step", "", *PRICE_COLUMNS], steps),
        "## Calls",
        "Nanoseconds, independent of the number of elements.",
        table(["what", "", "ns"], calls),
        "## What ONNX Runtime does by itself",
        "Operators beside which a claim would cost more than it gains, or that functions are inlined early for.",
        table(["list", "", "operators"], lists),
    )


def rule(each: type) -> str:
    """A docstring with literal blocks ("Before::") as Markdown."""
    lines = inspect.cleandoc(each.__doc__ or "").splitlines()
    out: list[str] = []
    block: list[str] = []
    for line in [*lines, "end"]:
        if line.startswith("    ") or (block and not line):
            block.append(line)
            continue
        if block:
            out += ["```text", textwrap.dedent("\n".join(block)).strip(), "```"]
            block = []
        out.append(line.removesuffix(":") if line.endswith("::") else line)
    return f"## {each.__name__}\n\n" + "\n".join(out[:-1])


def rewriting_rules() -> str:
    intro = (
        "What the rewriting pass recognises, in the order in which it tries ([why this one](../how-it-works.md"
        "#the-order-of-the-rules)); every sketch stands beside its code."
    )
    return page("Rewriting rules", intro, *map(rule, rules.RULES))


def options() -> str:
    rows = [(code(o.name), o.expected, code(o.default), o.doc) for o in spec.OPTIONS.values()]
    return page(
        "Options of the execution provider",
        "Given to `normfuse.session_options`, or to `add_provider_for_devices` as strings. An unknown option or "
        "value is an error that lists the known ones.",
        table(["option", "value", "default", "meaning"], rows),
        "`NORMFUSE_ISA` (environment) forces an instruction set: `avx512`, `avx2`, `baseline` or `neon`.",
    )


def plain(text: str) -> str:
    """Text in which nothing is a mark of Markdown or HTML."""
    return re.sub(r"([*_`])", r"\\\1", html.escape(text, quote=False))


def commands() -> str:
    """What ``normfuse COMMAND --help`` prints."""
    parts = [
        "# Commands",
        "The command `normfuse`. [Exit codes](../messages.md#exceptions-and-exit-codes) are the same for all.",
    ]
    for name, each in get_command(app).commands.items():
        context = each.context_class(each, info_name=f"normfuse {name}")
        records = [parameter.get_help_record(context) for parameter in each.params]
        examples = each.epilog.partition("Examples:\n")[2]
        parts += [
            f"## {name}",
            plain(inspect.cleandoc(each.help)),
            "\n".join(f"* {code(option)}: {plain(doc)}" for option, doc in records),
            f"```sh\n{textwrap.dedent(examples)}\n```",
        ]
    return "\n\n".join(parts)


def reasons() -> str:
    rows = [(code(r.code), r.text, r.advice) for r in spec.REASONS.values()]
    return page(
        "Reasons",
        "Why a site is left as it is: the closed set that `normfuse inspect`, reports and the claim report use.",
        table(["code", "sentence", "what to do"], rows),
    )


def directml_operators() -> str:
    rows = [
        (
            code(op.name),
            ", ".join(map(str, op.versions)),
            ", ".join(map(code, op.directml)),
            op.level,
            ", ".join(op.types),
            op.note,
        )
        for op in spec.DIRECTML_OPERATORS.values()
    ]
    return page(
        "Operators on DirectML",
        'What runs on the GPU between fused chains with `backend="directml"`, as one graph with them. Without a '
        "DirectML operator it only changes how a tensor is looked at, or is a computation of shapes, on the CPU.",
        table(["operator", "versions", "DirectML operators", "level", "element types", "remark"], rows),
        "## What is assumed",
        "Whether an island pays is reckoned with these numbers: assumed, not measured, since no GPU was at hand.",
        table(["what", "value"], [(doc, f"{value:,g}") for doc, value in spec.DIRECTML_ASSUMPTIONS.items()]),
    )


def markdown(text: str) -> str:
    """Marks of reStructuredText as those of Markdown."""
    return re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text).replace("``", "`")


def docstring(text: str) -> str:
    """A docstring in Google's style: its sections as lists."""
    out: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        indent, words = len(line) - len(line.lstrip()), markdown(line.strip())
        if indent == 0 and re.fullmatch(r"(Args|Returns|Yields|Raises|Attributes):", words):
            out += [f"**{words[:-1]}**", ""]
        elif indent == 4 and (entry := re.match(r"(\w+): (.*)", words)):
            out.append(f"* `{entry[1]}`: {entry[2]}")
        else:
            out.append(f"  {words}" if indent > 4 else words)
    return "\n".join(out)


def signature(name: str, function: Any) -> str:
    """A call with a line for each parameter."""
    call = inspect.signature(function)
    lines, keyword_only = [], False
    for each in call.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not keyword_only:
            lines, keyword_only = [*lines, "*"], True
        stars = "**" if each.kind is each.VAR_KEYWORD else ""
        default = "" if each.default is each.empty else f" = {each.default!r}"
        lines.append(f"{stars}{each.name}: {each.annotation}{default}")
    inside = "".join(f"\n    {line}," for line in lines) + ("\n" if lines else "")
    return f"```python\n{name}({inside}) -> {call.return_annotation}\n```"


def members(each: type) -> str:
    """The fields of a dataclass, and what else it has."""
    fields = [field.name for field in dataclasses.fields(each) if not field.name.startswith("_")]
    more = [name for name, value in vars(each).items() if name[0] != "_" and name not in fields and value.__doc__]
    text = f"Fields: {', '.join(map(code, fields))}."
    return text + (f" Also: {', '.join(map(code, more))}." if more else "")


def python() -> str:
    """Everything public, from the docstrings: functions, then what they give, then errors."""
    public = {name: getattr(normfuse, name) for name in normfuse.__all__ if name != "__version__"}
    modules = {f"{each.__module__}.{each.__name__}": each for each in (benchmark, check, optimize_folder, lower)}
    functions = {name: each for name, each in public.items() if not isinstance(each, type)} | modules
    data = {name: each for name, each in public.items() if dataclasses.is_dataclass(each)}
    parts = ["# Python", "What other code may use of the package `normfuse`; the rest may change without notice."]
    for name, each in functions.items():
        parts += [f"## {name}", signature(each.__name__, each), docstring(each.__doc__ or "")]
    for name, each in data.items():
        parts += [f"## {name}", docstring(each.__doc__ or ""), members(each)]
    for name, each in public.items():
        if name not in functions and name not in data:
            parts += [f"## {name}", docstring(each.__doc__ or "")]
    return "\n\n".join(parts)


PAGES: Mapping[str, Any] = {
    "commands": commands,
    "python": python,
    "operators": operators,
    "activations": activations,
    "normalizations": normalizations,
    "prices": prices,
    "rules": rewriting_rules,
    "options": options,
    "reasons": reasons,
    "directml-operators": directml_operators,
}


ROOT = Path(__file__).resolve().parents[1]
PAGES_FOLDER = "docs/pages"
DECISIONS = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("0*.md"))
#: Page of the site -> the file of the repository that it is.
TAKEN_IN: Mapping[str, str] = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "native-library.md": "ep/README.md",
    "decisions/index.md": "docs/decisions/README.md",
    **{f"decisions/{name}": f"docs/decisions/{name}" for name in DECISIONS},
}
_LINK = re.compile(r"(?<=\]\()([^)#\s]+)")


def site_link(target: str, page: str) -> str:
    """A link as it stands in the repository, as one of the site; what is not on the site stays for mkdocs to refuse."""
    source = TAKEN_IN.get(page, f"{PAGES_FOLDER}/{page}")
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    there = {source: page for page, source in TAKEN_IN.items()}.get(file)
    if there is None and file.startswith(f"{PAGES_FOLDER}/"):
        there = file.removeprefix(f"{PAGES_FOLDER}/")
    return target if "://" in target or there is None else posixpath.relpath(there, posixpath.dirname(page) or ".")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Called by mkdocs first: the version stands below each page, and the decisions in the list of pages."""
    config.copyright = f"normfuse {normfuse.__version__}"
    assert config.nav is not None
    (decisions,) = (entry for section in config.nav for entry in next(iter(section.values())) if "Decisions" in entry)
    decisions["Decisions"] = ["decisions/index.md", *(f"decisions/{name}" for name in DECISIONS)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs once it has read the folder of pages."""
    for name, page in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=page() + "\n"))
    for uri, source in TAKEN_IN.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Called by mkdocs for each page before it is rendered."""
    return _LINK.sub(lambda match: site_link(match[1], page.file.src_uri), markdown)
