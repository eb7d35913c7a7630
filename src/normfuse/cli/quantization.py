"""What the commands print of a model's quantisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normfuse.cli.console import and_more, console, number, print_table, say, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from normfuse.inspection.quantization import Product, Quantization


def print_quantization(found: Quantization | None) -> None:
    """Print the kind of quantisation, what it costs here and what would be faster; nothing of a float model."""
    if found is None:
        return
    say(f"Quantised: {found.summary}.")
    if found.not_asked:
        say(f"ONNX Runtime could not be asked about it: {found.not_asked}")
        return
    _print_products("Its products in ONNX Runtime here (time: of a float32 product)", found.products)
    for sentence in found.advice:
        say(sentence)
    if found.moved is not None:
        console.print(
            f"On an input made from the model's signature outputs are off by {found.moved:.2g} here.",
            soft_wrap=True,
        )
    _print_products("Its products in normfuse.InferenceSession", found.in_session)
    if found.pairs:
        total = sum(len(group.nodes) for group in found.pairs)
        console.print(f"\nWhat normfuse.InferenceSession makes of {total} QuantizeLinear and DequantizeLinear:")
    for group in found.pairs:
        say(f"    {group.becomes}: {group.message}: {group.nodes[0]}{and_more(group.nodes)}")


def _print_products(title: str, products: Iterable[Product]) -> None:
    rows = table(title, "operator", "multiplies", "products", "time", numeric=2, wraps="")
    for product in products:
        cost = "" if product.cost is None else number(product.cost)
        rows.add_row(product.operator, product.types, str(product.count), cost)
    if rows.row_count:
        print_table(rows)
