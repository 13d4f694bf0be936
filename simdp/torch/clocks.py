"""Clocks: what a rank reads of the time is virtual, and so is its sleep.

So a script's own ``samples/s`` are those of the cluster. Each look at a clock takes a nanosecond:
on any machine two looks differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from simdp.torch.parts import Part
from simdp.torch.ranks import current

LOOK = 1e-9
"""What a look at a clock takes [s]."""

LOOKS = "looks"
"""Under which a rank keeps how often it has looked."""


class Clocks(Part):
    """The functions of `time`, which modules that were imported before may still have."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        module: Any = time
        names = "time", "perf_counter", "monotonic"
        real = {name: getattr(module, name) for name in (*names, "sleep")}
        nanoseconds = {name: getattr(module, f"{name}_ns") for name in names}
        for name in names:
            looks = _looking(real[name], real[name]())
            setattr(module, name, looks)
            setattr(module, f"{name}_ns", _in_nanoseconds(looks, nanoseconds[name]))
        module.sleep = _sleeping(real["sleep"])
        try:
            yield
        finally:
            for name, function in real.items():
                setattr(module, name, function)
            for name, whole in nanoseconds.items():
                setattr(module, f"{name}_ns", whole)


def _looking(real: Callable[[], float], begin: float) -> Callable[[], float]:
    def looks() -> float:
        rank = current()
        if rank is None:
            return real()
        count = rank.state[LOOKS] = rank.state.get(LOOKS, 0) + 1
        return begin + rank.clock + count * LOOK

    return looks


def _in_nanoseconds(looks: Callable[[], float], real: Callable[[], int]) -> Callable[[], int]:
    return lambda: real() if current() is None else int(looks() * 1e9)


def _sleeping(real: Callable[[float], None]) -> Callable[[float], None]:
    def sleep(seconds: float, /) -> None:
        rank = current()
        if rank is None:
            real(seconds)
            return
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        rank.runtime.pass_until(rank.rank, rank.settle() + seconds)

    return sleep
