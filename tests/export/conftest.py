"""Options of the tests that need PyTorch, transformers, Olive and Ray: `python3 tests/run.py --step export`."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        help="export every module by both exporters at every opset, and a model of more than 2 GB; a quarter hour",
    )


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full"))
