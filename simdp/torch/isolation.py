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
from functools import partial
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
from simdp.torch.ranks import MAIN, MARKS, Patches, Rank, RankLocal, Swapped, asking, current

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


KINDS = "backends"
"""Key of the backend of each type of device in the group that a rank creates."""

World = tuple[dict[str, Any], dict[str, Any]]
"""Attributes of torch's object, and its variables."""


class Worlds(Swapped):
    """Each rank's groups."""

    key = "world"

    def patch(self, patches: Patches) -> None:
        super().patch(patches)
        plugins = {name.upper(): c10d.Backend._BackendPlugin(_made, True) for name in BACKENDS}
        patches.update(c10d.Backend._plugins, plugins)
        patches.wrap(c10d, "_new_process_group_helper", _with_backends)
        # since torch 2.14
        patches.wrap(c10d, "_maybe_attach_flight_recorder", lambda original, *args: None)
        _set_thread_isolation_mode(True)
        patches.undo(partial(_set_thread_isolation_mode, False))

    def fresh(self, rank: Rank) -> World:
        empty = {name: None if now is None else type(now)() for name, now in _variables().items()}
        return vars(type(c10d._world)()).copy(), empty

    def seen(self) -> World:
        return dict(vars(c10d._world)), _variables()

    def show(self, state: World) -> None:
        world, variables = state
        vars(c10d._world).clear()
        vars(c10d._world).update(world)
        for name, value in variables.items():
            setattr(c10d, name, value)


def _variables() -> dict[str, Any]:
    return {name: getattr(c10d, name) for name in NAMES}


