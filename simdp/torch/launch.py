"""Launches torch scripts on virtual ranks.

Optimizers and DistributedDataParallel import ``torch._dynamo`` to exclude themselves from
compilation: some seconds, a third of a short run. Nothing is compiled here, so a stand-in is enough
for these two. Any other use loads the real one, which replaces it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _pop_mode, _push_mode

from simdp.distributed.launch import (
    BACKENDS,
    MAX_RANKS,
    Left,
    ProgramResult,
    Where,
    collectives_of,
    compiled,
    find,
    place_of,
    protected_streams,
    without_internals,
)
from simdp.engine.programs.runtime import Ended, ProgramOutput, Runtime
from simdp.errors import DeadlockError, ProgramError, ScenarioError, SimdpError
from simdp.files import read_text
from simdp.torch.charging import updates
from simdp.torch.charging.mode import Charging
from simdp.torch.cuda import (
    autocast,
    comm,
    faking,
    queries,
    streams,
    tensors,
)
from simdp.torch.cuda.machine import KEY as MACHINE
from simdp.torch.cuda.machine import VirtualMachine
from simdp.torch.generators import Generators, Modules
from simdp.torch.isolation import Clocks, Loading, ProcessState, Stores, Worlds
from simdp.torch.process_groups import Futures
from simdp.torch.ranks import (
    DONE,
    MAIN,
    MARKS,
    PARTS,
    Patches,
    Rank,
    RankLocal,
    StepsDone,
    Swapped,
    become,
    current,
)
from simdp.torch.spawning import KEY, SPAWNED, Spawning, together

NAME = "torch._dynamo"

KNOWN: dict[str, dict[str, Any]] = {
    "utils": {"get_optimize_ddp_mode": "ddp_optimizer"},
    "trace_rules": {"clear_lru_cache": None},
}
"""Names used by torch, and the stand-in's answers."""

DISABLED = "__dynamo_disable"
"""Key of the compiler's wrapper of a function in torch."""


