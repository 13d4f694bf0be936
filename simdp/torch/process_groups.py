"""Process groups of torch scripts.

torch waits for futures in C++, where no other rank could run meanwhile. Therefore works of a rank
with futures in use are stored, and before the rank would block, it waits here for its works until
the future is done. In a backward pass that is at its end, before DistributedDataParallel reads its
buckets.

Collective functions are called once all ranks of a group have made the call, with the arguments of
each place.

A group replaces the C++ one, so that `DistributedDataParallel`, FSDP and all other users of groups
in torch, from Python or from C++, use it. Its methods have torch's signatures, also under the names
of older versions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import Work as TorchWork
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from simdp.engine.programs.groups import ALONE, EXCHANGES, Exchange, ProgramGroup
from simdp.engine.programs.records import (
    NOTHING,
    CallArguments,
    CallSignature,
    Handle,
    Polls,
    deliver,
)
from simdp.torch.buffers import (
    Buffer,
    Reduction,
    device_type,
    lists,
    message,
    of,
    op_of,
    reduce_into,
    reduction,
)
from simdp.torch.kernels import as_list
from simdp.torch.ranks import Patches, Rank, RankLocal, asking, current

# Works --------------------------------------------------------------------------------------------

AT_ONCE = "at once"
"""Key of a rank whose futures must be complete before anything can wait for them."""


BACKWARD = "backward"
"""Key of the backward pass at whose end a rank's futures are completed."""

COUNTED = "counted ranks"
"""Key of a rank's pending count of the ranks that have not joined."""


class Work(TorchWork):
    """A pending call of a rank, with the calls to wait for, ``handles``, and the result.

    Of a receive, ``places`` are the places in the group of each rank.
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
        self._polls = Polls()

    def wait(self, timeout: Any = None) -> bool:
        """Block the rank until the call is complete; returns True."""
        self._mine("wait")
        self._rank.wait(self.handles)
        self.conclude()
        return True

    def over(self) -> bool:
        """Return whether the call is complete."""
        return all(handle.done for handle in self.handles)

    def conclude(self) -> None:
        """Set the value of the future, if it is in use; the call must be complete."""
        if self._future is not None and self in self._rank.waits:
            del self._rank.waits[self]
            self._future.set_result(list(self.tensors))

    def is_completed(self) -> bool:
        """Return whether the call is complete, at the rank's clock.

        Raises
        ------
        ProgramError
            If a script only polls.
        """
        self._mine("is_completed")
        advice = "what computes and what waits only, so call wait()"
        self._polls.add(self._rank.settle(), self.handles[0], advice)
        return self.over()

    def is_success(self) -> bool:
        """Return that the call has not failed."""
        return True

    def exception(self) -> None:
        """Return that there is none."""
        return

    def result(self) -> list[Any]:
        """Return the call's result tensors."""
        self.wait()
        return list(self.tensors)

    def synchronize(self) -> None:
        """Do the same as `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """Do the same as `wait`."""
        self.wait()

    def source_rank(self) -> int:
        """Return the place of a received message's sender; -1 for other calls."""
        return self._places.get(self.handles[0].source, -1)

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return the only future of the list of tensors."""
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
        """Return a future that reports success."""
        return self.get_future().then(lambda _: 0)

    def _mine(self, call: str) -> None:
        self.handles[0].check_owner(call, asking(call).rank)


def _at_the_end_of_backward(rank: Rank) -> None:
    """Complete the rank's futures at the end of the current backward pass, if there is one."""
    task = torch._C._current_graph_task_id()
    if task not in (-1, rank.state.get(BACKWARD)):
        rank.state[BACKWARD] = task
        torch.autograd.Variable._execution_engine.queue_callback(conclude_all)


def conclude_all() -> None:
    """Block the rank until all works with a future are complete."""
    rank = asking("backward")
    rank.state.pop(BACKWARD, None)
    while rank.waits:
        next(iter(rank.waits)).wait()


