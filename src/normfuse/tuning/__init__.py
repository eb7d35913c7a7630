"""Deciding by measuring: which groups of chains the execution provider runs in a model, on this machine."""

from normfuse.tuning.decisions import TUNING_KEY, Decisions, stored_decisions
from normfuse.tuning.report import GroupResult, TuningReport
from normfuse.tuning.tune import TUNE_SECONDS, Tuned, check_tuning, tune_model

__all__ = [
    "TUNE_SECONDS",
    "TUNING_KEY",
    "Decisions",
    "GroupResult",
    "Tuned",
    "TuningReport",
    "check_tuning",
    "stored_decisions",
    "tune_model",
]
