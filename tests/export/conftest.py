"""Options of the tests that need PyTorch, transformers, Olive and Ray: `python3 tests/run.py --step export`."""

from pathlib import Path

import pytest

NOT_LEAN = {"test_olive.py", "test_pages.py", "test_ray.py"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--lean",
        action="store_true",
        help="PyTorch, transformers, quantisation and the report page only: without Olive and Ray, some two minutes",
    )
    parser.addoption(
        "--full",
        action="store_true",
        help="export every module by both exporters at every opset, and a model of more than 2 GB; a quarter hour",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that are not read: None leaves the decision to pytest."""
    return True if config.getoption("--lean") and collection_path.name in NOT_LEAN else None


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--full"))
