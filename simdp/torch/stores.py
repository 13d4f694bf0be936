"""Stores: the keys and values by which torch's ranks find each other.

Ranks of a program are together anyway: one dictionary stands for the server of each address. Who
waits for a key lets other ranks go on, and no time passes but what they take.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch.distributed as dist

from simdp.engine.programs.calls import Asked, Handle
from simdp.errors import ProgramError
from simdp.torch.parts import Part
from simdp.torch.ranks import asking

KEPT = "stores"
"""Under which a rank keeps its stores: C++, which calls them, keeps nothing of Python."""


class Shelf:
    """What is kept at an address, and who waits for it."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.waiting: dict[str, list[Handle]] = {}


_SHELVES: dict[tuple[int, str], Shelf] = {}
"""By program and address."""


def shelf(address: str) -> Shelf:
    """What the calling rank's program keeps at an address."""
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
        """Keep a value."""
        self._shelf.values[key] = value.encode() if isinstance(value, str) else bytes(value)
        self._told(key)

    def _told(self, key: str) -> None:
        runtime = asking("store").runtime
        for handle in self._shelf.waiting.pop(key, ()):
            runtime.finish(handle)

    def get(self, key: str) -> bytes:
        """Read a value; wait until it is there."""
        self.wait([key])
        return self._shelf.values[key]

    def add(self, key: str, value: int) -> int:
        """Add to a number, 0 to begin with."""
        found = int(self._shelf.values.get(key, b"0")) + int(value)
        self.set(key, str(found))
        return found

    def append(self, key: str, value: Any) -> None:
        """Put a value behind another one."""
        more = value.encode() if isinstance(value, str) else bytes(value)
        self.set(key, self._shelf.values.get(key, b"") + more)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Keep a value if it was another one before."""
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
        """Tell whether all keys are there."""
        return all(key in self._shelf.values for key in keys)

    def wait(self, keys: Any, timeout: Any = None) -> None:
        """Wait until all keys are there."""
        rank = asking("store")
        for key in keys:
            if key not in self._shelf.values:
                rank.settle()
                asked = Asked("store.get", more=repr(key))
                handle = Handle(rank.rank, asked, lambda: f"at {self._address} for it to be set")
                self._shelf.waiting.setdefault(key, []).append(handle)
                rank.runtime.wait(handle)

    def delete_key(self, key: str) -> bool:
        """Forget a key."""
        return self._shelf.values.pop(key, None) is not None

    def num_keys(self) -> int:
        """Number of keys."""
        return len(self._shelf.values)

    def multi_get(self, keys: Any) -> list[bytes]:
        """Read several values."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Any, values: Any) -> None:
        """Keep several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Tell that all is there."""
        return True

    def set_timeout(self, timeout: Any) -> None:
        """Take a timeout, which nothing exceeds: what never comes is reported as a deadlock."""

    @property
    def timeout(self) -> Any:
        """Torch's own default."""
        return dist.constants.default_pg_timeout

    def clone(self) -> VirtualStore:
        """Make another door to the same."""
        return VirtualStore(self._address)


class Stores(Part):
    """Torch's ways to meet, and the classes of its stores."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        handlers = import_module("torch.distributed.rendezvous")._rendezvous_handlers
        before, shelves = dict(handlers), dict(_SHELVES)
        classes = dist.TCPStore, dist.FileStore
        for scheme in ("env", "tcp", "file"):
            handlers[scheme] = _met
        dist.TCPStore, dist.FileStore = _tcp, _file
        try:
            yield
        finally:
            dist.TCPStore, dist.FileStore = classes
            handlers.clear()
            handlers.update(before)
            _SHELVES.clear()
            _SHELVES.update(shelves)


def _tcp(host_name: str, port: int, *given: Any, **named: Any) -> VirtualStore:
    return VirtualStore(f"{host_name}:{port}")


def _file(file_name: str, *given: Any, **named: Any) -> VirtualStore:
    return VirtualStore(str(file_name))


def _met(url: str, **named: Any) -> Iterator[tuple[VirtualStore, int, int]]:
    """Meet the other ranks, which are there already."""
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
