"""Isolates ranks: clocks, stores, processes, data loading, world state.

torch stores its groups in variables of a module and of one object, and in a registry of names for
C++, which can be separate for each thread.

Clocks of `time` are virtual, so that a script's ``samples/s`` are those of the cluster. Each
reading of a clock takes a nanosecond, since two readings differ on any machine.

Data loading gives the numbers of the workers: each is seeded as in torch, has separate generators,
and gets every n-th batch. Their time is not charged; on a real host it is hidden by as many cores.

Ranks of a program share a process: one dictionary replaces the server of each address. A rank that
waits for a key lets other ranks run, and only their time passes.
"""

from __future__ import annotations

import builtins
import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import _set_thread_isolation_mode
from torch.utils.data import IterDataPipe, _utils, dataloader, get_worker_info
from torch.utils.data._utils.worker import WorkerInfo, _generate_state

from simdp.distributed.launch import BACKENDS
from simdp.engine.programs.records import NOTHING, CallSignature, Handle
from simdp.errors import ProgramError
from simdp.torch.generators import generator_states, restore_generators
from simdp.torch.process_groups import Virtual
from simdp.torch.ranks import Rank, RankLocal, asking, current

NAMES = (
    "_pg_map",
    "_pg_names",
    "_pg_group_ranks",
    "_pg_backend_config",
    "_group_count",
    "_tags_to_pg",
    "_pg_to_tag",
    "_default_pg_init_method",
)
"""Variables of torch's module."""


class Worlds(RankLocal):
    """Each rank's groups."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        plugins = c10d.Backend._plugins
        before, world, variables = dict(plugins), dict(vars(c10d._world)), _variables()
        helper = c10d._new_process_group_helper
        recorder = getattr(c10d, "_maybe_attach_flight_recorder", None)  # since torch 2.14
        for name in BACKENDS:
            plugins[name.upper()] = c10d.Backend._BackendPlugin(_made, True)

        def group_helper(*given: Any, **named: Any) -> Any:
            config = c10d.BackendConfig(named.get("backend") or given[3])
            asking("init_process_group").state["backends"] = config.get_device_backend_map()
            return helper(*given, **named)

        c10d._new_process_group_helper = group_helper
        if recorder is not None:
            c10d._maybe_attach_flight_recorder = lambda *given: None
        _set_thread_isolation_mode(True)
        try:
            yield
        finally:
            _set_thread_isolation_mode(False)
            if recorder is not None:
                c10d._maybe_attach_flight_recorder = recorder
            c10d._new_process_group_helper = helper
            plugins.clear()
            plugins.update(before)
            _put_world(world, variables)

    def begin(self, rank: Rank) -> None:
        fresh = {name: type(value)() for name, value in _variables().items() if value is not None}
        world = vars(type(c10d._world)()).copy()
        rank.state["world"] = world, {**dict.fromkeys(NAMES), **fresh}
        self.enter(rank)

    def enter(self, rank: Rank) -> None:
        if "world" in rank.state:
            _put_world(*rank.state["world"])

    def leave(self, rank: Rank) -> None:
        rank.state["world"] = dict(vars(c10d._world)), _variables()

    def end(self, rank: Rank) -> None:
        rank.state.pop("world", None)


def _variables() -> dict[str, Any]:
    return {name: getattr(c10d, name) for name in NAMES}


def _put_world(world: dict[str, Any], variables: dict[str, Any]) -> None:
    vars(c10d._world).clear()
    vars(c10d._world).update(world)
    for name, value in variables.items():
        setattr(c10d, name, value)


def _made(options: Any, backend_options: Any = None) -> Virtual:
    """Create a group of a rank, as torch does."""
    rank = asking("init_process_group")
    runtime = rank.runtime
    world_size, size, place = runtime.cluster.world_size, options.group_size, options.group_rank
    first = not options.global_ranks_in_group
    ranks = tuple(options.global_ranks_in_group) or tuple(range(world_size))
    if first and size not in (-1, world_size):
        raise ProgramError(
            f"init_process_group: world_size is {size}, but the script runs on {world_size} ranks; "
            f"start it with --nproc-per-node {size}, or leave world_size out."
        )
    if place != -1 and ranks[place] != rank.rank:
        raise ProgramError(
            f"init_process_group: rank is {place}, but this is rank {rank.rank}; leave rank out, "
            "or give int(os.environ['RANK'])."
        )
    asked = rank.state["backends"]
    served = {kind: name for kind, name in asked.items() if name in BACKENDS}
    label = "default" if first else f"{options.group_id} (ranks {', '.join(map(str, ranks))})"
    groups = {kind: runtime.group(label, ranks, name) for kind, name in served.items()}
    names = sorted(set(served.values()))
    call = CallSignature(
        "init_process_group" if first else "new_group", more=f"backend={','.join(names)}"
    )
    group = next(iter(groups.values()))
    runtime.wait(group.issue(rank.rank, rank.settle(), call, NOTHING, None, blocked=True))
    return Virtual(rank, groups, ",".join(names))


TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""Numbers of glibc's settings (malloc.h)."""

