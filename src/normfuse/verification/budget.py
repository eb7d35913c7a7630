"""The time that a verification may take: runs that would go beyond it are stopped."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from normfuse.errors import VerificationError
from normfuse.host.messages import words_of
from normfuse.host.versions import import_host

if TYPE_CHECKING:
    import onnxruntime

    from normfuse.verification.inputs import Sample

Outputs: TypeAlias = list[dict[str, Any]]
"""For each sample: output name -> array."""


class OutOfTime(VerificationError):  # noqa: N818 - what happened, not what is wrong
    """A run was stopped because the time was used up."""


class Budget:
    """A number of seconds from now on.

    Attributes:
        seconds: How many; infinite: no limit.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        """Start the clock."""
        self.seconds = seconds
        self._start = time.monotonic()

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.spent >= self.seconds

    def run(
        self, session: onnxruntime.InferenceSession, names: Sequence[str], sample: Sample, *, share: float = 1.0
    ) -> list[Any]:
        """Run a session once, for as long as this share of the whole time lasts.

        Raises:
            OutOfTime: It did not last.
        """
        left = self.seconds * share - self.spent
        if math.isinf(left):
            return list(session.run(names, sample))
        if left <= 0:
            raise OutOfTime(self.message)
        options = import_host().RunOptions()
        timer = threading.Timer(min(left, threading.TIMEOUT_MAX), _stop, (options,))
        timer.daemon = True
        timer.start()
        try:
            return list(session.run(names, sample, options))
        except Exception as error:
            if options.terminate:
                raise OutOfTime(self.message) from error
            raise
        finally:
            timer.cancel()

    @property
    def message(self) -> str:
        """The message when the time is used up."""
        return f"the {self.seconds:g} s for the verification are over"


def _stop(options: onnxruntime.RunOptions) -> None:
    options.terminate = True


def run_all(
    session: onnxruntime.InferenceSession, fed: Sequence[Sample], budget: Budget | None = None, *, share: float = 1.0
) -> Outputs:
    """Return the outputs for each sample.

    Raises:
        VerificationError: The session refuses a sample.
        OutOfTime: The time was used up before the last one.
    """
    names = [output.name for output in session.get_outputs()]
    budget = budget or Budget()
    results = []
    for sample in fed:
        try:
            results.append(dict(zip(names, budget.run(session, names, sample, share=share), strict=True)))
        except OutOfTime:
            raise
        except Exception as error:  # onnxruntime raises one class of its own for each status code
            raise VerificationError(f"onnxruntime says: {words_of(error).splitlines()[0]}") from error
    return results


def run_as_fits(
    session: onnxruntime.InferenceSession,
    fed: Sequence[Sample],
    budget: Budget,
    *,
    share: float,
    tell: Callable[[str], None],
    label: str,
) -> Outputs:
    """Return the outputs for the first samples: at least one, and as many as this share of the time lasts for.

    Raises:
        VerificationError: The session refuses a sample.
        OutOfTime: Not even the first one was done in the whole time.
    """
    results: Outputs = []
    for number, sample in enumerate(fed, 1):
        tell(f"verifying: {label}, sample {number} of {len(fed)}")
        try:
            results += run_all(session, [sample], budget, share=share if results else 1.0)
        except OutOfTime:
            if not results:
                raise
            break
    return results
