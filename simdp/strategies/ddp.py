"""DistributedDataParallel: a replica per rank, gradients averaged in buckets behind backward.

Mirrors torch's Reducer (torch 2.13: distributed.py, reducer.cpp). Left out are what a constructor
checks (one int64 per rank, the shapes) and the two broadcasts of indices when buckets are rebuilt:
a few hundred bytes, once.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, model_validator

from simdp.spec import Bool, Bytes, problem
from simdp.strategies.base import Pending, Rank, Script, Strategy, Tensor
from simdp.strategies.buckets import MiB, assign, limits, rules
from simdp.strategies.comm_hooks import AnyCommHook, NoHook
from simdp.strategies.inference import idle_option, infer_in_processes
from simdp.strategies.reducer import Averaging, Message, Reducer, copies_charged
from simdp.workload import Workload
from simdp.workload.layers import Parameter
from simdp.workload.sampling import chunk_sizes

BROADCAST_NBYTES = 250 * MiB
"""Parameters travel from rank 0 in buffers of this size (torch: _sync_module_states)."""

USED_MAP_ITEMSIZE = 4
"""find_unused_parameters sends one int32 per parameter after the last bucket."""

JOIN_ITEMSIZE = 4
"""Join's notices are all_reduces of one number."""


def _a_version(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"[1-9]\d?\.\d+(\.\d+)?", value):
        return value
    # Without quotes, YAML reads 1.10 as the number 1.1.
    raise problem(f'{value!r} is not a version of torch; write for example "1.4", with quotes.')