LARGEST = 32 * 2**20
"""glibc maps larger blocks separately, whatever its settings [bytes]."""

KEPT_BYTES = 2**31 - 1
"""Limit of kept memory [bytes]."""


def keep_what_is_freed() -> None:
    """Let malloc keep blocks of some megabytes for the life of the process.

    By default it returns them to the system at once, which clears the pages of the next one: a
    twentieth of a step of small batches. It has no effect without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(ARENA_MAX, 1)  # ranks take turns, so that one is enough for all threads
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, KEPT_BYTES)


# Processes ----------------------------------------------------------------------------------------


class ProcessState(RankLocal):
    """Each rank's ``os.environ``, ``sys.argv``, ``__main__``, ``sys.excepthook`` and ``print``.

    ``os.environ`` stays the same object with changing contents, so that all references see those of
    the running rank.
    """

    @contextmanager
    def installed(self) -> Iterator[None]:
        before, folder = _seen(), Path.cwd()
        signals = signal.signal, signal.getsignal
        signal.signal, signal.getsignal = _handling(*signals)
        streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = Lines(streams[0], "stdout"), Lines(streams[1], "stderr")
        try:
            yield
        finally:
            sys.stdout.rest()
            sys.stderr.rest()
            sys.stdout, sys.stderr = streams
            signal.signal, signal.getsignal = signals
            _show(before)
            os.chdir(folder)

    def begin(self, rank: Rank) -> None:
        data = {_bytes(key): _bytes(value) for key, value in rank.environ.items()}
        main, own = rank.state.pop("main", None), (sys.excepthook, builtins.print)
        rank.state["process"] = data, rank.arguments, main, *own
        self.enter(rank)

    def enter(self, rank: Rank) -> None:
        if "process" in rank.state:
            _show(rank.state["process"])

    def leave(self, rank: Rank) -> None:
        rank.state["process"] = _seen()

    def end(self, rank: Rank) -> None:
        rank.state.pop("process", None)


HANDLERS = "signals"
"""Key of a rank's handlers by signal; no signal is sent to a rank."""


def _handling(set_handler: Any, get_handler: Any) -> tuple[Any, Any]:
    """Return `signal.signal` and `signal.getsignal` with handlers of each rank."""

    def handlers() -> dict[int, Any] | None:
        rank = current()
        return None if rank is None else rank.state.setdefault(HANDLERS, {})

    def setting(signalnum: Any, handler: Any) -> Any:
        mine = handlers()
        if mine is None:
            return set_handler(signalnum, handler)
        before = mine.get(int(signalnum), get_handler(signalnum))
        mine[int(signalnum)] = handler
        return before

    def getting(signalnum: Any) -> Any:
        mine = handlers()
        real = get_handler(signalnum)
        return real if mine is None else mine.get(int(signalnum), real)

    return setting, getting


def _bytes(text: str) -> Any:
    return os.environ.encodekey(text)


def _seen() -> tuple[Any, ...]:
    data, main = cast(Any, os.environ)._data, sys.modules["__main__"]
    return data, sys.argv, main, sys.excepthook, builtins.print


def _show(seen: tuple[Any, ...]) -> None:
    cast(Any, os.environ)._data, sys.argv, main, sys.excepthook, builtins.print = seen
    if main is not None:
        sys.modules["__main__"] = main


class Lines:
    """Stream ``name`` that ranks write whole lines to, with an optional prefix of the rank."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name
        self._begun: dict[Rank, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text; an incomplete line waits for its end."""
        rank = current()
        if rank is None:
            return int(self._stream.write(text))
        mark = rank.state.get("marks", {}).get(self._name, "")
        if mark is None:
            return len(text)
        whole, newline, rest = (self._begun.pop(rank, "") + text).rpartition("\n")
        if newline:
            lines = whole.split("\n")
            self._stream.write("".join(f"{mark}{line}\n" for line in lines))
        if rest:
            self._begun[rank] = rest
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def rest(self) -> None:
        """Write the incomplete last line of each rank."""
        for rank, text in self._begun.items():
            mark = rank.state.get("marks", {}).get(self._name, "")
            self._stream.write(f"{mark}{text}")
        self._begun.clear()

    def close(self) -> None:
        """Leave the shared stream open."""
        self._stream.flush()


