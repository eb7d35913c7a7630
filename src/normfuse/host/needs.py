"""What the options of a session say for the sake of the model that it is created on."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from normfuse.host.config_entries import (
    EXTERNAL_DATA_FOLDER,
    INLINE_LATE,
    LEAVES_QDQ,
    choose_entry,
    disable_optimizer,
    get_entry,
    set_entry,
    switch_optimizer,
    users_entry,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnxruntime

SUMMARY = "_normfuse_summary"
"""Attribute of a session: `Needs.summary` of it."""

#: ONNX Runtime's transformer that makes int8 of float weights between a DequantizeLinear and a QuantizeLinear.
QUANTIZES_WEIGHTS = "WeightBiasQuantization"


class Needs(NamedTuple):
    """What the options of a session on a prepared model have to say, and must not: see `sessions.SessionModel`."""

    keeps_weights: bool
    leaves_qdq: bool
    inlines_late: bool
    disabled: list[str]
    """Of ONNX Runtime's optimizers, for this model's sake."""
    initializers: list[str]
    """Of the model that was given: options that give one of them are for another model."""
    files: list[str]
    """That hold data of these."""
    folder: str
    """Where files lie that the prepared model has data in; "": it has none."""
    contents: list[list[str]]
    """Files with data of the model that was given: path, what that resolves to, and the content's hash."""
    summary: dict[str, object]
    """For the report of an application's sessions: "plan", a line, and "fused", how many sites of each kind."""
    as_given: bool
    """The session is on the model as it was given: there is nothing to gain in it."""
    made_up_names: bool
    """Whether outputs have names of dimensions that the model that was given does not have."""
    weights: list[tuple[int, int, int]]
    """Those that are read from the model that was given: see `shared_weights.Weights`."""
    whole: str
    """The hash of the prepared model with them; "": it has all of its own."""

    def configure(self, options: onnxruntime.SessionOptions) -> None:
        """Say it; a user's own entries stay."""
        configure(options, keeps_weights=self.keeps_weights, leaves_qdq=self.leaves_qdq)
        choose_entry(options, INLINE_LATE, "1" if self.inlines_late else "0")
        disable_optimizer(options, *self.disabled)


@contextmanager
def data_in(options: onnxruntime.SessionOptions, folder: str | None) -> Iterator[None]:
    """Let the external data of a model that is given as bytes lie there; a user's own folder is back afterwards."""
    users = users_entry(options, EXTERNAL_DATA_FOLDER)
    if folder and users is None:
        choose_entry(options, EXTERNAL_DATA_FOLDER, folder)
    elif folder:
        set_entry(options, EXTERNAL_DATA_FOLDER, folder)
    try:
        yield
    finally:
        if users is not None:
            set_entry(options, EXTERNAL_DATA_FOLDER, users)


def configure(options: onnxruntime.SessionOptions, *, keeps_weights: bool, leaves_qdq: bool) -> None:
    """Say what ONNX Runtime is to leave; what an earlier session on these options needed is taken back."""
    switch_optimizer(options, QUANTIZES_WEIGHTS, off=keeps_weights)
    if leaves_qdq or get_entry(options, LEAVES_QDQ) is not None:
        choose_entry(options, LEAVES_QDQ, "1" if leaves_qdq else "0")
