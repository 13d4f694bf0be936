"""Probes set flags of the whole process, which other tests run in."""

import sys

import pytest


@pytest.fixture(autouse=True)
def subnormal_numbers_again():
    """A probe lets the CPU flush them to zero, which Hypothesis refuses."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
