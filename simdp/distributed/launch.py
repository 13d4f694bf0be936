"""Launch: a function or a script on every rank of a virtual cluster."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import simdp
from simdp.arrays import Floats
from simdp.cluster import Cluster
from simdp.distributed.backends import BACKENDS, collectives_of
from simdp.distributed.clusters import DEFAULT, Where, find
from simdp.distributed.frames import place_of, without_ours
from simdp.distributed.process import CURRENT, Process
from simdp.distributed.shelter import Left, sheltered
from simdp.engine.programs.baton import Ended
from simdp.engine.programs.runtime import Runtime
from simdp.errors import ProgramError, ScenarioError, SimdpError
from simdp.files import read_text
from simdp.results.blocks import part
from simdp.results.result import Result, Study
from simdp.results.trace import ACTIVITIES, COMM_LANE, FIRST_STREAM_LANE, Trace

MAX_RANKS = 1024
"""A rank is a thread; beyond so many a single all_reduce takes minutes."""

_ALONE = threading.Lock()
"""Held while a program runs: its ranks have the process's environment and arguments in turn."""

Body = Callable[[Process], Any]
"""What a rank does."""


@dataclass
class ProgramResult:
    """What a program did.

    Attributes
    ----------
    name : str
        The program's.
    where : Where
        The cluster that it ran on.
    seed : int
        Of what its stragglers drew.
    values : list
        What each rank returned; of a script, None.
    clocks : ndarray, shape `(world_size,)`
        When each rank ended [s].
    trace : Trace
        Every span.
    """

    name: str
    where: Where
    seed: int
    values: list[Any]
    clocks: Floats
    trace: Trace

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.values)

    @property
    def simulated_s(self) -> float:
        """Until the last rank, and the last call that nobody waited for, was done [s]."""
        ends = [float(block.end.max()) for block in self.trace.blocks]
        return max(float(self.clocks.max()), *ends, 0.0)

    def study(self, one_lane: bool = False) -> Study:
        """The trace as reports read it.

        Parameters
        ----------
        one_lane : bool
            Whether calls of a rank that are under way at the same time are to be on one lane, one
            over the other, as pictures have them.
        """
        trace = self.trace
        if one_lane:
            trace = _on_one_lane(trace)
        cluster = self.where.cluster.model_dump(mode="json")
        shown = {"name": self.name, "program": self.name, "seed": self.seed, "cluster": cluster}
        result = Result(shown, {}, {"simulated_s": self.simulated_s}, trace)
        return Study(simdp.__version__, shown, [result])


def _on_one_lane(trace: Trace) -> Trace:
    """Put further lanes of communication on the first one.

    There they stand without their names, and what waits on them is left out, so that the names and
    the bars of the first one can be seen.
    """
    blocks, nameless = [], len(trace.names)
    for block in trace.blocks:
        further = np.broadcast_to(np.asarray(block.lane) >= FIRST_STREAM_LANE, block.ranks.shape)
        if not further.any():
            blocks.append(block)
            continue
        if ACTIVITIES[block.activity] != "wait":
            moved = part(block, np.flatnonzero(further))
            blocks.append(moved._replace(lane=COMM_LANE, name=nameless))
        if not further.all():
            blocks.append(part(block, np.flatnonzero(~further)))
    return Trace(blocks, [*trace.names, ""])


def launch(
    function: Callable[..., Any],
    world_size: int | None = None,
    cluster: Cluster | Path | str = DEFAULT,
    args: Sequence[Any] = (),
    seed: int = 0,
) -> ProgramResult:
    """Run ``function(rank, *args)`` on every rank, as torch.multiprocessing.spawn does.

    Parameters
    ----------
    function : callable
        What each rank does; all of them see the same objects, as threads do.
    world_size : int, optional
        Number of ranks; the cluster's own, if left out.
    cluster : Cluster, Path or str
        See `simdp.distributed.clusters.find`.
    args : sequence
        Further arguments.
    seed : int
        Of what stragglers draw.

    Returns
    -------
    ProgramResult
        Equal calls give equal traces.

    Raises
    ------
    ScenarioError
        If the cluster is wrong.
    ProgramError
        If the program is, or raises.
    DeadlockError
        If ranks wait for what never comes.
    """
    where = find(cluster, world_size)
    name = getattr(function, "__name__", "program")
    # A rank may launch a program, which then runs inside its own; other threads take turns.
    with nullcontext() if CURRENT.get(None) else _ALONE:
        return _run(name, where, seed, lambda me: function(me.rank, *args), sys.argv)