def _pump(future: Any, block: bool) -> None:
    """Complete futures of the rank: those that are due, or with ``block`` until this one is."""
    rank = current()
    if rank is None:
        return
    for work in list(rank.waits):
        if work.over():
            work.conclude()
    while block and rank.waits and not _DONE(future):
        next(iter(rank.waits)).wait()


_DONE = torch._C.Future.done


class Futures(RankLocal):
    """torch's futures, with waits that let other ranks run."""

    def patch(self, patches: Patches) -> None:
        patches.wrap(torch._C.Future, "wait", partial(_pumped, True))
        patches.wrap(torch._C.Future, "done", partial(_pumped, False))
        patches.wrap(DistributedDataParallel, "_register_builtin_comm_hook", _in_python)
        patches.wrap(dist.Reducer, "_delay_all_reduce", _at_once)
        patches.wrap(dist.Reducer, "_set_forward_pass_work_handle", _kept)


def _pumped(block: bool, real: Any, future: Any) -> Any:
    _pump(future, block)
    return real(future)


def _at_once(delayed: Any, reducer: Any) -> None:
    """Reduce all buckets of a static graph's first step, which C++ then waits for."""
    rank = asking("backward")
    rank.state[AT_ONCE] = True
    try:
        delayed(reducer)
    finally:
        del rank.state[AT_ONCE]


def _kept(real: Any, reducer: Any, work: Any, static: bool) -> None:
    """Keep Join's count of ranks: C++ calls its methods only while Python has it."""
    asking("forward").state[COUNTED] = work
    real(reducer, work, static)


def _in_python(real: Any, model: Any, comm_hook_type: Any) -> None:
    """Register a C++ hook as the same hook in Python, since C++ accepts no futures of simdp."""
    kinds = dist.BuiltinCommHookType
    hooks = {
        kinds.ALLREDUCE: default_hooks.allreduce_hook,
        kinds.FP16_COMPRESS: default_hooks.fp16_compress_hook,
    }
    model.register_comm_hook(None, hooks[comm_hook_type])


# Carrying -----------------------------------------------------------------------------------------


def all_reduce(how: Reduction) -> Exchange:
    """Reduce on all ranks; several tensors of a rank count as one, as in gloo."""

    def carry(calls: Sequence[CallArguments]) -> None:
        inputs = [Joined(call.inputs) for call in calls]
        reduce_into("all_reduce", inputs, [buffer.array for buffer in inputs], how)
        for buffer in inputs:
            buffer.part()

    return carry


class Joined:
    """Several buffers of one dtype as one."""

    def __init__(self, buffers: Sequence[Any]) -> None:
        self._buffers, self.dtype = buffers, buffers[0].dtype
        arrays = [buffer.array for buffer in buffers]
        self.array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        self.size = self.array.size

    def part(self) -> None:
        """Copy its pieces into the buffers."""
        if len(self._buffers) > 1:
            ends = np.cumsum([buffer.size for buffer in self._buffers])[:-1]
            for buffer, piece in zip(self._buffers, np.split(self.array, ends), strict=True):
                buffer.array[...] = piece


def reduce(how: Reduction, root: int) -> Exchange:
    """Reduce on one rank; the others keep their values."""

    def carry(calls: Sequence[CallArguments]) -> None:
        inputs: list[Any] = [call.inputs[0] for call in calls]
        reduce_into("reduce", inputs, [inputs[root].array], how, root)

    return carry


def reduce_scatter(how: Reduction) -> Exchange:
    """Reduce like an all_reduce; every rank keeps its piece."""

    def carry(calls: Sequence[CallArguments]) -> None:
        inputs: list[Any] = [call.inputs[0] for call in calls]
        whole = np.empty_like(inputs[0].array)
        reduce_into("all_reduce", inputs, [whole], how)
        for call, piece in zip(calls, np.split(whole, len(calls)), strict=True):
            _output(call).array[...] = piece

    return carry


