"""The settings that a prepared model needs in the options of its session."""

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

#: ONNX Runtime's transformer that quantises float weights between a DequantizeLinear and a QuantizeLinear to int8.
QUANTIZES_WEIGHTS = "WeightBiasQuantization"


class Needs(NamedTuple):
    """What a session on a prepared model needs from its options and files: see `sessions.SessionModel`."""

    keeps_weights: bool
    leaves_qdq: bool
    inlines_late: bool
    disabled: list[str]
    """Optimizers of ONNX Runtime that are disabled for this model."""
    initializers: list[str]
    """Names of the original model's initializers: options that replace one of them make this entry unusable."""
    files: list[str]
    """Files with the data of these."""
    folder: str
    """The folder of the prepared model's external data; "": it has none."""
    contents: list[list[str]]
    """Files with data of the original model: path, resolved path, and the content's hash."""
    summary: dict[str, object]
    """For the report of an application's sessions: "plan", a line, and "fused", how many sites of each kind."""
    as_given: bool
    """The session runs the original model: there is nothing to gain."""
    made_up_names: bool
    """Whether outputs have names of dimensions that the original model does not have."""
    weights: list[tuple[int, int, int]]
    """Weights that are read from the original model: see `shared_weights.Weights`."""
    whole: str
    """The hash of the prepared model with these weights; "": the entry has all weights."""

    def configure(self, options: onnxruntime.SessionOptions) -> None:
        """Set these options; a user's own entries are not changed."""
        configure(options, keeps_weights=self.keeps_weights, leaves_qdq=self.leaves_qdq)
        choose_entry(options, INLINE_LATE, "1" if self.inlines_late else "0")
        disable_optimizer(options, *self.disabled)


@contextmanager
def data_in(options: onnxruntime.SessionOptions, folder: str | None) -> Iterator[None]:
    """Set the folder of external data for a model in bytes; afterwards a user's own folder is set again."""
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
    """Set what ONNX Runtime must not change; settings that an earlier session needed are reset."""
    switch_optimizer(options, QUANTIZES_WEIGHTS, off=keeps_weights)
    if leaves_qdq or get_entry(options, LEAVES_QDQ) is not None:
        choose_entry(options, LEAVES_QDQ, "1" if leaves_qdq else "0")