class DDP(Strategy):
    """``torch.nn.parallel.DistributedDataParallel``.

    Attributes
    ----------
    bucket_cap : float or None
        Limit of every bucket [bytes]. None is torch's default: 1 MiB for the first, then 25 MiB;
        0 puts every tensor into a bucket of its own.
    overlap : bool
        False waits for the whole backward pass before the first all_reduce.
    version : str or None
        Sort gradients as this version of torch did, such as ``"1.4"``; None is the newest. See
        `simdp.strategies.buckets.rules`.
    bucket_order : {"gradient_ready", "reverse_registration", "reverse_buckets"} or None
        How buckets are sorted. By readiness: the first iteration has one bucket with everything,
        then they are rebuilt in the order in which gradients became ready. In reverse order of
        registration, from the start. Or filled in order of registration and sent from the last,
        from the start: the small bucket then goes last. None is what ``version`` does, which is
        ``gradient_ready`` since torch 1.6 and ``reverse_buckets`` before.
    find_unused_parameters : bool
        Buckets in registration order, reversed, never rebuilt; and a map of the used parameters is
        reduced after the last bucket.
    gradient_as_bucket_view : bool
        Gradients live in their buckets, which then take no memory of their own and need no copies.
    charge_copies : bool or None
        Charge the copy of every gradient into its bucket and back, at the memory's bandwidth. None
        does as the cluster's overheads say.
    broadcast_buffers : bool
        Replace every rank's buffers, such as running means, by rank 0's before each forward that
        follows a reduction; and in the constructor and at the end of a join, with the parameters.
    comm_hook : CommHook
        What becomes of a bucket on its way: of `simdp.strategies.comm_hooks`.
    join : bool
        Ranks whose samples run out take part in the others' reductions with zeros, as under
        torch's Join; at the end of the epoch the last one to go on, of several the largest rank,
        makes every replica a copy of its own.
    divide_by_initial_world_size : bool
        With ``join``, average over all ranks; False averages over those that still have samples.
    no_sync : bool
        Reduce gradients once per step; False reduces them after every micro-step.
    weight_by_shard : bool
        Weight each rank's loss by its share of what counts, which restores the mean over the global
        batch where ranks have unequal shards. torch does not.
    """

    infers: ClassVar[bool] = True

    kind: Literal["ddp"] = "ddp"
    bucket_cap: Bytes | None = None
    overlap: Bool = True
    version: Annotated[str, BeforeValidator(_a_version)] | None = None
    bucket_order: Literal["gradient_ready", "reverse_registration", "reverse_buckets"] | None = None
    find_unused_parameters: Bool = False
    gradient_as_bucket_view: Bool = False
    charge_copies: Bool | None = None
    broadcast_buffers: Bool = True
    comm_hook: AnyCommHook = NoHook()
    join: Bool = False
    divide_by_initial_world_size: Bool = True
    no_sync: Bool = True
    weight_by_shard: Bool = False

    @model_validator(mode="after")
    def _divisor_needs_join(self) -> Self:
        if not (self.join or self.divide_by_initial_world_size):
            raise problem("divide_by_initial_world_size: false needs join: true.")
        return self

    def uses(self, world_size: int, workload: Workload, num_samples: int) -> list[tuple[str, int]]:
        if workload.mode == "inference":
            return [("broadcast", 0)]
        joiners = last_joiners(workload, world_size, num_samples) if self.join else []
        if self.join and self.broadcast_buffers and workload.graph.buffers:
            joiners = list(range(world_size))  # the last rank that has samples, in any micro-step
        notices = [("all_reduce", 0)] if self.join or self.find_unused_parameters else []
        sums = dict.fromkeys([*self.comm_hook.uses(), *notices])
        return [*sums, ("broadcast", 0), *(("broadcast", r) for r in joiners)]

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        if workload.mode == "inference":
            return idle_option(self, ("broadcast_buffers",))
        unused = workload.graph.unused
        if unused and not self.find_unused_parameters:
            return (
                f"find_unused_parameters: {unused[0]} gets no gradient, so that its bucket would "
                "never be complete; set find_unused_parameters: true."
            )
        parts = workload.samples_per_rank or []
        if len(set(parts)) > 1 and not self.join:
            return (
                "join: ranks have different numbers of samples, and those that run out would "
                "leave the others waiting; set join: true."
            )
        return self.comm_hook.problem_with(workload)

    def buckets(
        self, parameters: Sequence[Parameter], ready: Sequence[str], itemsize: int, iteration: int
    ) -> list[list[str]]:
        """Names in each bucket, in launch order.

        Parameters
        ----------
        parameters : sequence of Parameter
            In order of registration.
        ready : sequence of str
            Names in the order in which gradients become ready.
        itemsize : int
            Bytes per element.
        iteration : int
            From 0; the first one differs from the others.
        """
        torch = rules(self.version)
        caps = limits(self.bucket_cap, torch.equal_caps)
        order = self.bucket_order or ("gradient_ready" if torch.rebuilds else "reverse_buckets")
        if order == "reverse_buckets" or self.find_unused_parameters:
            return assign(parameters, itemsize, caps)[::-1]
        if order == "reverse_registration":
            return assign(parameters[::-1], itemsize, caps)
        if iteration == 0 and torch.one_at_first:
            return [[parameter.name for parameter in parameters]]
        if iteration == 0:
            return assign(parameters, itemsize, caps)[::-1]
        by_name = {parameter.name: parameter for parameter in parameters}
        return assign([by_name[name] for name in ready], itemsize, caps)

    def bucket_nbytes(
        self, parameters: Sequence[Parameter], ready: Sequence[str], itemsize: int
    ) -> list[int]:
        """Bytes of each bucket in a steady step, in launch order."""
        sizes = {p.name: p.num_elements * itemsize for p in parameters}
        layout = self.buckets(parameters, ready, itemsize, 1)
        return [sum(sizes[name] for name in names) for names in layout]

    def sent_nbytes(self, rank: Rank) -> list[int]:
        return self.bucket_nbytes(rank.parameters, rank.ready_order, rank.itemsize)

    def keeps_errors(self) -> bool:
        return self.comm_hook.keeps_errors()

    def gradients_stay(self) -> bool:
        return self.gradient_as_bucket_view

    def bucket_memory(
        self, parameters: Sequence[Parameter], ready: Sequence[str], itemsize: int
    ) -> float:
        if self.gradient_as_bucket_view:
            return 0.0
        return float(itemsize * sum(parameter.num_elements for parameter in parameters))

    def setup(self, rank: Rank) -> Script:
        """Make every replica a copy of rank 0's."""
        yield from self._send_model(rank, 0)
        yield from self.comm_hook.setup(rank)

    def _send_model(self, rank: Rank, root: int) -> Script:
        yield from send_all(rank, rank.parameters, "parameters", root)
        if self.broadcast_buffers:
            yield from send_buffers(rank, root)

    def train_step(self, rank: Rank) -> Script:
        yield from self.average_gradients(rank)
        yield from rank.update(rank.active() if self.join else None)
        if self.join and rank.closes_epoch:
            last_joiner = max(r for r, there in enumerate(rank.active()) if there)
            yield from self._send_model(rank, last_joiner)

    def average_gradients(self, rank: Rank) -> Script:
        """Forward and backward of a step, up to the optimizer's turn."""
        rank.scale_losses(by_shard=self.weight_by_shard)
        last = rank.num_micro_steps - 1
        for micro_step in range(rank.num_micro_steps):
            if self.join:
                yield from self._announce(rank)
            # torch: after a forward under no_sync the buffers are left alone.
            if self.broadcast_buffers and not (self.no_sync and micro_step):
                yield from send_buffers(rank, self._authority(rank, micro_step))
            yield from rank.forward(micro_step)
            if self.no_sync and micro_step < last:
                yield from rank.backward(micro_step)
                continue
            # Buckets are rebuilt after the first backward that is reduced.
            iteration = rank.num_reduced_before + (0 if self.no_sync else micro_step)
            reducer = self._reducer(rank, iteration, self._divisor(rank, micro_step))
            yield from reducer.backward(micro_step, self.overlap)
            yield from reducer.finish((yield from self._used_map(rank)))

    def scatters(self, workload: Workload) -> bool:
        return workload.mode == "inference" and workload.global_batch is not None

    def infer_step(self, rank: Rank) -> Script:
        yield from infer_in_processes(rank, rank.scatters)

    def _reducer(self, rank: Rank, iteration: int, divisor: int) -> Reducer:
        """Multiply by 1/W before the sum; unused parameters are ready with the first hook.

        Gradients that live in their buckets need no copies.
        """
        copies = copies_charged(self.charge_copies, rank) and not self.gradient_as_bucket_view
        layout = self.buckets(rank.parameters, rank.ready_order, rank.itemsize, iteration)
        messages = [Message(tuple(names), 0.0, copies, copies) for names in layout]
        averaging = Averaging(before=divisor)
        return Reducer(rank, messages, averaging, rank.unused, self.comm_hook)

    def _used_map(self, rank: Rank) -> Generator[Any, None, list[Pending]]:
        if not self.find_unused_parameters:
            return []
        nbytes = USED_MAP_ITEMSIZE * len(rank.parameters)
        return [(yield from rank.all_reduce_bytes(nbytes, "used parameters"))]

    def _announce(self, rank: Rank) -> Script:
        """Under Join, ranks count who still has samples, and whether gradients will be reduced."""
        counted = yield from rank.all_reduce_bytes(JOIN_ITEMSIZE, "active ranks")
        agreed = yield from rank.all_reduce_bytes(JOIN_ITEMSIZE, "will reduce")
        # Only an average over the active ranks needs the count on the host.
        yield from rank.wait([agreed] if self.divide_by_initial_world_size else [counted, agreed])

    def _authority(self, rank: Rank, micro_step: int) -> int:
        """Whose buffers count: rank 0's; under Join those of the last rank that has samples."""
        there = rank.active(micro_step) if self.join else [True]
        return max(r for r, has_samples in enumerate(there) if has_samples)

    def _divisor(self, rank: Rank, micro_step: int) -> int:
        if self.divide_by_initial_world_size:
            return rank.world_size
        return sum(rank.active(micro_step))