def reduce_scatter_list(how: Reduction) -> Exchange:
    """Reduce a tensor of each list on each rank."""

    def carry(calls: Sequence[CallArguments]) -> None:
        pieces = []
        for place, call in enumerate(calls):
            inputs: list[Any] = [other.inputs[place] for other in calls]
            pieces.append(np.empty_like(_output(call).array))
            reduce_into("reduce", inputs, [pieces[-1]], how, place)
        for call, piece in zip(calls, pieces, strict=True):
            _output(call).array[...] = piece

    return carry


def moved(collective: str, root: int = 0) -> Exchange:
    """Copy tensors by `simdp.engine.programs.groups.EXCHANGES`, once all ranks have called."""

    def carry(calls: Sequence[CallArguments]) -> None:
        copied = collective == "all_to_all"  # which may be in place
        arrays = [CallArguments(_arrays(a.inputs, copied), _arrays(a.outputs)) for a in calls]
        if collective == "all_gather" and len(arrays[0].outputs) == 1:
            arrays = [CallArguments(a.inputs, np.split(a.outputs[0], len(calls))) for a in arrays]
        values = EXCHANGES[collective](arrays, ALONE, "SUM", root)
        for call, value in zip(arrays, values, strict=True):
            deliver(value, call)

    return carry


def _arrays(buffers: Sequence[Any], copied: bool = False) -> list[Any]:
    return [buffer.array.copy() if copied else buffer.array for buffer in buffers]


def _output(call: CallArguments) -> Any:
    return call.outputs[0]


