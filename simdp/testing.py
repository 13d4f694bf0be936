"""Checks for a project's own tests: data parallelism of its training functions and scripts.

Keep a function or a script in continuous integration with one test:

    from simdp.testing import assert_data_parallel

    def test_training_is_data_parallel():
        assert_data_parallel("train.py", ranks=(1, 4), arguments=["--epochs", "2"])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simdp.errors import unknown_name
from simdp.results.audit import CAUSES, AuditReport

__all__ = ["assert_data_parallel"]


def assert_data_parallel(
    train: Callable[[], Any] | str | Path,
    ranks: Sequence[int] = (1, 4),
    exact: bool = False,
    allow: Sequence[str] = (),
    *,
    arguments: Sequence[str] = (),
    **options: Any,
) -> AuditReport:
    """Assert that training on several ranks computes what one device computes.

    Parameters
    ----------
    train : callable or path
        Function without arguments that trains on the rank that calls it, and initialises the
        process group as a script does; or the path of a script.
    ranks : sequence of int
        Numbers of ranks; runs on more are compared with the one on the fewest.
    exact : bool
        Whether to compute in float64, where rounding hides nothing.
    allow : sequence of str
        Causes that are intended, as of ``audit --allow``.
    arguments : sequence of str
        Arguments of a script.
    **options
        ``max_steps``; of a script also ``batch_arg``, ``save_arg``, ``resume_arg``, ``at_step`` and
        ``resume_ranks``, as of `simdp.torch.audit.ScriptAudit`.

    Returns
    -------
    AuditReport
        What differs, all of it legitimate or allowed.

    Raises
    ------
    AssertionError
        If a difference is neither legitimate nor allowed; its text is the table of ``audit``.
    ScenarioError
        If the training itself fails, or options do not fit.
    ValueError
        If a name in ``allow`` is no cause.
    TypeError
        If a function gets options of a script.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    from simdp.reports import audit_table

    for cause in allow:
        if cause not in CAUSES:
            raise ValueError(f"allow: {unknown_name('cause', cause, [*CAUSES])}")
    options |= {"exact": exact, "allow": tuple(allow)}
    if callable(train):
        if arguments:
            options["arguments"] = arguments
        report = _of_function(train, ranks, options)
    else:
        report = _of_script(train, ranks, arguments, options)
    if not report.same:
        raise AssertionError("\n".join(audit_table.lines(report)))
    return report


def _of_function(
    train: Callable[[], Any], ranks: Sequence[int], options: dict[str, Any]
) -> AuditReport:
    from simdp.torch.audit import audit_function

    of_script = sorted({*options} - {"exact", "allow", "max_steps"})
    if of_script:
        raise TypeError(f"{of_script[0]}: is for scripts, but {train!r} is a function")
    return audit_function(train, ranks, **options)


def _of_script(
    path: str | Path, ranks: Sequence[int], arguments: Sequence[str], options: dict[str, Any]
) -> AuditReport:
    from simdp.torch.audit import ScriptAudit, audit_script

    return audit_script(ScriptAudit(str(path), tuple(arguments), tuple(ranks), **options))
