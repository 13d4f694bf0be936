"""Compute: how a program says that its device is busy, and how it reads the clock."""

from __future__ import annotations

from math import inf, nan
from numbers import Real
from typing import get_args

from simdp.distributed.process import process
from simdp.engine.programs.runtime import Activity
from simdp.errors import ProgramError, unknown_name


def compute(
    seconds: float | None = None,
    flops: float | None = None,
    dtype: str = "float32",
    activity: Activity = "compute",
    name: str = "compute",
) -> None:
    """Keep this rank's device busy; what is under way beside it goes on.

    Parameters
    ----------
    seconds : float, optional
        How long, if nothing slows the rank down [s].
    flops : float, optional
        In its place: the arithmetic of one kernel, at the speed of the cluster's device by its
        roofline, ``(flops + half_work) / (peak efficiency) + launch`` [FLOP].
    dtype : str
        Of the arithmetic, a peak of the device.
    activity : {"compute", "forward", "backward", "update"}
        How pictures show it.
    name : str
        What exactly, for ``trace.json``.

    Raises
    ------
    ProgramError
        If an argument is out of range or there is no such peak.
    """
    asking = process("compute")
    amount = seconds if flops is None else flops
    if (seconds is None) == (flops is None):
        raise ProgramError("compute: give seconds or flops, one of the two.")
    length = _number(amount)
    if not 0 <= length < inf:
        what = "seconds" if flops is None else "flops"
        raise ProgramError(f"compute: {what} is {amount!r}; give a finite number >= 0.")
    if activity not in get_args(Activity):
        raise ProgramError(f"compute: {unknown_name('activity', activity, get_args(Activity))}")
    if not isinstance(name, str):
        raise ProgramError(f"compute: name is {name!r}; give a string.")
    if flops is not None:
        length = asking.runtime.seconds_for(asking.rank, length, dtype)
    asking.runtime.compute(asking.rank, length, activity, name)


def _number(amount: object) -> float:
    """A number of any type, of NumPy's as well; NaN for what is none, or too large."""
    try:
        return float(amount) if isinstance(amount, Real) else nan
    except OverflowError:
        return nan


def clock() -> float:
    """Tell the virtual time of this rank [s]."""
    asking = process("clock")
    return asking.runtime.clock[asking.rank]