def run_script(
    path: Path, where: Where, arguments: Sequence[str] = (), seed: int = 0
) -> ProgramResult:
    """Run a script as ``__main__`` on every rank.

    Each rank has a module, ``sys.argv`` and ``os.environ`` of its own. What the script imports, and
    the global generators of `random` and NumPy, are shared by all ranks.

    Parameters
    ----------
    path : Path
        A Python file.
    where : Where
        From `simdp.distributed.clusters.find`.
    arguments : sequence of str
        The script's own.
    seed : int
        Of what stragglers draw.

    Raises
    ------
    ScenarioError
        If the file cannot be read.
    ProgramError, DeadlockError
        As for `launch`.
    """
    try:
        code = compile(read_text(path, "a program is Python"), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ProgramError(f"{path}:{error.lineno}: is not valid Python: {error.msg}.") from None
    except ValueError as error:  # a null byte
        raise ProgramError(f"{path}: is not valid Python: {error}.") from None

    def body(me: Process) -> None:
        me.main = ModuleType("__main__")
        me.main.__file__ = str(path)
        me.enter()
        exec(code, me.main.__dict__)

    folder = str(path.parent.resolve())
    with nullcontext() if CURRENT.get(None) else _ALONE:
        sys.path.insert(0, folder)
        try:
            return _run(path.stem, where, seed, body, [str(path), *arguments])
        finally:
            sys.path.remove(folder)


def _run(name: str, where: Where, seed: int, body: Body, argv: list[str]) -> ProgramResult:
    if where.cluster.world_size > MAX_RANKS:
        raise ScenarioError(
            [
                f"world_size: a rank program runs a thread for each rank, and {MAX_RANKS} of them "
                f"at most, not {where.cluster.world_size}; use python -m simdp collective for "
                "larger clusters."
            ]
        )
    backends = {backend: collectives_of(backend, where.collectives) for backend in BACKENDS}
    ranks: list[Process] = []
    runtime = Runtime(where.cluster, backends, seed, lambda rank: ranks[rank].enter())
    environ = dict(os.environ)
    for rank in range(where.cluster.world_size):
        ranks.append(Process(rank, runtime, argv, environ))
    before = os.environ, sys.argv, sys.modules["__main__"]
    folder = Path.cwd()
    try:
        with sheltered():
            played = runtime.run(lambda rank: _live(ranks[rank], body))
    finally:
        os.chdir(folder)  # where a program went, nobody follows
        os.environ, sys.argv, sys.modules["__main__"] = before
    return ProgramResult(name, where, seed, played.values, played.clocks, played.trace)


def _live(me: Process, body: Body) -> Any:
    """Let a rank do its part; what it raises is told with the rank."""
    CURRENT.set(me)
    try:
        return body(me)
    except (Ended, KeyboardInterrupt):
        raise
    except ProgramError as error:
        raise ProgramError(f"rank {me.rank}{place_of(error.__traceback__)}: {error}") from None
    except SimdpError:
        raise
    except Left as error:
        if not error.status:
            return None
        raise ProgramError(f"rank {me.rank} left with {error.call}.") from None
    except SystemExit as error:
        if error.code in (None, 0):
            return None
        raise ProgramError(f"rank {me.rank} left with sys.exit({error.code!r}).") from None
    except BaseException as error:
        raise ProgramError(f"rank {me.rank} raised:\n{without_ours(error)}") from None
