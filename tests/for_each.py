"""Cases that are alike: one test that goes through them all.

An item of pytest costs a millisecond or two, which is more than many a case does; so where cases
are many and differ in their figures alone, they share an item.
"""

import functools
import inspect

import pytest

PARAM = type(pytest.param())


def for_each(names, cases, ids=None):
    """Call a test once for every case, in place of an item for each, as `parametrize` has them.

    Parameters
    ----------
    names : str or tuple of str
        The argument or arguments that a case gives.
    cases, ids : iterable
        The cases, or `pytest.param` of each; how a failure names them, or a function that says so.

    A case that skips is passed over, and the test skips if all of them do. The decorator may stand
    above another of its kind (all pairs are called), above Hypothesis' ``given``, and with fixtures
    that cases may share.
    """
    names = (names,) if isinstance(names, str) else tuple(names)
    found = list(called(names, cases, ids))

    def decorate(test):
        @functools.wraps(test)
        def all_of_them(**fixtures):
            skipped = []
            for label, values in found:
                try:
                    test(**fixtures, **dict(zip(names, values, strict=True)))
                except pytest.skip.Exception as reason:
                    skipped.append(reason)
                except BaseException as error:
                    error.add_note(f"{', '.join(names)}: {label}")
                    raise
            if len(skipped) == len(found):
                raise skipped[0] if skipped else AssertionError("no case is looked at")

        signature = inspect.signature(test)
        left = [p for name, p in signature.parameters.items() if name not in names]
        assert len(left) == len(signature.parameters) - len(names)
        all_of_them.__signature__ = signature.replace(parameters=left)
        return all_of_them

    return decorate


def for_some(names, cases, every, ids=None, first=0):
    """Call a test for every n-th case, and for the others in an item that is marked `long`.

    Parameters
    ----------
    names, cases, ids
        As of `for_each`.
    every : int
        1 in so many cases is in the default tier.
    first : int
        Number of the first of these, so that tests of one table take other cases each.
    """
    cases = list(cases)
    labels = list(map(ids, cases)) if callable(ids) else list(cases if ids is None else ids)

    def decorate(test):
        numbers = range(len(cases))
        groups = [
            for_each(names, [cases[n] for n in group], [labels[n] for n in group])(test)
            for group in (
                [n for n in numbers if n % every == first],
                [n for n in numbers if n % every != first],
            )
        ]
        others = pytest.param(groups[1], id="others", marks=pytest.mark.long)

        @pytest.mark.parametrize("group", [pytest.param(groups[0], id="some"), others])
        @functools.wraps(groups[0])
        def one_group(group, **fixtures):
            group(**fixtures)

        signature = inspect.signature(groups[0])
        group = inspect.Parameter("group", inspect.Parameter.KEYWORD_ONLY)
        one_group.__signature__ = signature.replace(
            parameters=[*signature.parameters.values(), group]
        )
        return one_group

    return decorate


def one_in(every, cases, first=0):
    """Cases for `parametrize`, each an item: 1 in so many in the default tier, the others long."""
    return [
        case if number % every == first else _long(case if isinstance(case, tuple) else (case,))
        for number, case in enumerate(cases)
    ]


def _long(values):
    return pytest.param(*values, marks=pytest.mark.long)


def called(names, cases, ids):
    """Every case as what it is called and the values of its arguments."""
    cases = list(cases)
    if callable(ids):
        ids = map(ids, cases)
    for case, label in zip(cases, cases if ids is None else ids, strict=True):
        if isinstance(case, PARAM):
            yield case.id, case.values
        else:
            yield str(label), case if len(names) > 1 else (case,)