class StandIn(ModuleType):
    """Replaces the compiler until it is needed."""

    def __init__(self) -> None:
        super().__init__(NAME)
        self._left: list[Any] = []
        for part, answers in KNOWN.items():
            setattr(self, part, _Part(part, answers))

    def disable(self, fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return a function unchanged."""
        if fn is None:
            return lambda function: function
        self._left.append(fn)
        return fn

    def graph_break(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, without a graph."""

    def forget(self) -> None:
        """Remove it, and let torch wrap all unchanged functions again."""
        for fn in self._left:
            getattr(fn, "__dict__", {}).pop(DISABLED, None)
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # scans of all modules, as by inspect
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        return getattr(_real(), name)


class _Part(SimpleNamespace):
    def __init__(self, name: str, answers: dict[str, Any]) -> None:
        super().__init__(**{call: _answering(answer) for call, answer in answers.items()})
        self._name = name

    def __getattr__(self, name: str) -> Any:
        _real()
        return getattr(import_module(f"{NAME}.{self._name}"), name)


def _answering(answer: Any) -> Callable[[], Any]:
    return lambda: answer


def _real() -> Any:
    """Load torch's compiler in place of the stand-in."""
    if isinstance(sys.modules.get(NAME), StandIn):
        del sys.modules[NAME]
    return import_module(NAME)


class Compilers(RankLocal):
    """Installs the stand-in, unless the compiler is already imported."""

    def patch(self, patches: Patches) -> None:
        if NAME not in sys.modules:
            sys.modules[NAME] = stand_in = StandIn()
            patches.undo(stand_in.forget)


SHARED = ("PartialState", "AcceleratorState", "GradientState")
"""Classes of ``accelerate.state`` whose objects share one dictionary."""

SharedStates = dict[str, dict[str, Any]]
"""Contents of these dictionaries, by the name of their class."""


class Libraries(Swapped):
    """Each rank's content of these dictionaries; the library may be imported at any time."""

    key = "libraries"

    def patch(self, patches: Patches) -> None:
        super().patch(patches)
        patches.put(functools.cached_property, "__get__", _unlocked)

    def fresh(self, rank: Rank) -> SharedStates:
        return {}

    def seen(self) -> SharedStates:
        return {name: dict(shared) for name, shared in _shared().items()}

    def show(self, state: SharedStates) -> None:
        for name, shared in _shared().items():
            shared.clear()
            shared.update(state.get(name, {}))


def _unlocked(self: Any, instance: Any, owner: Any = None) -> Any:
    """Python 3.11's `cached_property` without its lock of all objects of a class.

    A rank that waits for others in it, like Trainer's in its first group, would block them. Python
    3.12 has no such lock.
    """
    if instance is None:
        return self
    cached = instance.__dict__
    if self.attrname not in cached:
        cached[self.attrname] = self.func(instance)
    return cached[self.attrname]


def _shared() -> SharedStates:
    """Return the dictionaries by class name; none if the library is not imported."""
    state = sys.modules.get("accelerate.state")
    kinds = {name: getattr(state, name, None) for name in SHARED}
    return {name: kind._shared_state for name, kind in kinds.items() if kind is not None}


# Devices -----------------------------------------------------------------------------------------

PATCHES = (
    tensors.patch,
    tensors.patch_factories,
    tensors.patch_saving,
    tensors.patch_dtensors,
    queries.patch,
    streams.patch_memory,
    streams.patch,
    streams.patch_accelerator,
    autocast.patch,
    comm.patch,
    faking.patch,
    queries.patch_refusals,
    updates.patch,
    comm.patch_several,
    comm.patch_sync_batch_norm,
)
"""Functions that replace torch's, in this order."""


class Devices(RankLocal):
    """Virtual devices of each rank, and the mode that charges them."""

    def patch(self, patches: Patches) -> None:
        """Let torch see virtual devices on the threads of ranks, and its own elsewhere."""
        for patch in PATCHES:
            patch(patches)

    def begin(self, rank: Rank) -> None:
        """Create a rank's machine; from now on its thread's compute is charged."""
        machine = rank.state[MACHINE] = VirtualMachine(rank, faking.is_chosen())
        _push_mode(Charging(machine))
        autocast.listen(True)

    def end(self, rank: Rank) -> None:
        """Remove the mode; the rank ends when all of its streams are finished."""
        machine: VirtualMachine | None = rank.state.get(MACHINE)
        if machine is not None:
            lanes = [lane for device in machine.devices for lane in device.lanes]
            rank.idle(max((machine.clock(lane) for lane in lanes), default=0.0))
            autocast.listen(False)
            _pop_mode()


# Launch -------------------------------------------------------------------------------------------

TORCHS = str(Path(str(torch.__file__)).parent)

_ALONE = threading.RLock()
"""Held while a program runs, which uses the whole process."""

WHERE = "where"
"""Key of the cluster of a rank's program."""

Body = Callable[[Rank], Any]
"""The program of a rank."""


class RankError(ProgramError):
    """An exception of a rank, reported with the rank."""


class ScriptCode(NamedTuple):
    """Code that runs as ``__main__``."""

    name: str  # the program's
    code: CodeType  # compiled
    file: str  # its ``__file__`` and ``sys.argv[0]``
    spec: Any  # of a module
    folder: str  # first entry of ``sys.path``


def script(path: Path) -> ScriptCode:
    """Read a script.

    Raises
    ------
    ScenarioError
        If the file cannot be read.
    ProgramError
        If it is not Python.
    """
    text = read_text(path, "a script is Python")
    return ScriptCode(
        path.stem, compiled(text, str(path)), str(path), None, str(path.parent.resolve())
    )


def module(name: str) -> ScriptCode:
    """Find a module, like ``python -m``.

    Raises
    ------
    ProgramError
        If there is none, or it cannot be run.
    """
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError):
        spec = None
    finally:
        sys.path.remove(folder)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ProgramError(
            f"-m {name}: there is no such module to run; give the dotted name of a file that can "
            "be imported from here."
        )
    text = read_text(Path(spec.origin), "a module is Python")
    return ScriptCode(
        name.rpartition(".")[2], compiled(text, spec.origin), spec.origin, spec, folder
    )


