"""Process groups: torch's, whose collectives are carried out here and timed by the engine.

A group takes the place of the C++ one, so that `DistributedDataParallel`, FSDP and all else of
torch that talks to groups, from Python or from C++, talks to it. Its methods are called as torch
calls them, under the names of older versions as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist

from simdp.engine.programs.calls import NOTHING, Asked, Given
from simdp.engine.programs.groups import Group
from simdp.torch import carrying
from simdp.torch.adding import reduction
from simdp.torch.arguments import flat_tensors, listed, lists, message, op_of
from simdp.torch.buffers import Buffer, device_type, of
from simdp.torch.carrying import Exchange
from simdp.torch.ranks import Rank
from simdp.torch.works import Work


class Virtual(dist.ProcessGroup):
    """A group of virtual ranks.

    Parameters
    ----------
    rank : Rank
        The member whose this object is.
    groups : dict of str to Group
        What times it, by the type of device that tensors are on.
    backend : str
        As the script named it.
    """

    def __init__(self, rank: Rank, groups: dict[str, Group], backend: str) -> None:
        self._group = next(iter(groups.values()))
        self._place, self._size = self._group.place[rank.rank], len(self._group.ranks)
        super().__init__(self._place, self._size)
        self._member, self._groups, self._backend = rank, groups, backend
        self._batch: list[Work] | None = None
        self._calls = 0

    # What torch asks of a group -----------------------------------------------------------------

    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def rank(self) -> int:
        """Place of the member."""
        return self._place

    def name(self) -> str:
        """Name of the backend."""
        return self._backend

    _get_backend_name = name

    def getBackendName(self) -> str:  # noqa: N802
        """Name for C++, which takes a group named gloo for its own."""
        return "simdp"

    @property
    def group_name(self) -> str:
        """Name by which torch registers the group."""
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
        """Connect, as everybody is."""

    def shutdown(self) -> None:
        """Give the group up."""

    abort = shutdown

    def set_timeout(self, timeout: Any) -> None:
        """Take a timeout, which nothing exceeds: what never comes is reported as a deadlock."""

    _add_ephemeral_timeout = _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def _set_sequence_number_for_group(self) -> None:
        """Begin to count, as from the start."""

    def __repr__(self) -> str:
        return f"ProcessGroup({self._backend}, rank {self._place} of {self._size})"

    # How a call is made -------------------------------------------------------------------------

    def _timed(self, tensor: Any) -> Group:
        """Find what times a call on a tensor."""
        if len(self._groups) > 1:
            return self._groups.get(device_type(tensor), self._group)
        return self._group

    def _call(
        self,
        name: str,
        collective: str,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        exchange: Exchange,
        tensors: Sequence[Any],
        root: int = 0,
        more: str = "",
        shape: tuple[int, ...] | None = None,
    ) -> Work:
        """Issue a collective of the engine; what all ranks must say is dtype, shape and more."""
        rank, first = self._member, (*inputs, *outputs)[0]
        clock, self._calls = rank.issue(), self._calls + 1
        dtype = str(first.dtype).removeprefix("torch.")
        asked = Asked(name, dtype, (first.size,) if shape is None else shape, more)
        given = Given(cast(Any, inputs), cast(Any, outputs))
        real = first.real

        def carried(given: Sequence[Given]) -> None:
            if real:
                exchange(given)

        handle = self._timed(tensors[0]).issue(
            rank.rank, clock, asked, given, collective, "SUM", root, False, carried
        )
        return self._begun(Work(rank, [handle], tensors))

    def _begun(self, work: Work) -> Work:
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _together(self, works: Sequence[Work], tensors: Sequence[Any]) -> Work:
        """One work of several calls."""
        handles = [handle for work in works for handle in work.handles]
        return Work(self._member, handles, tensors)

    # Collectives that add -----------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """Reduce the tensors of all ranks on all of them."""
        call = "all_reduce"
        given = listed(tensors)
        how = reduction(op_of(opts), call, given[0].dtype)
        memory, exchange = of(given, call), carrying.all_reduce(how)
        shape = (sum(each.size for each in memory),)
        return self._call(
            call, call, memory, memory, exchange, given, more=f"op={how}", shape=shape
        )

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None) -> Work:
        """Reduce the tensors of all ranks on one of them."""
        call, root = "reduce", opts.rootRank
        (tensor,) = listed(tensors)
        how = reduction(op_of(opts), call, tensor.dtype)
        memory = Buffer(tensor, call)
        outputs = [memory] if root == self._place else []
        exchange = carrying.reduce(how, root)
        more = f"root={self._group.ranks[root]}, op={how}"
        return self._call(call, call, [memory], outputs, exchange, [tensor], root, more)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Reduce the lists of all ranks, each member's piece on that member."""
        call = "reduce_scatter"
        (output,), (pieces,) = listed(outputs), lists(inputs)
        how = reduction(op_of(opts), call, output.dtype)
        memory, target = of(pieces, call), Buffer(output, call)
        exchange = carrying.reduce_scatter_list(how)
        return self._call(
            call, call, memory, [target], exchange, [output], more=f"op={how}", shape=(target.size,)
        )

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Reduce the tensors of all ranks, each member's piece on that member."""
        call = "reduce_scatter_tensor"
        how = reduction(op_of(opts), call, output.dtype)
        source, target = Buffer(input, call), Buffer(output, call)
        if source.size != target.size * self._size:
            raise ValueError("input tensor must be the same size as output size times world size")
        exchange = carrying.reduce_scatter(how)
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
        (tensor,) = listed(tensors)
        memory = [Buffer(tensor, call)]
        inputs, outputs = (memory, []) if root == self._place else ([], memory)
        more = f"root={self._group.ranks[root]}"
        exchange = carrying.broadcast(root)
        return self._call(call, call, inputs, outputs, exchange, [tensor], root, more)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Collect the tensors of all ranks on all of them."""
        call = "all_gather"
        (targets,), (tensor,) = lists(outputs), listed(inputs)
        memory = of(targets, call)
        return self._call(
            call, call, [Buffer(tensor, call)], memory, carrying.all_gather, list(targets)
        )

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Collect the tensors of all ranks in one tensor on all of them."""
        call = "all_gather_into_tensor"
        source, target = Buffer(input, call), Buffer(output, call)
        if target.size != source.size * self._size:
            raise ValueError(
                "output tensor size must be equal to world_size times input tensor size"
            )
        return self._call(call, "all_gather", [source], [target], carrying.all_gather, [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Do the same for several tensors."""
        pairs = zip(outputs, inputs, strict=True)
        works = [self.all_gather_single(output, input) for output, input in pairs]
        return self._together(works, list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Collect several tensors of all ranks on all of them."""
        works = [
            self.allgather([[each[number] for each in outputs]], [tensor])
            for number, tensor in enumerate(inputs)
        ]
        return self._together(works, [tensor for each in outputs for tensor in each])

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Collect the tensors of all ranks on one of them."""
        call, root = "gather", opts.rootRank
        (tensor,) = listed(inputs)
        targets = list(outputs[0]) if root == self._place else []
        memory, source = of(targets, call), [Buffer(tensor, call)]
        more, exchange = f"root={self._group.ranks[root]}", carrying.gather(root)
        return self._call(call, call, source, memory, exchange, [*targets, tensor], root, more)

    def gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Collect the tensors of all ranks in one tensor on one of them."""
        pieces = list(output.chunk(self._size)) if opts.rootRank == self._place else []
        return self.gather([pieces], [input], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Give each rank its piece of one rank's list."""
        call, root = "scatter", opts.rootRank
        (output,) = listed(outputs)
        pieces = of(inputs[0], call) if root == self._place else []
        target = [Buffer(output, call)]
        more, exchange = f"root={self._group.ranks[root]}", carrying.scatter(root)
        shape = (target[0].size,)
        return self._call(call, call, pieces, target, exchange, [output], root, more, shape)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Send each rank its tensor of a list, and get one of each."""
        call = "all_to_all"
        targets, sources = of(outputs, call), of(inputs, call)
        return self._call(
            call, call, sources, targets, carrying.all_to_all, list(outputs), shape=()
        )

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        opts: Any = None,
    ) -> Work:
        """Send each rank its rows of a tensor, and get some of each."""
        call = "all_to_all_single"
        sources = of(carrying.rows(input, input_split_sizes, self._size), call)
        targets = of(carrying.rows(output, output_split_sizes, self._size), call)
        return self._call(
            call, "all_to_all", sources, targets, carrying.all_to_all, [output], shape=()
        )

    alltoall_base = all_to_all_single

    # Waiting, and messages ----------------------------------------------------------------------

    def barrier(self, opts: Any = None) -> Work:
        """Wait until all ranks have come here."""
        rank = self._member
        clock, self._calls = rank.issue(), self._calls + 1
        handle = self._group.issue(rank.rank, clock, Asked("barrier"), NOTHING, "barrier")
        return Work(rank, [handle], [torch.zeros(0)])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait until all ranks have come here; who never comes is named in the deadlock report."""
        if "gloo" not in self._backend and ":" not in self._backend:
            raise ValueError(
                "monitored_barrier requires a group with a CPU-capable backend (e.g. GLOO)."
            )
        self.barrier().wait()

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        """Send a tensor to a place of the group."""
        (tensor,), rank = listed(tensors), self._member
        memory, target = Buffer(tensor, "send"), self._group.ranks[dst]
        asked = message("send", memory, f"dst={target}", tag)
        clock, name = rank.issue(), self._group.name
        post = rank.runtime.messages.send
        handle = post(rank.rank, clock, asked, memory.array, target, tag, name)
        return self._begun(Work(rank, [handle], [tensor]))

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        """Receive a tensor from a place of the group."""
        return self._receive(tensors, self._group.ranks[src], tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receive a tensor from whoever sends first."""
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Any, source: int | None, tag: int) -> Work:
        (tensor,), rank = listed(tensors), self._member
        memory = Buffer(tensor, "recv")
        asked = message("recv", memory, f"src={source}", tag)
        clock, name = rank.issue(), self._group.name
        post = rank.runtime.messages.receive
        handle = post(rank.rank, clock, asked, memory.array, source, tag, name)
        return self._begun(Work(rank, [handle], [tensor], self._group.place))

    def _start_coalescing(self, device: Any = None) -> None:
        self._batch = []

    def _end_coalescing(self, device: Any = None) -> Work | None:
        works, self._batch = self._batch or [], None
        return self._together(works, flat_tensors(works)) if works else None
