"""Cases that are alike: one test that goes through them all.

An item of pytest costs a millisecond or two, which is more than many a case does; so where cases
are many and differ in their figures alone, they share an item.
"""

import functools
import inspect

import pytest


def for_each(names, cases, ids=None):
    """Call a test once for every case, in place of an item for each, as `parametrize` has them.

    Parameters
    ----------
    names : str or tuple of str
        The argument or arguments that a case gives.
    cases, ids : iterable
        The cases; how a failure names them, or a function that says so. By themselves unless told.

    A case that skips is passed over, and the test skips if all of them do. The decorator may stand
    above another of its kind (all pairs are called), above Hypothesis' ``given``, and with fixtures
    that cases may share.
    """
    several = not isinstance(names, str)
    cases = list(cases)
    labels = [
        str(label)
        for label in (cases if ids is None else map(ids, cases) if callable(ids) else ids)
    ]

    def decorate(test):
        @functools.wraps(test)
        def all_of_them(**fixtures):
            skipped = []
            for case, label in zip(cases, labels, strict=True):
                arguments = dict(zip(names, case, strict=True)) if several else {names: case}
                try:
                    test(**fixtures, **arguments)
                except pytest.skip.Exception as reason:
                    skipped.append(reason)
                except BaseException as error:
                    error.add_note(f"{', '.join(names) if several else names}: {label}")
                    raise
            if len(skipped) == len(cases):
                raise skipped[0] if skipped else AssertionError("no case is looked at")

        signature = inspect.signature(test)
        given = set(names) if several else {names}
        left = [p for name, p in signature.parameters.items() if name not in given]
        assert len(left) == len(signature.parameters) - len(given)
        all_of_them.__signature__ = signature.replace(parameters=left)
        return all_of_them

    return decorate