LOOK = 1e-9
"""Time of a clock reading [s]."""

LOOKS = "looks"
"""Key of a rank's number of clock readings."""


class Clocks(RankLocal):
    """The functions of `time`, also in modules imported before."""

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


class Loading(RankLocal):
    """DataLoaders with workers."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        inner: Any = dataloader
        before = inner._MultiProcessingDataLoaderIter

        class Chosen(type):
            def __call__(cls, loader: Any) -> Any:
                return (before if current() is None else Workers)(loader)

            def __instancecheck__(cls, instance: Any) -> bool:
                return isinstance(instance, (before, Workers))

        inner._MultiProcessingDataLoaderIter = Chosen(before.__name__, (), {})
        try:
            yield
        finally:
            inner._MultiProcessingDataLoaderIter = before


class _Worker:
    """One worker: its generators, and its fetcher."""

    def __init__(self, loader: Any, number: int, base_seed: int) -> None:
        self._loader = loader
        seed = base_seed + number
        self._info = WorkerInfo(
            id=number, num_workers=loader.num_workers, seed=seed, dataset=loader.dataset
        )
        self._state: Any = None
        with self.at_work():
            random.seed(seed)
            torch.default_generator.manual_seed(seed)
            np.random.seed(_generate_state(base_seed, number))  # noqa: NPY002
            if loader.worker_init_fn is not None:
                loader.worker_init_fn(number)
            self.resume()

    def resume(self) -> None:
        """Restart the dataset."""
        loader = self._loader
        self._fetcher = dataloader._DatasetKind.create_fetcher(
            loader._dataset_kind,
            loader.dataset,
            loader._auto_collation,
            loader.collate_fn,
            loader.drop_last,
        )

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Install the worker's generators and ``get_worker_info``."""
        module: Any = _utils.worker
        before, info = generator_states(), get_worker_info()
        if self._state is not None:
            restore_generators(self._state)
        module._worker_info = self._info
        try:
            yield
        finally:
            module._worker_info = info
            self._state = generator_states()
            restore_generators(before)

    def fetch(self, index: Any) -> Any:
        """Fetch a batch."""
        with self.at_work():
            return self._fetcher.fetch(index)


class Workers(dataloader._BaseDataLoaderIter):
    """Iterates over a DataLoader with ``num_workers`` above 0, as its workers would."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._num_workers = loader.num_workers
        self._loader = loader
        if isinstance(loader.dataset, IterDataPipe):
            raise ProgramError(
                "DataLoader: workers of an IterDataPipe are not served; use num_workers=0."
            )
        self._everybody: list[_Worker] = []
        self._begin()

    def _begin(self) -> None:
        if self._everybody and self._loader.persistent_workers:
            for worker in self._everybody:
                worker.resume()
        else:
            self._everybody = [
                _Worker(self._loader, number, self._base_seed)
                for number in range(self._num_workers)
            ]
        self._workers: list[Any] = list(self._everybody)
        self._turn = 0
        # Workers prefetch this number of batches, and the sampler draws that early.
        self._asked: list[Any] = []
        self._ask(self._loader.prefetch_factor * self._num_workers)

    def _ask(self, count: int) -> None:
        for _ in range(count):
            try:
                self._asked.append(next(self._sampler_iter))
            except StopIteration:
                return

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        if not first_iter:
            self._begin()

    def _next_data(self) -> Any:
        while self._asked:
            index = self._asked.pop(0)
            place, self._turn = self._turn % self._num_workers, self._turn + 1
            worker = self._workers[place]
            if worker is None:
                self._ask(1)
                continue
            try:
                data = worker.fetch(index)
            except StopIteration:  # of an iterable dataset, this worker's part
                self._workers[place] = None
                if not any(self._workers):
                    raise
                self._ask(1)
                continue
            self._ask(1)
            return data
        raise StopIteration


# Stores -------------------------------------------------------------------------------------------

KEPT = "stores"
"""Key of a rank's stores, since C++, which calls them, holds no Python references."""


class Shelf:
    """Values at an address, and the ranks waiting for them."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.waiting: dict[str, list[Handle]] = {}


_SHELVES: dict[tuple[int, str], Shelf] = {}
"""Shelves by program and address."""


def shelf(address: str) -> Shelf:
    """Return the store of the calling rank's program at an address."""
    runtime = asking("store").runtime
    return _SHELVES.setdefault((id(runtime), address), Shelf())


