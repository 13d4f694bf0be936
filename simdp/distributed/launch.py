"""Launches rank programs.

In torch every rank is a process. Closing standard output, or ``os._exit``, affects only the calling
rank here too. `BACKENDS` is the one place of registration of backends.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf, nan
from numbers import Real
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple, NoReturn, TextIO, cast, get_args

import numpy as np
from pydantic import ValidationError

from simdp.arrays import Floats
from simdp.cluster import Cluster
from simdp.cluster.stragglers import DegradedLink
from simdp.collectives import Collectives
from simdp.engine.programs.groups import ProgramGroup
from simdp.engine.programs.records import Polls
from simdp.engine.programs.runtime import Activity, Ended, Runtime
from simdp.errors import ProgramError, ScenarioError, SimdpError, unknown_name
from simdp.files import read_text
from simdp.results.metrics import Metrics
from simdp.results.result import Result, Study
from simdp.results.trace import ACTIVITIES, COMM_LANE, FIRST_STREAM_LANE, Trace, part
from simdp.scenario.defaults import usual_times
from simdp.scenario.overrides import cluster_file, read_cluster, with_machine
from simdp.scenario.root import Scenario
from simdp.spec import problems
from simdp.version import __version__

MASTER_ADDR, MASTER_PORT = "127.0.0.1", "29500"
"""Rendezvous address of torchrun, without effect."""


class Process:
    """A rank of a running program.

    Attributes
    ----------
    world : Group or None
        The default group; None before `init_process_group` and after `destroy_process_group`.
    destroyed : dict
        Names of destroyed groups of the rank.
    made : dict of tuple of int to int
        Number of groups that the rank has created or seen created: with all ranks, under the empty
        tuple, and with only the members.
    timeout : float or None
        Timeout of `init_process_group` [s].
    main : ModuleType or None
        Its ``__main__``; None if the program is a function.
    """

    def __init__(
        self, rank: int, runtime: Runtime, arguments: list[str], environ: dict[str, str]
    ) -> None:
        self.rank, self.runtime = rank, runtime
        self.world: ProgramGroup | None = None
        self.destroyed: dict[str, None] = {}
        self.made: dict[tuple[int, ...], int] = {}
        self.timeout: float | None = None
        self.polls = Polls()
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
        """Restore this rank's interpreter state."""
        os.environ = cast(Any, self._environ)  # noqa: B003  each rank has one of its own
        sys.argv = self._argv
        if self.main is not None:
            sys.modules["__main__"] = self.main


CURRENT: ContextVar[Process] = ContextVar("CURRENT")


def process(call: str) -> Process:
    """Return the calling rank.

    Raises
    ------
    ProgramError
        If the code runs on no rank.
    """
    try:
        current = CURRENT.get()
    except LookupError:
        raise ProgramError(
            f"{call}: this code runs on no rank; start it with python -m simdp exec PROGRAM.py, "
            "or with simdp.distributed.launch; threads that a rank starts are no ranks."
        ) from None
    current.runtime.check()
    return current


# Clusters -----------------------------------------------------------------------------------------

DEFAULT = "dgx-a100"
"""Default machine of programs: nodes of 8 A100 behind NVSwitch."""


class Where(NamedTuple):
    """The cluster and the collectives of a program."""

    name: str  # the scenario's, or the machine's
    cluster: Cluster  # with the program's ranks
    collectives: Collectives  # defaults of the scenario or the machine: the backend ``nccl``


def find(
    cluster: Cluster | Path | str,
    world_size: int | None = None,
    devices_per_node: int | None = None,
) -> Where:
    """Return the cluster of a program.

    Stragglers of a scenario count. Those of a catalogue machine, a jitter of single steps, are left
    out, so that work takes the program's times.

    Parameters
    ----------
    cluster : Cluster, Path or str
        A cluster; or a scenario or a saved ``result.json``, with optional other sections; or
        the name of a machine, or of a shipped scenario.
    world_size, devices_per_node : int, optional
        Instead of the cluster's values.

    Raises
    ------
    ScenarioError
        With every problem found.
    """
    changes = {"world_size": world_size, "devices_per_node": devices_per_node}
    changes = {key: value for key, value in changes.items() if value is not None}
    if isinstance(cluster, Cluster):
        resized = _cluster("cluster", {**cluster.model_dump(), **changes}, Path())
        return Where("cluster", resized, usual_times(resized, Collectives(), {}, Path()))
    path = cluster_file(Path(cluster))
    raw = read_cluster(path, list(Scenario.model_fields))
    stragglers = raw["cluster"].get("stragglers", [])
    filled = with_machine(raw, path.parent)
    resized = _cluster(
        str(path), filled["cluster"] | {"stragglers": stragglers} | changes, path.parent
    )
    collectives, written = _collectives(path, filled), filled.get("collectives") or {}
    of = resized, collectives, written, path.parent, (), bool(filled.get("neighbours"))
    return Where(str(raw.get("name", path.stem)), resized, usual_times(*of))