def run(
    code: ScriptCode,
    where: Where,
    arguments: Sequence[str] = (),
    seed: int = 0,
    environ: Mapping[str, str] | None = None,
    marks: Sequence[Mapping[str, str | None]] = (),
    device_count: int | None = None,
) -> ProgramResult:
    """Run a script or module as ``__main__`` on every rank of a cluster, like torchrun.

    Parameters
    ----------
    code : ScriptCode
        From `script` or `module`.
    where : Where
        From `simdp.distributed.launch.find`.
    arguments : sequence of str
        The script's arguments.
    seed : int
        Seed of the stragglers, and of generators without a seed in the script.
    environ : mapping of str to str, optional
        Environment variables of ranks, in addition to those of torchrun.
    marks : sequence of mapping of str to str or None
        Prefix of each rank's lines on ``stdout`` and ``stderr``; None for hidden ranks.
    device_count : int, optional
        Devices of a node; default: the cluster's ranks of a node.

    Returns
    -------
    ProgramResult
        Its trace and clocks.

    Raises
    ------
    ProgramError
        If a rank raises, or makes an unsupported call.
    DeadlockError
        If ranks wait for an event that never occurs.
    """

    def body(rank: Rank) -> None:
        exec(code.code, vars(sys.modules[MAIN]))

    with _ALONE:
        sys.path.insert(0, code.folder)
        MODULES.folder = Path(code.folder)
        try:
            argv, prepare = [code.file, *arguments], _prepared(code, marks)
            return play(code.name, where, body, argv, seed, environ, prepare, device_count)
        finally:
            sys.path.remove(code.folder)
            MODULES.folder = None


def _prepared(
    code: ScriptCode, marks: Sequence[Mapping[str, str | None]]
) -> Callable[[Rank], None]:
    """Give each rank its ``__main__`` and its marks."""

    def prepare(rank: Rank) -> None:
        main = ModuleType(MAIN)
        main.__file__, main.__spec__ = code.file, code.spec
        main.__dict__["__builtins__"] = __builtins__
        if code.spec is not None:
            main.__package__ = code.spec.parent
        rank.state[MAIN] = main
        if marks:
            rank.state[MARKS] = marks[rank.rank]

    return prepare


def play(
    name: str,
    where: Where,
    body: Body,
    arguments: Sequence[str],
    seed: int = 0,
    environ: Mapping[str, str] | None = None,
    prepare: Callable[[Rank], None] | None = None,
    device_count: int | None = None,
) -> ProgramResult:
    """Run a function on every rank, with the state of each rank; other arguments as for `run`.

    ``prepare`` is called with each rank first.
    """
    cluster = where.cluster
    if cluster.world_size > MAX_RANKS:
        raise ScenarioError(
            f"--nnodes x --nproc-per-node = {cluster.world_size}: a script runs a thread for "
            f"each rank, and {MAX_RANKS} of them at most; take fewer."
        )
    backends = {backend: collectives_of(backend, where.collectives) for backend in BACKENDS}
    ranks: list[Rank] = []

    def enter(rank: int) -> None:
        for part in PARTS:
            part.enter(ranks[rank])

    def leave(rank: int) -> None:
        for part in reversed(PARTS):
            part.leave(ranks[rank])

    runtime = Runtime(cluster, backends, seed, enter, leave, slows=True)
    count = device_count or int(cluster.local_size)
    for number in range(cluster.world_size):
        variables = {**os.environ, **_variables(number, cluster), **(environ or {})}
        ranks.append(Rank(number, runtime, count, variables, list(arguments), seed))
        ranks[-1].state[WHERE] = where
        if prepare is not None:
            prepare(ranks[-1])
    with _installed():
        played, stopped = _played(runtime, ranks, body)
    values, clocks, trace = played
    result = ProgramResult(name, where, seed, values, clocks, trace, stopped)
    spawned = [pair for rank in ranks for pair in rank.state.get(KEY, ())]
    return together(result, spawned) if spawned else result


