"""``normfuse inspect``: every site of a model, and what would become of it."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from normfuse.cli import options
from normfuse.cli.console import and_more, console, print_json, print_table, progress, say, say_of, table
from normfuse.cli.quantization import print_quantization
from normfuse.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from normfuse.graph_rewrites.engine.sites import Site
    from normfuse.inspection.claims import Claims, GivenBack
    from normfuse.inspection.lowering import LoweredSite, Lowering, OperatorOnCpu


class _Backend(StrEnum):
    DIRECTML = "directml"


def inspect_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX model.")],
    allow_requantization_removal: options.Requantization = False,
    everything: Annotated[bool, typer.Option("--all", help="Also list sites with no neighbour to fuse with.")] = False,
    backend: Annotated[
        _Backend | None,
        typer.Option(
            help="directml: show the DirectML operators of each site, or why it stays on the CPU. Needs no GPU."
        ),
    ] = None,
    directml_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="DirectML's feature level, such as 6_2. [6_4]")
    ] = None,
    extract: Annotated[
        str | None,
        typer.Option(metavar="SITE", help="Write this site as a model of its own, with its inputs as .npz."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="The file that --extract writes. [site.onnx]")
    ] = None,
    inputs: options.Inputs = None,
    as_json: options.Json = False,
) -> None:
    """List every normalisation, activation and quantisation site, what it would become, or why it is left.

    Of a quantised model: to what, which of its products ONNX Runtime runs in integers on this machine and at which
    cost, what would be faster, and what becomes of each QuantizeLinear and DequantizeLinear in
    normfuse.InferenceSession.

    With --extract one site is written as a model of its own, with the inputs that it has when the whole model runs on
    --inputs, or on random inputs made from the model's signature.
    """
    if extract is not None:
        _extract(model, extract, output or Path("site.onnx"), inputs)
        return
    if output is not None or inputs:
        raise OptionError("--output and --inputs are for --extract; name the site to extract as well.")
    if backend is not None:
        _inspect_directml(model, directml_level, allow_requantization_removal, everything, as_json)
        return
    if directml_level is not None:
        raise OptionError("--directml-level is for --backend directml; give that as well.")
    _inspect_sites(model, allow_requantization_removal, everything, as_json)


def _inspect_sites(model: Path, allow_requantization_removal: bool, everything: bool, as_json: bool) -> None:
    from normfuse.files.model_files import load_model
    from normfuse.inspection.quantization import quantization_of
    from normfuse.optimization.optimize import inspect_with_claims, nothing_to_gain
    from normfuse.sessions.session_model import plan_of
    from normfuse.verification.exact_sums import moved_by_saturation

    with progress() as tell:
        tell("looking for sites", 0, 0)
        source = load_model(model)
        sites, claims = inspect_with_claims(source, allow_requantization_removal=allow_requantization_removal)
        quantization = quantization_of(
            source, with_pairs=True, allow_requantization_removal=allow_requantization_removal
        )
        plan = str(plan_of(source))
        if quantization is not None and quantization.saturating:
            tell("running it with exact sums of integers", 0, 0)
            quantization = dataclasses.replace(quantization, moved=moved_by_saturation(source))
    if as_json:
        data = {"schema_version": 1, "model": str(model), "sites": [dataclasses.asdict(site) for site in sites]}
        quantized = None if quantization is None else quantization.to_dict()
        print_json(data | {"claims": claims.to_dict(), "session_plan": plan, "quantization": quantized})
        return
    _print_fused(model.name, sites)
    for site in sites:
        if site.fused_into is None and (everything or not nothing_to_gain(site)):
            say_of([site], f" ({site.description}) is not fused: {_reason(site)}", _place(site))
    print_site_counts(sites)
    print_claims(claims)
    print_quantization(quantization)
    say(f"normfuse.InferenceSession: {plan}")
    if not everything and any(nothing_to_gain(site) for site in sites):
        console.print("--all also lists sites with no neighbour to fuse with.")


def _extract(model: Path, name: str, output: Path, inputs: list[Path] | None) -> None:
    from normfuse.files.model_files import check_target
    from normfuse.optimization.extraction import extract_site

    check_target(output, never_path=model)
    with progress() as tell:
        tell("extracting", 0, 0)
        site = extract_site(model, name, inputs=options.sample_files(inputs))
        saved = site.save(output)
    say(f"{output}: {' -> '.join(site.nodes)}")
    for value, array in site.inputs.items():
        say(f"    reads {value}: {array.dtype}{list(array.shape)}")
    for value in site.outputs:
        say(f"    gives {value}")
    say(
        f"{saved} holds the inputs that it has in the whole model. Next:\n"
        f"normfuse optimize {output} -o {output.with_suffix('.fused.onnx')} --inputs {saved}"
    )


def _print_fused(name: str, sites: Sequence[Site]) -> None:
    """Print each site that can be fused, under what it becomes; names in lines of their own, however long they are."""
    alike: dict[tuple[str, str], list[Site]] = {}
    for site in sites:
        if site.fused_into is not None:
            alike.setdefault((site.description, site.fused_into), []).append(site)
    if not alike:
        say(f"{name} has no site that can be fused.")
    for (description, becomes), group in alike.items():
        count = "1 site" if len(group) == 1 else f"{len(group)} sites"
        console.print(f"[bold]{escape(description)}[/] becomes {becomes}, at {count}:", soft_wrap=True)
        for site in group:
            say(f"    {_place(site)}")
            if site.message:
                say(f"        {site.message}")
    console.print()


def _inspect_directml(
    model: Path, level: str | None, allow_requantization_removal: bool, everything: bool, as_json: bool
) -> None:
    from normfuse.inspection.lowering import DEFAULT_LEVEL, lower

    level = level or DEFAULT_LEVEL
    with progress() as tell:
        tell("lowering to DirectML", 0, 0)
        lowering = lower(model, level, allow_requantization_removal=allow_requantization_removal)
    sites = lowering.sites
    if as_json:
        data = {"schema_version": 1, "model": str(model), "backend": "directml"}
        print_json(data | lowering.to_dict())
        return
    shown = [site for site in sites if everything or site.description not in ("QuantizeLinear", "DequantizeLinear")]
    _print_lowered(f"Sites of {model.name} on DirectML {level}", shown, one_by_one=everything)
    cpu = sum(site.reason is not None for site in shown)
    hidden = len(sites) - len(shown)
    runs, stay = len(shown) - cpu, "stays" if cpu == 1 else "stay"
    sentence = f"{runs} {'site runs' if runs == 1 else 'sites run'} on DirectML {level}, {cpu} {stay} on the CPU path."
    if hidden:
        sentence += f" Not shown: {hidden} QuantizeLinear and DequantizeLinear nodes alone (--all shows them)."
    console.print(sentence, soft_wrap=True)
    _print_islands(lowering, one_by_one=everything)


def _print_islands(lowering: Lowering, *, one_by_one: bool) -> None:
    """Print the islands, largest first, and the operators that join none; those that are alike once."""
    console.print("\nIslands, each one graph on the GPU", style="bold")
    if not lowering.islands:
        console.print("There are none.")
    for island in sorted(lowering.islands, key=lambda each: -len(each.nodes)):
        size = "1 node" if len(island.nodes) == 1 else f"{len(island.nodes)} nodes"
        chains = "1 chain" if island.chains == 1 else f"{island.chains} chains"
        where = f"{island.nodes[0]} to {island.nodes[-1]}" if len(island.nodes) > 1 else island.nodes[0]
        text = f"    {size}, {chains} among them: {where}" if island.chains else f"    {size}: {where}"
        if island.reason is not None:
            text += f"; stays on the CPU: {island.message.rstrip('.')}. {island.advice}"
        say(text)
    alike: dict[object, list[OperatorOnCpu]] = {}
    for operator in lowering.on_cpu:
        kind = operator.name if one_by_one else (operator.op_type, operator.message.partition(": ")[2])
        alike.setdefault(kind, []).append(operator)
    if alike:
        console.print("\nOperators that join no island", style="bold")
    for group in alike.values():
        why = group[0].message.partition(": ")[2]
        say(f"    {group[0].name}{and_more(group)} ({group[0].op_type}): {why}")


def _print_lowered(title: str, sites: Sequence[LoweredSite], *, one_by_one: bool) -> None:
    """Print the operators of each site, or why it stays on the CPU path; sites that are alike once."""
    console.print(title, style="bold", markup=False)
    alike: dict[object, list[LoweredSite]] = {}
    for site in sites:
        kind = site.name if one_by_one else (site.description, site.operators, site.message)
        alike.setdefault(kind, []).append(site)
    for group in alike.values():
        first = group[0]
        console.print()
        if first.program is None:
            stays = f"stays on the CPU path: {first.message.rstrip('.')}. {first.advice}"
            say_of(group, f" ({first.description}) {stays}")
            continue
        say_of(group, f" ({first.description})")
        for operator, step in zip(first.operators, first.program["operators"], strict=True):
            say(f"    {operator}: {step['purpose']}")
    console.print()


def print_site_counts(sites: Sequence[Site]) -> None:
    """Print how many sites of each kind can be fused, are left, or stand alone."""
    from normfuse.optimization.optimize import nothing_to_gain

    rows = table("Sites by kind", "kind", "fused", "left", "nothing to fuse with", numeric=3)

    def add(name: str, group: Sequence[Site]) -> None:
        fused = sum(site.fused_into is not None for site in group)
        alone = sum(nothing_to_gain(site) for site in group)
        rows.add_row(name, str(fused), str(len(group) - fused - alone), str(alone))

    for kind in sorted({site.kind for site in sites}):
        add(kind, [site for site in sites if site.kind == kind])
    rows.add_section()
    add("all", sites)
    print_table(rows)


def print_left(sites: Sequence[Site]) -> None:
    """Print why sites were left, the same reason once."""
    left: dict[tuple[str, str | None], list[Site]] = {}
    for site in sites:
        left.setdefault((site.kind, site.reason), []).append(site)
    for (kind, _), group in left.items():
        say_of(group, f" ({kind}) not fused: {_reason(group[0])}", _place(group[0]))


def print_claims(claims: Claims) -> None:
    """Print how many fused sites the execution provider runs on this machine, and why it declines the others."""
    if claims.not_asked:
        say(f"The execution provider could not be asked: {claims.not_asked}")
        return
    total = claims.run + len(claims.given_back)
    if not total:
        return
    rest = " ONNX Runtime's own kernels run the others:" if claims.given_back else ""
    console.print(f"On this machine normfuse runs {claims.run} of {total} fused sites.{rest}", soft_wrap=True)
    alike: dict[tuple[str, str], list[GivenBack]] = {}
    for site in claims.given_back:
        alike.setdefault((site.description, site.message.replace(site.name, "")), []).append(site)
    for (description, _), group in alike.items():
        say_of(group, f" ({description}): " + f"{group[0].message.rstrip('.')}. {group[0].advice}".strip())


def _place(site: Site) -> str:
    return f"{site.name}, {site.graph}" if site.graph else site.name


def _reason(site: Site) -> str:
    if not site.message:
        return ""
    message = site.message[0].upper() + site.message[1:]
    return f"{message.rstrip('.')}. {site.advice}".strip()
