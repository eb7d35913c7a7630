"""Fixtures of all tests."""

from __future__ import annotations

import harness
import pytest


@pytest.fixture(scope="session")
def library() -> str:
    """Path of the native library under test."""
    import normfuse

    return normfuse.get_library_path()


@pytest.fixture
def make_session() -> harness.SessionMaker:
    """``make_session(model, provider="ep" | "custom" | "cpu", **ep_options)``; see harness.create_session."""
    return harness.create_session
