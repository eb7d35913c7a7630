"""NORMFUSE_ISA chooses the instruction set. ``python3 tests/run.py --step isas`` runs the tests on each."""

from __future__ import annotations

import instruction_sets
import pytest

SELECTED = """
import normfuse
print({device.ep_metadata["instruction_set"] for device in normfuse.register()})
"""
ANOTHER_ARCHITECTURE = "neon" if "avx2" in instruction_sets.OF_ARCHITECTURE else "avx2"


@instruction_sets.each(*instruction_sets.OF_ARCHITECTURE)
def test_the_variable_chooses_the_instruction_set(isa: str) -> None:
    done = instruction_sets.python("-c", SELECTED, isa=isa)
    assert done.stdout.strip() == repr({isa}), done.stderr


@pytest.mark.parametrize("isa", ["sse9", "", ANOTHER_ARCHITECTURE])
def test_an_unknown_instruction_set_is_an_error_that_names_it(isa: str) -> None:
    done = instruction_sets.python("-c", SELECTED, isa=isa)
    if isa == "":  # an empty variable is as good as none
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        assert isa in done.stderr
        assert "NORMFUSE_ISA" in done.stderr
