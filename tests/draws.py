"""Settings of Hypothesis for tests that draw fewer examples by default than with `--long`."""

from hypothesis import settings

FEW, ALL = 6, 10
"""Examples of a test that names no number: by default, and with `--long`."""


def draws(few, all_of_them, **others):
    """Draw `few` examples by default; all of them with `--long` and in thorough runs.

    The options are read before test modules are imported, so the profile is the one that holds.
    """
    number = few if settings.default.max_examples == FEW else all_of_them
    return settings(max_examples=number, **others)