def _cluster(where: str, raw: dict[str, object], base: Path) -> Cluster:
    try:
        cluster = Cluster.model_validate(raw, context={"base": base})
    except ValidationError as error:
        lines = [f"{where}: cluster.{cluster.line}" for cluster in problems(error, raw)]
        raise ScenarioError(lines) from None
    for number, straggler in enumerate(cluster.stragglers):
        if isinstance(straggler, DegradedLink) and straggler.comes_and_goes():
            raise ScenarioError(
                f"{where}: cluster.stragglers.{number}: degraded_link comes and goes by steps, "
                "of which a rank program knows none; leave out steps, on and off."
            )
    return cluster


def _collectives(path: Path, raw: dict[str, object]) -> Collectives:
    written = raw.get("collectives", {})
    try:
        return Collectives.model_validate(written).settled(path.parent)
    except ValidationError as error:
        lines = [f"{path}: collectives.{wrong.line}" for wrong in problems(error, written)]
        raise ScenarioError(lines) from None
    except ScenarioError as error:
        raise ScenarioError([f"{path}: {line}" for line in error.problems]) from None


OURS = str(Path(__file__).parents[1])


def place_of(trace: TracebackType | None, *others: str) -> str:
    """Return where in the program an error was raised: ``, train.py:12``; or an empty string.

    ``others`` are folders of libraries outside of the program.
    """
    places = [
        f", {frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(trace)
        if not frame.filename.startswith((OURS, *others))
    ]
    return places[-1] if places else ""


def without_internals(error: BaseException) -> str:
    """Format a traceback like Python, without simdp's frames."""
    shown = traceback.TracebackException.from_exception(error)
    chain: list[traceback.TracebackException] = [shown]
    while chain:
        link = chain.pop()
        kept = [frame for frame in link.stack if not frame.filename.startswith(OURS)]
        link.stack = traceback.StackSummary.from_list(kept)
        chain += [cause for cause in (link.__cause__, link.__context__) if cause is not None]
    return "".join(shown.format()).rstrip("\n")


# Shelter ------------------------------------------------------------------------------------------


class Left(BaseException):
    """Unwinds a rank that called ``os._exit`` or ``os.abort``; not an `Exception`, like `Ended`."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(call, status)
        self.call, self.status = call, status


class _Open:
    """A stream that cannot be closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


@contextmanager
def protected_streams() -> Iterator[None]:
    """Keep standard streams open, and the process alive, while a program runs."""
    streams, leave, abort, process = (sys.stdout, sys.stderr), os._exit, os.abort, os.getpid()

    def leave_alone(status: int) -> NoReturn:
        if os.getpid() != process:  # a fork of the program's own
            leave(status)
        raise Left(f"os._exit({status!r})", status)

    def abort_alone() -> NoReturn:
        if os.getpid() != process:
            abort()
        raise Left("os.abort()", 134)

    sys.stdout, sys.stderr = _Open(streams[0]), _Open(streams[1])
    os._exit, os.abort = leave_alone, abort_alone
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        os._exit, os.abort = leave, abort


# Computing ----------------------------------------------------------------------------------------


def compute(
    seconds: float | None = None,
    flops: float | None = None,
    dtype: str = "float32",
    activity: Activity = "compute",
    name: str = "compute",
) -> None:
    """Keep this rank's device busy; pending communication continues.

    Parameters
    ----------
    seconds : float, optional
        Duration without slowdowns of the rank [s].
    flops : float, optional
        Instead of it: the arithmetic of one kernel, at the speed of the cluster's device by its
        roofline, ``(flops + half_work) / (peak efficiency) + launch`` [FLOP].
    dtype : str
        Of the arithmetic, a peak of the device.
    activity : {"compute", "forward", "backward", "update"}
        Activity in plots.
    name : str
        Its name in ``trace.json``.

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
    """Return a number of any type as float, also NumPy's; NaN if invalid or too large."""
    try:
        return float(amount) if isinstance(amount, Real) else nan
    except OverflowError:
        return nan


