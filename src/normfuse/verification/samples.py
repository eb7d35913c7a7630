"""The inputs on which two models are compared, and the original's results for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from normfuse.errors import OptionError, VerificationError
from normfuse.sessions.creation import open_session
from normfuse.verification.budget import Budget, OutOfTime, Outputs, run_all, run_as_fits
from normfuse.verification.comparison import QUANTIZED_TOLERANCE, differences, flatten
from normfuse.verification.inputs import STYLES, TYPICAL_PROFILE, InputMaker, Inputs, Sample, TooLarge, read_inputs
from normfuse.verification.memory import require_memory

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime

_SIZES_TRIED = 3
_ATTEMPTS = 4
"""For each sample: a model may accept some numbers only."""
_SHARE = 0.25
"""Share of the whole time for the runs of the original."""


def reference(
    model: ir.Model,
    name: str,
    inputs: Inputs | None,
    count: int,
    seed: int,
    *,
    sizes: Mapping[str, int] | None = None,
    typical: bool = False,
    budget: Budget | None = None,
    tell: Callable[[str], None] = lambda what: None,
) -> tuple[list[Sample], Outputs]:
    """Return inputs, made or a user's, and the model's results for them without any graph optimisation.

    Args:
        model: The model.
        name: What it is called in messages.
        inputs: The user's inputs; None: made, small ones first.
        count: How many to make, if the time lasts.
        seed: Of those made.
        sizes: Symbolic dimension -> size that those made must have.
        typical: Make one of a usual size first, for measuring speed.
        budget: The time that there is; None: no limit.
        tell: Called with what is being done.

    Raises:
        OptionError: The inputs do not fit the model.
        TooLarge: Inputs of every size are too large to be made, or a tensor of the model is.
        VerificationError: No input could be made that the model accepts, or it gives different results each time.
        OutOfTime: The time was over before the first result.
    """
    budget = budget or Budget()
    require_memory(model)
    session = open_session(model, name, level="disable")
    maker = InputMaker(model, sizes)
    if inputs is not None:
        fed = [maker.check(sample, label) for label, sample in read_inputs(inputs)]
        if not fed:
            raise OptionError("inputs is empty; give at least one sample, or None to have them made.")
        expected = run_as_fits(session, fed, budget, share=_SHARE, tell=tell, label="the original")
        fed = fed[: len(expected)]
    else:
        fed, expected = _Made(session, maker, budget, tell).samples(
            name, count, seed, TYPICAL_PROFILE if typical else 0
        )
    again = run_all(session, fed[:1], budget)
    if any(d.error > QUANTIZED_TOLERANCE for d in differences(expected[:1], again, quantized=False)):
        raise VerificationError(
            f"{name} does not give the same result twice on the same inputs (does it draw random numbers?), so it "
            "cannot be verified; optimise it without verification and compare by other means."
        )
    return fed, expected


class _Made:
    """Makes samples that a model accepts, as many as there is time for."""

    def __init__(
        self, session: onnxruntime.InferenceSession, maker: InputMaker, budget: Budget, tell: Callable[[str], None]
    ) -> None:
        self._session = session
        self._maker = maker
        self._budget = budget
        self._tell = tell
        self._fed: list[Sample] = []
        self._expected: Outputs = []

    def samples(self, name: str, count: int, seed: int, first: int) -> tuple[list[Sample], Outputs]:
        try:
            profiles = self._profiles(name, count, seed, first)
            for index in range(len(self._fed), _ATTEMPTS * count):
                if len(self._fed) == count:
                    break
                self._add_if_accepted(profiles[index % len(profiles)], seed + index)
        except OutOfTime:
            if not self._fed:
                raise
        return self._fed, self._expected

    def _add_if_accepted(self, profile: int, seed: int) -> None:
        """Of sizes that the model accepts it may refuse numbers: an index that is out of bounds."""
        try:
            self._add(profile, seed)
        except OutOfTime:
            raise
        except VerificationError:
            return

    def _profiles(self, name: str, count: int, seed: int, first: int) -> list[int]:
        """Make a sample at each of the first few choices of sizes that the model accepts, beginning with one."""
        profiles: list[int] = []
        errors: list[VerificationError] = []
        for profile in sorted(range(self._maker.profile_count), key=lambda profile: profile != first):
            if len(profiles) == min(_SIZES_TRIED, count):
                break
            try:
                self._add(profile, seed)
            except OutOfTime:
                raise
            except VerificationError as error:
                errors.append(error)
            else:
                profiles.append(profile)
        if not profiles and all(isinstance(error, TooLarge) for error in errors):
            raise errors[0]
        if not profiles:
            raise VerificationError(
                f"{name} accepts none of the inputs that were made from its signature; give real ones in an .npz file "
                f"(--inputs). {errors[-1]}"
            )
        return profiles

    def _add(self, profile: int, seed: int) -> None:
        self._tell(f"verifying: the original, sample {len(self._fed) + 1}")
        style = STYLES[len(self._fed) % len(STYLES)]
        sample = self._maker.make(profile, seed, style)
        share = _SHARE if self._fed else 1.0
        results = run_all(self._session, [sample], self._budget, share=share)
        if style != "random" and not all(map(_is_finite, results)):  # divided by the deviation of equal numbers
            sample = self._maker.make(profile, seed)
            results = run_all(self._session, [sample], self._budget, share=share)
        self._expected += results
        self._fed.append(sample)


def _is_finite(results: Mapping[str, Any]) -> bool:
    arrays = (np.asarray(array) for name, value in results.items() for _, array in flatten(name, value))
    return all(bool(np.isfinite(array).all()) for array in arrays if array.dtype.kind == "f")