def _played(runtime: Runtime, ranks: list[Rank], body: Body) -> tuple[ProgramOutput, bool]:
    """Run a program to its end, its last step, or Ctrl-C; return whether it was Ctrl-C."""
    try:
        return runtime.run(lambda number: _live(ranks[number], body)), runtime.stopped
    except DeadlockError:
        if not any(DONE in rank.state for rank in ranks):
            raise
        return runtime.output(), False  # what is left waits for ranks that are done
    except KeyboardInterrupt:
        return runtime.output(), True


def _play_spawned(rank: Rank, name: str, count: int, body: Body) -> ProgramResult:
    """Run ranks started by a rank, with its environment."""
    environ, main = dict(os.environ), sys.modules[MAIN]
    where = rank.state[WHERE]
    cluster = find(where.cluster, count, count).cluster

    def prepare(child: Rank) -> None:
        child.environ = environ
        child.state |= {MAIN: main, MARKS: rank.state.get(MARKS, {}), SPAWNED: True}

    count = max(rank.device_count, count)
    where = where._replace(cluster=cluster)
    return play(name, where, body, rank.arguments, rank.seed, None, prepare, count)


@contextmanager
def _installed() -> Iterator[None]:
    if current() is not None:  # for a program that a rank has started
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(_ALONE)
        stack.enter_context(protected_streams())
        for part in PARTS:
            stack.enter_context(part.installed())
        yield


def _variables(rank: int, cluster: Any) -> dict[str, str]:
    local, nodes = cluster.local_size, cluster.world_size // cluster.local_size
    variables = {
        "LOCAL_RANK": rank % local,
        "RANK": rank,
        "GROUP_RANK": rank // local,
        "ROLE_RANK": rank,
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": local,
        "WORLD_SIZE": cluster.world_size,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_WORLD_SIZE": cluster.world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": "none",
    }
    return {name: str(value) for name, value in variables.items()}


def _live(rank: Rank, body: Body) -> Any:
    """Run a rank; its exceptions are reported with the rank."""
    become(rank)
    begun = []
    try:
        if rank.runtime.cluster.local_size > 1:
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        for part in PARTS:
            part.begin(rank)
            begun.append(part)
        value = body(rank)
        SPAWNING.run_started(rank)
        rank.settle()
        return value
    except (Ended, KeyboardInterrupt):
        raise
    except StepsDone:
        rank.settle()
        return None
    except RankError:  # of a rank that this one has started
        raise
    except ProgramError as error:
        where = place_of(error.__traceback__, TORCHS)
        raise RankError(f"rank {rank.rank}{where}: {error}") from None
    except SimdpError:
        raise
    except Left as error:
        if error.status:
            raise _failed(rank, error.status, f"left with {error.call}") from None
        return None
    except SystemExit as error:
        if error.code in (None, 0):
            rank.settle()
            return None
        status = error.code if isinstance(error.code, int) else 1
        raise _failed(rank, status, f"left with sys.exit({error.code!r})") from None
    except BaseException as error:
        raise _failed(rank, 1, "raised", without_internals(error)) from None
    finally:
        for part in reversed(begun):
            part.end(rank)
        become(None)


def _failed(rank: Rank, status: int, how: str, output: str = "") -> RankError:
    """Format torchrun's report of the first failed rank."""
    lines = "".join(f"[rank{rank.rank}]: {line}\n" for line in output.splitlines())
    return RankError(
        f"{lines}rank {rank.rank} {how}: exitcode {status}, local_rank {rank.local_rank}; it is "
        "the first that failed, and the others were stopped."
    )


SPAWNING = Spawning(_play_spawned)

MODULES = Modules()

PARTS[:] = [
    Compilers(),
    ProcessState(),
    MODULES,
    Clocks(),
    Generators(),
    Futures(),
    Stores(),
    Worlds(),
    Loading(),
    SPAWNING,
    Libraries(),
    Devices(),
]