def clock() -> float:
    """Return the virtual time of this rank [s]."""
    asking = process("clock")
    return asking.runtime.clock[asking.rank]


# Backends -----------------------------------------------------------------------------------------

BACKENDS: dict[str, dict[str, object] | None] = {
    "gloo": {
        "all_gather": "ring",
        "all_reduce": {"kind": "ring", "chunking": "gloo"},
        "all_to_all": "pairwise",
        "broadcast": "binomial",
        "reduce": "gloo",
        "reduce_scatter": "gloo",
    },
    "mpi": {
        "all_gather": {"kind": "auto", "candidates": ["recursive_doubling", "ring"]},
        "all_reduce": {"kind": "auto", "candidates": ["recursive_doubling", "halving_doubling"]},
        "all_to_all": "pairwise",
        "broadcast": {"kind": "auto", "candidates": ["binomial", "halving_doubling"]},
        "reduce": {"kind": "auto", "candidates": ["binomial", "halving_doubling"]},
        "reduce_scatter": "halving_doubling",
    },
    "nccl": None,
}
"""Section ``collectives`` of each backend; None is the cluster's, by default NCCL's rings. Unnamed
collectives are those of `simdp.collectives.Collectives`.

gloo: its source, gloo/allreduce.cc (a ring over segments), gloo/reduce.cc, gloo/broadcast.cc
(binomial tree), and torch's ProcessGroupGloo.cpp.
mpi: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
IJHPCA 19(1), 2005: short messages by recursive doubling and binomial trees, long ones by halving
and doubling, whichever is faster for a size.
"""


REDUCES_PIECES = ("gloo",)
"""Backends whose ``reduce_scatter`` of a list is a reduce for each of its tensors; others
concatenate them. As in torch, by the bits of real processes (``tests/golden/real_gloo.json``)."""

NO_BITS = ("nccl",)
"""Backends that refuse ``ReduceOp.BAND``, ``BOR`` and ``BXOR``."""


def collectives_of(backend: str, own: Collectives) -> Collectives:
    """Return the algorithms and the cost of a backend on a cluster."""
    chosen = BACKENDS[backend]
    return own if chosen is None else Collectives.model_validate(chosen)


def chosen_backend(backend: object, default: str, call: str) -> str:
    """Return the backend of a program, from any of torch's spellings.

    Raises
    ------
    ProgramError
        If there is no such backend.
    """
    if backend is None:
        return default
    if not isinstance(backend, str):
        raise ProgramError(f"{call}: backend is {backend!r}; give one of {', '.join(BACKENDS)}.")
    pairs = [pair.partition(":") for pair in backend.lower().split(",")]
    devices = [device for device, _, _ in pairs]
    if ":" not in backend:
        names = {"cuda": backend.lower()}
    elif all(name for _, _, name in pairs) and len(set(devices)) == len(pairs):
        names = {device: name for device, _, name in pairs}
    else:
        raise ProgramError(
            f"{call}: backend {backend!r} must name one for each device, as 'cpu:gloo,cuda:nccl'."
        )
    for name in names.values():
        if name not in BACKENDS:
            raise ProgramError(unknown_name("backend", name, sorted(BACKENDS)))
    return names.get("cuda", next(iter(names.values())))


def is_available() -> bool:
    """Return whether rank programs are available: always."""
    return True


def is_backend_available(backend: str) -> bool:
    """Return whether a backend exists."""
    return backend.lower() in BACKENDS


def is_gloo_available() -> bool:
    """Return whether the backend gloo exists: always."""
    return is_backend_available("gloo")


def is_mpi_available() -> bool:
    """Return whether the backend mpi exists: always."""
    return is_backend_available("mpi")


def is_nccl_available() -> bool:
    """Return whether the backend nccl exists: always."""
    return is_backend_available("nccl")


MAX_RANKS = 1024
"""Limit of ranks, which are threads: with more a single all_reduce takes minutes."""