def rows(tensor: Any, sizes: Sequence[int] | None, n: int) -> list[Any]:
    """Cut a tensor's rows like `all_to_all_single`.

    Raises
    ------
    ValueError
        If the sizes do not fit.
    """
    count = tensor.shape[0] if tensor.dim() else 0
    if not sizes:
        if count % n:
            raise ValueError("Tensor's dim 0 does not divide equally across group size")
        sizes = [count // n] * n
    if len(sizes) != n or sum(sizes) != count:
        raise ValueError("Split sizes doesn't match total dim 0 size")
    ends = np.cumsum([0, *sizes]).tolist()
    return [tensor.detach()[begin:end] for begin, end in pairwise(ends)]


class Virtual(dist.ProcessGroup):
    """A group of virtual ranks, owned by member ``rank``.

    ``groups`` time calls, by the type of the tensors' device; ``backend`` is as named by the
    script.
    """

    def __init__(self, rank: Rank, groups: dict[str, ProgramGroup], backend: str) -> None:
        self._group = next(iter(groups.values()))
        self._place, self._size = self._group.place[rank.rank], len(self._group.ranks)
        super().__init__(self._place, self._size)
        self._member, self._groups, self._backend = rank, groups, backend
        self._batch: list[Work] | None = None
        self._calls = 0

    # Interface of a group -----------------------------------------------------------------------

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def rank(self) -> int:
        """Return the place of the member."""
        return self._place

    def name(self) -> str:
        """Return the name of the backend."""
        return self._backend

    _get_backend_name = name

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name for C++, which uses a group named gloo as its own."""
        return "simdp"

    @property
    def group_name(self) -> str:
        """Name under which torch registers the group."""
        return str(dist.distributed_c10d._world.pg_names[self])

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device("cpu")]

    def _get_backend(self, device: Any) -> Virtual:
        return self

    supports_splitting = False
    supports_coalescing = True
    supports_shrinking = False

    def eager_connect_single_device(self, device: Any) -> None:
        """Do nothing; all ranks are connected."""

    def shutdown(self) -> None:
        """Destroy the group."""

    abort = shutdown

    def set_timeout(self, timeout: Any) -> None:
        """Accept a timeout without effect: a missing rank is reported as a deadlock."""

    _add_ephemeral_timeout = _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing; counting starts at 0."""

    def __repr__(self) -> str:
        return f"ProcessGroup({self._backend}, rank {self._place} of {self._size})"

    # How a call is made -------------------------------------------------------------------------

    def _call(
        self,
        name: str,
        collective: str,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        exchange: Exchange | None,
        tensors: Sequence[Any],
        root: int = 0,
        more: str = "",
        shape: tuple[int, ...] | None = None,
    ) -> Work:
        """Issue a collective of the engine; all ranks must agree on dtype, shape and more."""
        rank, first = self._member, (*inputs, *outputs)[0]
        clock, self._calls = rank.issue(), self._calls + 1
        dtype = str(first.dtype).removeprefix("torch.")
        call = CallSignature(name, dtype, (first.size,) if shape is None else shape, more)
        buffers = CallArguments(cast(Any, inputs), cast(Any, outputs))
        carry = (exchange or moved(collective, root)) if first.real else (lambda calls: None)
        several = len(self._groups) > 1
        group = self._groups.get(device_type(tensors[0]), self._group) if several else self._group
        handle = group.issue(rank.rank, clock, call, buffers, collective, "SUM", root, False, carry)
        return self._begun(Work(rank, [handle], tensors))

    def _begun(self, work: Work) -> Work:
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _together(self, works: Sequence[Work], tensors: Sequence[Any]) -> Work:
        handles = [handle for work in works for handle in work.handles]
        return Work(self._member, handles, tensors)

    # Collectives that add -----------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """Reduce the tensors of all ranks on all of them."""
        call, tensors = "all_reduce", as_list(tensors)
        how = reduction(op_of(opts), call, tensors[0])
        memory, exchange = of(tensors, call), all_reduce(how)
        shape = (sum(buffer.size for buffer in memory),)
        return self._call(
            call, call, memory, memory, exchange, tensors, more=f"op={how}", shape=shape
        )

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None) -> Work:
        """Reduce the tensors of all ranks on one of them."""
        call, root = "reduce", opts.rootRank
        (tensor,) = as_list(tensors)
        how = reduction(op_of(opts), call, tensor)
        memory = Buffer(tensor, call)
        outputs = [memory] if root == self._place else []
        exchange = reduce(how, root)
        more = f"root={self._group.ranks[root]}, op={how}"
        return self._call(call, call, [memory], outputs, exchange, [tensor], root, more)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Reduce the lists of all ranks, each member's piece on that member."""
        call = "reduce_scatter"
        (output,), (pieces,) = as_list(outputs), lists(inputs)
        how = reduction(op_of(opts), call, output)
        memory, target = of(pieces, call), Buffer(output, call)
        exchange = reduce_scatter_list(how)
        return self._call(
            call, call, memory, [target], exchange, [output], more=f"op={how}", shape=(target.size,)
        )

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Reduce the tensors of all ranks, each member's piece on that member."""
        call = "reduce_scatter_tensor"
        how = reduction(op_of(opts), call, output)
        source, target = Buffer(input, call), Buffer(output, call)
        if source.size != target.size * self._size:
            raise ValueError("input tensor must be the same size as output size times world size")
        exchange = reduce_scatter(how)
        return self._call(
            call, "reduce_scatter", [source], [target], exchange, [output], more=f"op={how}"
        )

    _reduce_scatter_base = reduce_scatter_tensor = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Do the same for several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        works = [self.reduce_scatter_single(output, input, opts) for output, input in pairs]
        return self._together(works, list(outputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Collectives that move ----------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        """Copy one rank's tensor to all."""
        call, root = "broadcast", opts.rootRank
        (tensor,) = as_list(tensors)
        memory = [Buffer(tensor, call)]
        inputs, outputs = (memory, []) if root == self._place else ([], memory)
        more = f"root={self._group.ranks[root]}"
        return self._call(call, call, inputs, outputs, None, [tensor], root, more)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Collect the tensors of all ranks on all of them."""
        call = "all_gather"
        (targets,), (tensor,) = lists(outputs), as_list(inputs)
        memory = of(targets, call)
        return self._call(call, call, [Buffer(tensor, call)], memory, None, list(targets))

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Collect the tensors of all ranks in one tensor on all of them."""
        call = "all_gather_into_tensor"
        source, target = Buffer(input, call), Buffer(output, call)
        if target.size != source.size * self._size:
            raise ValueError(
                "output tensor size must be equal to world_size times input tensor size"
            )
        return self._call(call, "all_gather", [source], [target], None, [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Do the same for several tensors."""
        works = list(map(self.all_gather_single, outputs, inputs))
        return self._together(works, list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Collect several tensors of all ranks on all of them."""
        works = [
            self.allgather([[tensors[number] for tensors in outputs]], [tensor])
            for number, tensor in enumerate(inputs)
        ]
        return self._together(works, [tensor for tensors in outputs for tensor in tensors])

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Collect the tensors of all ranks on one of them."""
        call, root = "gather", opts.rootRank
        (tensor,) = as_list(inputs)
        targets = list(outputs[0]) if root == self._place else []
        memory, source = of(targets, call), [Buffer(tensor, call)]
        more = f"root={self._group.ranks[root]}"
        return self._call(call, call, source, memory, None, [*targets, tensor], root, more)

    def gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Collect the tensors of all ranks in one tensor on one of them."""
        pieces = list(output.chunk(self._size)) if opts.rootRank == self._place else []
        return self.gather([pieces], [input], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Send each rank its piece of one rank's list."""
        call, root = "scatter", opts.rootRank
        (output,) = as_list(outputs)
        pieces = of(inputs[0], call) if root == self._place else []
        target = [Buffer(output, call)]
        more, shape = f"root={self._group.ranks[root]}", (target[0].size,)
        return self._call(call, call, pieces, target, None, [output], root, more, shape)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Send each rank its tensor of a list, and receive one of each."""
        call = "all_to_all"
        targets, sources = of(outputs, call), of(inputs, call)
        return self._call(call, call, sources, targets, None, list(outputs), shape=())

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        opts: Any = None,
    ) -> Work:
        """Send each rank its rows of a tensor, and receive some of each."""
        call = "all_to_all_single"
        sources = of(rows(input, input_split_sizes, self._size), call)
        targets = of(rows(output, output_split_sizes, self._size), call)
        return self._call(call, "all_to_all", sources, targets, None, [output], shape=())

    alltoall_base = all_to_all_single

    # Waiting, and messages ----------------------------------------------------------------------

    def barrier(self, opts: Any = None) -> Work:
        """Wait until all ranks have arrived."""
        rank = self._member
        clock, self._calls = rank.issue(), self._calls + 1
        handle = self._group.issue(rank.rank, clock, CallSignature("barrier"), NOTHING, "barrier")
        return Work(rank, [handle], [torch.zeros(0)])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks have arrived; missing ranks are named in the deadlock report."""
        if "gloo" not in self._backend and ":" not in self._backend:
            raise ValueError(
                "monitored_barrier requires a group with a CPU-capable backend (e.g. GLOO)."
            )
        self.barrier().wait()

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        """Send a tensor to a place of the group."""
        return self._message("send", tensors, self._group.ranks[dst], tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        """Receive a tensor from a place of the group."""
        return self._message("recv", tensors, self._group.ranks[src], tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receive a tensor from any rank."""
        return self._message("recv", tensors, None, tag)

    def _message(self, name: str, tensors: Any, peer: int | None, tag: int) -> Work:
        (tensor,), rank = as_list(tensors), self._member
        memory, messages, sends = Buffer(tensor, name), rank.runtime.messages, name == "send"
        call = message(name, memory, f"{'dst' if sends else 'src'}={peer}", tag)
        post: Callable[..., Handle] = messages.send if sends else messages.receive
        handle = post(rank.rank, rank.issue(), call, memory.array, peer, tag, self._group.name)
        return self._begun(Work(rank, [handle], [tensor], None if sends else self._group.place))

    def _start_coalescing(self, device: Any = None) -> None:
        self._batch = []

    def _end_coalescing(self, device: Any = None) -> Work | None:
        works, self._batch = self._batch or [], None
        tensors = [tensor for work in works for tensor in work.tensors]
        return self._together(works, tensors) if works else None
