"""Works: what torch's asynchronous calls give back, and how their futures come to an end.

Torch waits for futures in C++, where no other rank could go on meanwhile. So every work of a rank
whose future somebody may hold is remembered, and before the rank would block, the rank waits here
for its works until the future is there. In a backward pass that is at its end, before
DistributedDataParallel looks at its buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Work as TorchWork
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from simdp.engine.programs.calls import Handle
from simdp.errors import ProgramError
from simdp.torch.parts import Part
from simdp.torch.ranks import Rank, asking, current

AT_ONCE = "at once"
"""Under which a rank says that futures must be over before anybody can wait for them."""

MAX_POLLS = 100_000
"""Questions at one instant after which a script is taken to wait for time that never passes."""


class Work(TorchWork):
    """A call of a rank that is under way.

    Parameters
    ----------
    rank : Rank
        Whose.
    handles : sequence of Handle
        What it waits for.
    tensors : sequence of Tensor
        What it leaves.
    places : dict of int to int, optional
        Of a receive: the place in the group of each rank.
    """

    def __init__(
        self,
        rank: Rank,
        handles: Sequence[Handle],
        tensors: Sequence[Any],
        places: dict[int, int] | None = None,
    ) -> None:
        super().__init__()
        self._rank, self.handles, self.tensors = rank, handles, tensors
        self._places = places or {}
        self._future: Any = None
        self._polls, self._polled_at = 0, 0.0

    def wait(self, timeout: Any = None) -> bool:
        """Let the rank wait until the call is over; True then."""
        self._mine("wait")
        self._rank.wait(self.handles)
        self.conclude()
        return True

    def over(self) -> bool:
        """Whether the call is over by now."""
        return all(handle.done for handle in self.handles)

    def conclude(self) -> None:
        """Give the future its value, if somebody has asked for it; the call must be over."""
        if self._future is not None and self in self._rank.waits:
            del self._rank.waits[self]
            self._future.set_result(list(self.tensors))

    def is_completed(self) -> bool:
        """Tell whether the call is over by now, at the rank's clock.

        Raises
        ------
        ProgramError
            If a script does nothing but ask.
        """
        self._mine("is_completed")
        now = self._rank.settle()
        self._polls = self._polls + 1 if now == self._polled_at else 0
        self._polled_at = now
        if self._polls > MAX_POLLS:
            raise ProgramError(
                f"is_completed of {self.handles[0].asked} was asked {MAX_POLLS:,} times at the "
                "same instant; virtual time passes in what computes and what waits only, so call "
                "wait()."
            )
        return self.over()

    def is_success(self) -> bool:
        """Tell that the call has not failed."""
        return True

    def exception(self) -> None:
        """Tell that there is none."""
        return

    def result(self) -> list[Any]:
        """The tensors that the call leaves."""
        self.wait()
        return list(self.tensors)

    def synchronize(self) -> None:
        """Do the same as `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """Do the same as `wait`."""
        self.wait()

    def source_rank(self) -> int:
        """The place of the rank that a receive got its message from; -1 of other calls."""
        return self._places.get(self.handles[0].source, -1)

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Make a future of the list of tensors; there is one of them."""
        if self._future is None:
            self._mine("get_future")
            self._future = torch.futures.Future()
            self._rank.waits[self] = None
            if self._rank.state.get(AT_ONCE):
                self.wait()
            elif self.over():
                self.conclude()
            else:
                _at_the_end_of_backward(self._rank)
        return self._future

    def get_future_result(self) -> Any:
        """Make a future that says that the call has succeeded."""
        return self.get_future().then(lambda _: 0)

    def _mine(self, call: str) -> None:
        rank = asking(call)
        if rank is not self._rank:
            raise ProgramError(
                f"{call}: rank {rank.rank} asks for {self.handles[0].asked} of rank "
                f"{self._rank.rank}; let each rank wait for its own calls."
            )


def _at_the_end_of_backward(rank: Rank) -> None:
    """Have the rank's futures end with the backward pass that is under way, if there is one."""
    task = torch._C._current_graph_task_id()
    if task not in (-1, rank.state.get("backward")):
        rank.state["backward"] = task
        torch.autograd.Variable._execution_engine.queue_callback(conclude_all)


def conclude_all() -> None:
    """Let the rank wait for all works that have a future."""
    rank = asking("backward")
    rank.state.pop("backward", None)
    while rank.waits:
        next(iter(rank.waits)).wait()


def _pump(future: Any, block: bool) -> None:
    """Let futures of the rank come to their end: those that are over, or until this one is."""
    rank = current()
    if rank is None:
        return
    for work in list(rank.waits):
        if work.over():
            work.conclude()
    while block and rank.waits and not _DONE(future):
        next(iter(rank.waits)).wait()


_DONE = torch._C.Future.done


class Futures(Part):
    """Torch's futures, whose waiting lets other ranks go on."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        kind = torch._C.Future
        wait, done = kind.wait, kind.done

        def waiting(self: Any) -> Any:
            _pump(self, block=True)
            return wait(self)

        def asked(self: Any) -> bool:
            _pump(self, block=False)
            return bool(done(self))

        kind.wait, kind.done = waiting, asked
        builtin = DistributedDataParallel._register_builtin_comm_hook
        DistributedDataParallel._register_builtin_comm_hook = _in_python
        delayed = dist.Reducer._delay_all_reduce

        def at_once(reducer: Any) -> None:
            """Reduce all buckets of a static graph's first step, which C++ then waits for."""
            rank = asking("backward")
            rank.state[AT_ONCE] = True
            try:
                delayed(reducer)
            finally:
                del rank.state[AT_ONCE]

        dist.Reducer._delay_all_reduce = at_once
        try:
            yield
        finally:
            kind.wait, kind.done = wait, done
            DistributedDataParallel._register_builtin_comm_hook = builtin
            dist.Reducer._delay_all_reduce = delayed


def _in_python(model: Any, comm_hook_type: Any) -> None:
    """Register a hook of C++ as the same one of Python, since C++ takes no futures of ours."""
    kinds = dist.BuiltinCommHookType
    hooks = {
        kinds.ALLREDUCE: default_hooks.allreduce_hook,
        kinds.FP16_COMPRESS: default_hooks.fp16_compress_hook,
    }
    model.register_comm_hook(None, hooks[comm_hook_type])
