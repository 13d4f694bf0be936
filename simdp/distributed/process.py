"""Process: what each rank has for itself, as if it were a process of its own."""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar
from types import ModuleType
from typing import Any, cast

from simdp.engine.programs.groups import Group
from simdp.engine.programs.runtime import Runtime
from simdp.errors import ProgramError

MASTER_ADDR, MASTER_PORT = "127.0.0.1", "29500"
"""Where torchrun lets ranks meet; here they meet anyway."""


class Process:
    """A rank of a running program.

    Parameters
    ----------
    rank : int
        Which.
    runtime : Runtime
        What plays the program.
    arguments : list of str
        Its ``sys.argv``.
    environ : dict of str to str
        What its environment is made from.

    Attributes
    ----------
    world : Group or None
        The default group; None before `init_process_group` and after `destroy_process_group`.
    destroyed : dict
        Names of groups that the rank has given up.
    made : dict of tuple of int to int
        How many groups the rank has made or seen made: together with all others, under the empty
        tuple, and with the members alone.
    timeout : float or None
        What `init_process_group` was told [s].
    main : ModuleType or None
        Its ``__main__``; None where the program is a function.
    """

    def __init__(
        self, rank: int, runtime: Runtime, arguments: list[str], environ: dict[str, str]
    ) -> None:
        self.rank, self.runtime = rank, runtime
        self.world: Group | None = None
        self.destroyed: dict[str, None] = {}
        self.made: dict[tuple[int, ...], int] = {}
        self.timeout: float | None = None
        self.polls = 0
        self.polled_at = 0.0
        self.main: ModuleType | None = None
        self._argv = list(arguments)
        cluster = runtime.cluster
        self._environ = {
            **environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % cluster.local_size),
            "WORLD_SIZE": str(cluster.world_size),
            "LOCAL_WORLD_SIZE": str(cluster.local_size),
            "MASTER_ADDR": MASTER_ADDR,
            "MASTER_PORT": MASTER_PORT,
        }

    def enter(self) -> None:
        """Let the interpreter look as this rank has left it."""
        os.environ = cast(Any, self._environ)  # noqa: B003  each rank has one of its own
        sys.argv = self._argv
        if self.main is not None:
            sys.modules["__main__"] = self.main


CURRENT: ContextVar[Process] = ContextVar("CURRENT")


def process(call: str) -> Process:
    """The rank that asks.

    Raises
    ------
    ProgramError
        If the code runs on no rank.
    """
    try:
        found = CURRENT.get()
    except LookupError:
        raise ProgramError(
            f"{call}: this code runs on no rank; start it with python -m simdp exec PROGRAM.py, "
            "or with simdp.distributed.launch; threads that a rank starts are no ranks."
        ) from None
    found.runtime.check()
    return found
