"""Fixtures and options of all tests."""

from __future__ import annotations

import harness
import hypothesis
import pytest

# "--hypothesis-profile=thorough" takes about an hour.
hypothesis.settings.register_profile("quick", max_examples=150, deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.register_profile("thorough", max_examples=20_000, deadline=None, print_blob=True)
# For the instruction sets that are not the machine's best.
hypothesis.settings.register_profile("short", hypothesis.settings.get_profile("quick"), max_examples=70)
hypothesis.settings.load_profile("quick")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_isa: is run again under each instruction set that the machine has")


@pytest.fixture(scope="session")
def library() -> str:
    """Path of the native library under test."""
    import normfuse

    return normfuse.get_library_path()


@pytest.fixture
def make_session() -> harness.SessionMaker:
    """``make_session(model, provider="ep" | "custom" | "cpu", **ep_options)``; see harness.create_session."""
    return harness.create_session
