"""Fixtures and options of all tests."""

import os
from typing import Any

import harness
import hypothesis
import instruction_sets
import numpy as np
import pytest

# Tests neither use nor fill the user's cache of prepared models; those of the cache have folders of their own.
os.environ["NORMFUSE_CACHE"] = "0"

hypothesis.settings.register_profile("quick", max_examples=30, deadline=None, print_blob=True, derandomize=True)
# For `python3 tests/run.py --step slow`, and for "--step chains": other ones in each run.
hypothesis.settings.register_profile("long", hypothesis.settings.get_profile("quick"), max_examples=150)
hypothesis.settings.register_profile("thorough", max_examples=3_500, deadline=None, print_blob=True)
hypothesis.settings.load_profile("quick")


def pytest_report_header() -> str:
    missing = [isa for isa in instruction_sets.OF_ARCHITECTURE if isa not in instruction_sets.AVAILABLE]
    lacking = f"; this processor lacks {', '.join(missing)}" if missing else ""
    return f"normfuse: on {instruction_sets.IN_USE}{lacking}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By group, and by function where there is none: all parameters of a test go to one worker.

    Behind each test the scheduler looks at all units: seven seconds where each test is one.
    """
    from xdist.scheduler import LoadGroupScheduling

    class Scheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("[")[0]

    return Scheduling(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.fixture(autouse=True)
def same_numbers_in_any_order(request: pytest.FixtureRequest) -> None:
    """A module's RNG begins anew in each test: what it draws does not depend on the tests before it."""
    rng = getattr(request.module, "RNG", None)
    if isinstance(rng, np.random.Generator):
        rng.bit_generator.state = _FIRST_STATES.setdefault(request.module.__name__, rng.bit_generator.state)


_FIRST_STATES: dict[str, Any] = {}


@pytest.fixture(scope="session")
def library() -> str:
    """Path of the native library under test."""
    import normfuse

    return normfuse.get_library_path()


@pytest.fixture
def make_session() -> harness.SessionMaker:
    """``make_session(model, provider="ep" | "custom" | "cpu", **ep_options)``; see harness.create_session."""
    return harness.create_session