_ALONE = threading.Lock()
"""Held while a program runs: its ranks use the process's environment and arguments in turn."""

Body = Callable[[Process], Any]
"""The program of a rank."""


@dataclass
class ProgramResult:
    """Results of a program."""

    name: str
    """The program's."""
    where: Where
    """Its cluster."""
    seed: int
    """Seed of its stragglers."""
    values: list[Any]
    """Return value of each rank; None for a script."""
    clocks: Floats
    """When each rank ended [s]; shape `(world_size,)`."""
    trace: Trace
    """Every span."""
    stopped: bool = False
    """Whether Ctrl-C ended it."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.values)

    @property
    def simulated_s(self) -> float:
        """End of the last rank, or of the last call without a waiter [s]."""
        ends = [float(block.end.max()) for block in self.trace.blocks]
        return max(float(self.clocks.max()), *ends, 0.0)

    def study(self, one_lane: bool = False) -> Study:
        """Return the trace as a study for reports.

        ``one_lane`` puts concurrent calls of a rank on one lane, as in plots.
        """
        trace = self.trace
        if one_lane:
            trace = _on_one_lane(trace)
        cluster = self.where.cluster.model_dump(mode="json")
        shown = {"name": self.name, "program": self.name, "seed": self.seed, "cluster": cluster}
        result = Result(shown, {}, Metrics(simulated_s=self.simulated_s), trace)
        return Study(__version__, shown, [result])


def _on_one_lane(trace: Trace) -> Trace:
    """Move further lanes of communication to the first one.

    There they have no names, and waits for them are left out, to keep the names and bars of the
    first lane visible.
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
    function: Callable[..., object],
    world_size: int | None = None,
    cluster: Cluster | Path | str = DEFAULT,
    args: Sequence[object] = (),
    seed: int = 0,
) -> ProgramResult:
    """Run ``function(rank, *args)`` on every rank, like torch.multiprocessing.spawn.

    Parameters
    ----------
    function : callable
        Function of each rank; all of them share the same objects, as threads do.
    world_size : int, optional
        Number of ranks; default: the cluster's.
    cluster : Cluster, Path or str
        See `simdp.distributed.launch.find`.
    args : sequence
        Further arguments.
    seed : int
        Seed of the stragglers.

    Returns
    -------
    ProgramResult
        Equal calls give equal traces.

    Raises
    ------
    ScenarioError
        If the cluster is invalid.
    ProgramError
        If the program is invalid, or raises.
    DeadlockError
        If ranks wait for an event that never occurs.
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

    Each rank has a separate module, ``sys.argv`` and ``os.environ``. Modules imported by the
    script, and the global generators of `random` and NumPy, are shared by all ranks.

    Parameters
    ----------
    path : Path
        A Python file.
    where : Where
        From `simdp.distributed.launch.find`.
    arguments : sequence of str
        The script's arguments.
    seed : int
        Seed of the stragglers.

    Raises
    ------
    ScenarioError
        If the file cannot be read.
    ProgramError, DeadlockError
        As for `launch`.
    """
    code = compiled(read_text(path, "a program is Python"), str(path))

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


def compiled(text: str, path: str) -> CodeType:
    """Compile a program; invalid Python raises a `ProgramError` with its place."""
    try:
        return compile(text, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ProgramError(f"{path}:{error.lineno}: is not valid Python: {error.msg}.") from None
    except ValueError as error:  # a null byte
        raise ProgramError(f"{path}: is not valid Python: {error}.") from None


def _run(name: str, where: Where, seed: int, body: Body, argv: list[str]) -> ProgramResult:
    if where.cluster.world_size > MAX_RANKS:
        raise ScenarioError(
            f"world_size: a rank program runs a thread for each rank, and {MAX_RANKS} of them "
            f"at most, not {where.cluster.world_size}; use python -m simdp collective for "
            "larger clusters."
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
        with protected_streams():
            played = runtime.run(lambda rank: _live(ranks[rank], body))
    finally:
        os.chdir(folder)  # undo the program's change of folder
        os.environ, sys.argv, sys.modules["__main__"] = before
    return ProgramResult(name, where, seed, played.values, played.clocks, played.trace)


def _live(me: Process, body: Body) -> Any:
    """Run a rank; its exceptions are reported with the rank."""
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
        raise ProgramError(f"rank {me.rank} raised:\n{without_internals(error)}") from None
