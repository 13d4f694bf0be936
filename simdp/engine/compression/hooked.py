"""Hooked: the numbers of comm hooks that the user has written, on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simdp.arrays import Array
from simdp.engine.buffers import FlatBuffers
from simdp.errors import ProgramError, ScenarioError
from simdp.steps.own_hook import OwnHook
from simdp.strategies.comm_hooks.hook_file import (
    Future,
    GradBucket,
    Hook,
    HookError,
    called,
    content,
    read_hook,
    said,
)

PREFIX = "hook/"


class Hooked:
    """The states of all ranks, and what is on its way.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self.states: list[dict[str, Any]] = [{} for _ in range(world_size)]
        self._futures: dict[str, list[Future]] = {}
        self._functions: dict[tuple[str, str], Hook] = {}

    def call(
        self, hook: OwnHook, bucket: FlatBuffers, shapes: Mapping[str, tuple[int, ...]]
    ) -> FlatBuffers | None:
        """Call the function on every rank, one after the other.

        Returns
        -------
        FlatBuffers or None
            What they hand over; None where nothing travels, and the buckets have their content.

        Raises
        ------
        ProgramError
            If it raises, or does not do what it did with zeros.
        """
        found, n = list[Future](), len(bucket.flat)
        place = hook.path, hook.name
        if place not in self._functions:
            self._functions[place] = read_hook(Path(hook.path), hook.name)
        function = self._functions[place]
        inside = {name: shapes[name] for name in hook.bucket.names}
        for rank, flat in enumerate(bucket.flat):
            try:
                one = called(function, self.states[rank], GradBucket(flat, inside, rank, n))
                if isinstance(one, Future):
                    _check(hook, one)
                    found.append(one)
                elif hook.sent is not None:
                    raise HookError("calls no all_reduce, but has called one for zeros.")
                else:
                    flat[...] = one
            except Exception as error:
                raise _problem(hook, rank, error) from None
        if hook.sent is None:
            return None
        self._futures[hook.label] = found
        sent = FlatBuffers({"sent": (hook.sent.num_elements,)}, n, found[0].sent.dtype)
        for flat, future in zip(sent.flat, found, strict=True):
            flat[...] = future.sent
        return sent

    def end(self, hook: OwnHook, bucket: FlatBuffers, summed: FlatBuffers) -> None:
        """Let every rank's function make the bucket's content of the sum.

        Raises
        ------
        ProgramError
            If it raises, or ends at something else.
        """
        futures = self._futures.pop(hook.label)
        for rank, (future, total) in enumerate(zip(futures, summed.flat, strict=True)):
            flat = bucket.flat[rank]
            try:
                flat[...] = content(future.result(total), flat)
            except Exception as error:
                raise _problem(hook, rank, error) from None

    def state_dict(self) -> dict[str, Array]:
        """What is in every rank's state.

        Raises
        ------
        ScenarioError
            If something is no number and no array.
        """
        found = {}
        for rank, state in enumerate(self.states):
            for key, value in state.items():
                array = np.asarray(value)
                if not isinstance(key, str) or array.dtype.kind == "O":
                    raise ScenarioError(
                        [
                            f"strategy.comm_hook: the state of rank {rank} holds {key!r}, which "
                            "cannot be saved; keep arrays and numbers by names."
                        ]
                    )
                found[f"{rank}/{PREFIX}{key}"] = array
        return found

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Take up the states; a rank that was not there begins with nothing."""
        for name, value in arrays.items():
            rank, _, key = name.partition("/")
            if key.startswith(PREFIX) and int(rank) < len(self.states):
                kept: Any = np.array(value) if np.ndim(value) else np.asarray(value).item()
                self.states[int(rank)][key[len(PREFIX) :]] = kept


def _check(hook: OwnHook, future: Future) -> None:
    """Refuse what is not of the size that the clock was told."""
    got = f"{future.sent.size} {future.sent.dtype.name}"
    told = "nothing" if hook.sent is None else f"{hook.sent.num_elements} {hook.sent.dtype}"
    if got != told:
        raise HookError(
            f"hands {got} to all_reduce, but of zeros {told}; what travels must follow from the "
            "size of the bucket alone."
        )


def _problem(hook: OwnHook, rank: int, error: Exception) -> ProgramError:
    return ProgramError(f"rank {rank}, {hook.path}{said(error, hook.path)}")