class VirtualStore(dist.Store):
    """A store of a program.

    Parameters
    ----------
    address : str
        Of its server, or path of its file.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self._shelf, self._address = shelf(address), address
        asking("store").state.setdefault(KEPT, []).append(self)

    def set(self, key: str, value: Any) -> None:
        """Store a value."""
        self._shelf.values[key] = value.encode() if isinstance(value, str) else bytes(value)
        self._told(key)

    def _told(self, key: str) -> None:
        runtime = asking("store").runtime
        for handle in self._shelf.waiting.pop(key, ()):
            runtime.finish(handle)

    def get(self, key: str) -> bytes:
        """Read a value; wait until it is set."""
        self.wait([key])
        return self._shelf.values[key]

    def add(self, key: str, value: int) -> int:
        """Add to a number, initially 0."""
        found = int(self._shelf.values.get(key, b"0")) + int(value)
        self.set(key, str(found))
        return found

    def append(self, key: str, value: Any) -> None:
        """Append a value to another one."""
        more = value.encode() if isinstance(value, str) else bytes(value)
        self.set(key, self._shelf.values.get(key, b"") + more)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Store a value if the current one is as expected."""
        expected, desired = (
            each.encode() if isinstance(each, str) else bytes(each) for each in (expected, desired)
        )
        known = self._shelf.values.get(key)
        if known is None and expected:
            return bytes(expected)
        if known in (None, expected):
            self.set(key, desired)
            return bytes(desired)
        return known

    def check(self, keys: Any) -> bool:
        """Return whether all keys exist."""
        return all(key in self._shelf.values for key in keys)

    def wait(self, keys: Any, timeout: Any = None) -> None:
        """Wait until all keys exist."""
        rank = asking("store")
        for key in keys:
            if key not in self._shelf.values:
                rank.settle()
                asked = CallSignature("store.get", more=repr(key))
                handle = Handle(rank.rank, asked, lambda: f"at {self._address} for it to be set")
                self._shelf.waiting.setdefault(key, []).append(handle)
                rank.runtime.wait(handle)

    def delete_key(self, key: str) -> bool:
        """Delete a key."""
        return self._shelf.values.pop(key, None) is not None

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self._shelf.values)

    def multi_get(self, keys: Any) -> list[bytes]:
        """Read several values."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Any, values: Any) -> None:
        """Store several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Return True: all functions are available."""
        return True

    def set_timeout(self, timeout: Any) -> None:
        """Accept a timeout without effect: a missing rank is reported as a deadlock."""

    @property
    def timeout(self) -> Any:
        """The default of torch."""
        return dist.constants.default_pg_timeout

    def clone(self) -> VirtualStore:
        """Return another handle of the same store."""
        return VirtualStore(self._address)


class Stores(RankLocal):
    """torch's rendezvous methods, and the classes of its stores."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        handlers = import_module("torch.distributed.rendezvous")._rendezvous_handlers
        before, shelves = dict(handlers), dict(_SHELVES)
        classes = dist.TCPStore, dist.FileStore
        for scheme in ("env", "tcp", "file"):
            handlers[scheme] = _met
        dist.TCPStore, dist.FileStore = ProgramTCPStore, ProgramFileStore
        try:
            yield
        finally:
            dist.TCPStore, dist.FileStore = classes
            handlers.clear()
            handlers.update(before)
            _SHELVES.clear()
            _SHELVES.update(shelves)


class ProgramTCPStore(VirtualStore):
    """``dist.TCPStore``."""

    def __init__(self, host_name: str, port: int, *given: Any, **named: Any) -> None:
        super().__init__(f"{host_name}:{port}")
        self.host, self.port = host_name, port


class ProgramFileStore(VirtualStore):
    """``dist.FileStore``."""

    def __init__(self, file_name: str, *given: Any, **named: Any) -> None:
        super().__init__(str(file_name))
        self.path = str(file_name)


def _met(url: str, **named: Any) -> Iterator[tuple[VirtualStore, int, int]]:
    """Yield the rendezvous of the ranks, without waiting."""
    rank = asking("init_process_group")
    address, _, query = url.partition("?")
    given = dict(pair.split("=", 1) for pair in query.split("&") if pair)
    for name, key in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
        if name not in given and url.startswith("env:"):
            if key not in rank.environ:
                raise ValueError(
                    "Error initializing torch.distributed using env:// rendezvous: environment "
                    f"variable {key} expected, but not set"
                )
            given[name] = rank.environ[key]
        elif name not in given:
            raise ProgramError(f"init_process_group: {address} needs {name} as well; give both.")
    yield VirtualStore(address), int(given["rank"]), int(given["world_size"])
    raise RuntimeError("Unable to perform rerendezvous using this method")
