"""The installed native library: what it exports, what it needs, how big it is."""

from pathlib import Path

from binaries import ENTRY_POINTS, GLIBC, LARGEST, read_elf


def test_exports_the_entry_points_only(library: str) -> None:
    assert read_elf(Path(library)).exports == ENTRY_POINTS


def test_needs_the_c_library_only(library: str) -> None:
    assert read_elf(Path(library)).needs <= GLIBC


def test_is_small(library: str) -> None:
    assert Path(library).stat().st_size < LARGEST