def _with_backends(helper: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    config = c10d.BackendConfig(kwargs.get("backend") or args[3])
    asking("init_process_group").state[KINDS] = config.get_device_backend_map()
    return helper(*args, **kwargs)


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
    served = {kind: name for kind, name in rank.state[KINDS].items() if name in BACKENDS}
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


ProcessView = tuple[Any, ...]
"""Environment, arguments, main module, hook of exceptions and ``print``."""


class ProcessState(Swapped):
    """Each rank's ``os.environ``, ``sys.argv``, ``__main__``, ``sys.excepthook`` and ``print``.

    ``os.environ`` stays the same object with changing contents, so that all references see those of
    the running rank.
    """

    key = "process"

    def patch(self, patches: Patches) -> None:
        patches.undo(partial(os.chdir, Path.cwd()))
        super().patch(patches)
        patches.wrap(signal, "signal", _set_handler, current)
        patches.wrap(signal, "getsignal", _get_handler, current)
        for name in ("stdout", "stderr"):
            lines = Lines(getattr(sys, name), name)
            patches.put(sys, name, lines)
            patches.undo(lines.rest)

    def fresh(self, rank: Rank) -> ProcessView:
        encode = cast(Any, os.environ).encodekey
        data = {encode(key): encode(value) for key, value in rank.environ.items()}
        main = rank.state.pop(MAIN, None)
        return data, rank.arguments, main, sys.excepthook, builtins.print

    def seen(self) -> ProcessView:
        data, main = cast(Any, os.environ)._data, sys.modules[MAIN]
        return data, sys.argv, main, sys.excepthook, builtins.print

    def show(self, state: ProcessView) -> None:
        cast(Any, os.environ)._data, sys.argv, main, sys.excepthook, builtins.print = state
        if main is not None:
            sys.modules[MAIN] = main


HANDLERS = "signals"
"""Key of a rank's handlers by signal; no signal is sent to a rank."""


def _set_handler(rank: Rank, real: Any, signalnum: Any, handler: Any) -> Any:
    handlers = rank.state.setdefault(HANDLERS, {})
    before = handlers.get(int(signalnum), signal.getsignal(signalnum))
    handlers[int(signalnum)] = handler
    return before


def _get_handler(rank: Rank, real: Any, signalnum: Any) -> Any:
    return rank.state.get(HANDLERS, {}).get(int(signalnum), real(signalnum))


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
        mark = rank.state.get(MARKS, {}).get(self._name, "")
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
            mark = rank.state.get(MARKS, {}).get(self._name, "")
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

    def patch(self, patches: Patches) -> None:
        for name in ("time", "perf_counter", "monotonic"):
            begin = getattr(time, name)()
            patches.wrap(time, name, partial(_look, begin, float), current)
            nanoseconds = partial(_look, begin, lambda seconds: int(seconds * 1e9))
            patches.wrap(time, f"{name}_ns", nanoseconds, current)
        patches.wrap(time, "sleep", _sleep, current)


def _look(begin: float, shown: Callable[[float], float], rank: Rank, real: Any) -> float:
    count = rank.state[LOOKS] = rank.state.get(LOOKS, 0) + 1
    return shown(begin + rank.clock + count * LOOK)


def _sleep(rank: Rank, real: Any, seconds: float, /) -> None:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    rank.runtime.pass_until(rank.rank, rank.settle() + seconds)


class Loading(RankLocal):
    """DataLoaders with workers."""

    def patch(self, patches: Patches) -> None:
        before = dataloader._MultiProcessingDataLoaderIter

        class Chosen(type):
            def __call__(cls, loader: Any) -> Any:
                return (before if current() is None else Workers)(loader)

            def __instancecheck__(cls, instance: Any) -> bool:
                return isinstance(instance, (before, Workers))

        patches.put(dataloader, before.__name__, Chosen(before.__name__, (), {}))


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


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class VirtualStore(dist.Store):
    """A store of a program.

    Parameters
    ----------
    address : str
        Of its server, or path of its file.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        rank, self._address = asking("store"), address
        self._shelf = _SHELVES.setdefault((id(rank.runtime), address), Shelf())
        rank.state.setdefault(KEPT, []).append(self)

    def set(self, key: str, value: Any) -> None:
        """Store a value."""
        self._shelf.values[key] = _bytes(value)
        runtime = asking("store").runtime
        for handle in self._shelf.waiting.pop(key, ()):
            runtime.finish(handle)

    def get(self, key: str) -> bytes:
        """Read a value; wait until it is set."""
        self.wait([key])
        return self._shelf.values[key]

    def add(self, key: str, value: int) -> int:
        """Add to a number, initially 0."""
        total = int(self._shelf.values.get(key, b"0")) + int(value)
        self.set(key, str(total))
        return total

    def append(self, key: str, value: Any) -> None:
        """Append a value to another one."""
        self.set(key, self._shelf.values.get(key, b"") + _bytes(value))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Store a value if the current one is as expected."""
        expected, desired = _bytes(expected), _bytes(desired)
        now = self._shelf.values.get(key)
        if now is None and expected:
            return expected
        if now in (None, expected):
            self.set(key, desired)
            return desired
        return now

    def check(self, keys: Any) -> bool:
        """Return whether all keys exist."""
        return all(key in self._shelf.values for key in keys)

    def wait(self, keys: Any, timeout: Any = None) -> None:
        """Wait until all keys exist."""
        rank = asking("store")
        for key in keys:
            if key not in self._shelf.values:
                rank.settle()
                call = CallSignature("store.get", more=repr(key))
                handle = Handle(rank.rank, call, lambda: f"at {self._address} for it to be set")
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

    def patch(self, patches: Patches) -> None:
        handlers = import_module("torch.distributed.rendezvous")._rendezvous_handlers
        patches.update(_SHELVES, {})
        patches.update(handlers, dict.fromkeys(("env", "tcp", "file"), _met))
        patches.put(dist, "TCPStore", ProgramTCPStore)
        patches.put(dist, "FileStore", ProgramFileStore)


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
    arguments = dict(pair.split("=", 1) for pair in query.split("&") if pair)
    places = []
    for name, key in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
        if name not in arguments and not url.startswith("env:"):
            raise ProgramError(f"init_process_group: {address} needs {name} as well; give both.")
        if name not in arguments and key not in rank.environ:
            raise ValueError(
                "Error initializing torch.distributed using env:// rendezvous: environment "
                f"variable {key} expected, but not set"
            )
        places.append(int(arguments.get(name, rank.environ.get(key, ""))))
    yield VirtualStore(address), places[0], places[1]
    raise RuntimeError("Unable to perform rerendezvous using this method")