def send_all(
    rank: Rank, tensors: Sequence[Tensor], label: str, root: int, group: str | None = None
) -> Script:
    """Broadcast tensors of one dtype in buffers of `BROADCAST_NBYTES`."""
    if not tensors:
        return
    by_name = {tensor.name: tensor for tensor in tensors}
    for number, names in enumerate(
        assign(tensors, rank.itemsize_of(tensors[0]), [BROADCAST_NBYTES])
    ):
        together = [by_name[name] for name in names]
        yield from rank.broadcast(together, f"{label} {number}", root, group)


def send_buffers(rank: Rank, root: int, group: str | None = None) -> Script:
    """Broadcast the tensors of the model that are not learned."""
    for integer, label in ((False, "buffers"), (True, "counters")):
        chosen = [buffer for buffer in rank.buffers if buffer.integer == integer]
        yield from send_all(rank, chosen, label, root, group)


def last_joiners(workload: Workload, world_size: int, num_samples: int) -> list[int]:
    """Ranks that may be the largest with samples in the last step of an epoch, or of the run."""
    if workload.global_batch is not None:
        num_samples = num_samples or workload.global_batch  # without a data set, all are whole
        sizes = (min(workload.global_batch, num_samples), num_samples % workload.global_batch)
        return [len(chunk_sizes(size, world_size)) - 1 for size in sizes if size]
    if workload.samples_per_rank is None:  # the sampler deals every rank as many
        return [world_size - 1]
    step = workload.samples_per_step(1)
    found, most = [], 0
    for rank, part in reversed(list(enumerate(workload.samples_per_rank))):
        steps = part // step if workload.drop_last else -(-part // step)
        if steps > most:
            found.append(rank)
            most = steps
    return found if workload.steps is not None else found[-1:]  # `steps` may end within an epoch
