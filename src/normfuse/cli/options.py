"""Options that several commands have."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from normfuse.arguments import MOST_THREADS
from normfuse.errors import OptionError

UNDECIDED_EXIT_CODE = 3

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Threads = Annotated[
    int, typer.Option(min=0, max=MOST_THREADS, metavar="N", help="Intra-op threads; 0: ONNX Runtime's default.")
]
Inputs = Annotated[
    list[Path] | None,
    typer.Option("--inputs", metavar="FILE.npz", help="Inputs by name, one sample per file; may be repeated."),
]
MaxError = Annotated[
    float | None,
    typer.Option(
        "--max-error",
        min=0.0,
        metavar="ERROR",
        help="Largest error allowed. [what rounding to the element types explains]",
    ),
]
VerifySeconds = Annotated[
    float | None,
    typer.Option(
        "--verify-seconds",
        min=0.1,
        metavar="SECONDS",
        help="Time limit of the comparison, which begins with small inputs. [60]",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 3 instead of 0 if the comparison is undecided.")]
RequireFused = Annotated[
    str | None,
    typer.Option(metavar="N|all", help="Fail unless at least N sites are fused, or all that can be."),
]
Requantization = Annotated[
    bool,
    typer.Option(
        "--allow-requantization-removal",
        help="Also fuse where that removes a quantisation inside a chain (changes results by up to one step).",
    ),
]


@dataclasses.dataclass(frozen=True)
class Comparing:
    """How results are compared with the original's."""

    inputs: Inputs = None
    samples: Annotated[
        int | None,
        typer.Option("--samples", min=1, metavar="N", help="Number of inputs made. [4, or 16 for quantised models]"),
    ] = None
    max_error: MaxError = None
    verify_seconds: VerifySeconds = None
    strict: Strict = False

    @property
    def seconds(self) -> float:
        """The time limit."""
        from normfuse.verification import VERIFY_SECONDS

        return self.verify_seconds or VERIFY_SECONDS

    def arguments(self) -> dict[str, Any]:
        """As the functions take them; those of the inputs and the time have other names there."""
        return {"samples": self.samples, "max_error": self.max_error}


def sample_files(inputs: list[Path] | None) -> list[Any] | None:
    """Return the value of --inputs as the functions take it."""
    return list(inputs) if inputs else None


def required_count(text: str | None) -> int | Literal["all"] | None:
    """Return the value of --require-fused."""
    if text is None or text == "all":
        return None if text is None else "all"
    if not text.isdigit():
        raise OptionError(f"--require-fused is '{text}'; it takes a number from 0 on, or all.")
    return int(text)
