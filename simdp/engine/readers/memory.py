"""Memory: what operations take of every rank's device, and give back.

Only the setup and the first steps are looked at: all later ones are like the last of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.engine.readers.footprints import Amount, footprint_of
from simdp.engine.readers.ledger import Ledger
from simdp.engine.readers.shapes import Shapes
from simdp.engine.readers.tensors import Tensors, for_each
from simdp.engine.readers.units import Taken, UnitMemory
from simdp.results.trace import SETUP
from simdp.scenario import Scenario
from simdp.steps import coalesced, one_process, ops, unit_ops
from simdp.steps.bucket import Group
from simdp.steps.program import Program
from simdp.strategies.memory import sample_nbytes
from simdp.workload.lifetimes import lifetimes
from simdp.workload.recomputation import recomputed
from simdp.workload.sampling import StepBatches
from simdp.workload.stages import Lifetimes, Stage

OBSERVED_STEPS = 2


class Memory:
    """What every rank keeps.

    Parameters
    ----------
    scenario : Scenario
        One point.
    program : Program
        What it reads.
    shapes : Shapes
        Of the samples.

    Attributes
    ----------
    ledger : Ledger
        What every rank keeps, and has kept at its peak.
    observed_steps : int
        In how many steps memory is accounted for.
    """

    def __init__(self, scenario: Scenario, program: Program, shapes: Shapes) -> None:
        self._scenario, self._program, self._facts = scenario, program, program.facts
        self._world_size, self._shapes = scenario.cluster.world_size, shapes
        self.ledger = Ledger(self._world_size)
        self.footprint = footprint_of(scenario, program.facts, program.partition)
        self._units = UnitMemory(program.facts, program.partition, self.footprint)
        self._one_process = scenario.strategy.one_process
        self._is_root = np.arange(self._world_size) == 0
        self.observed_steps = OBSERVED_STEPS
        self._step = SETUP
        self._batches = StepBatches([], np.zeros((0, self._world_size), dtype=np.int64))
        self._has_gradient: set[str] = set()
        self._has_state = self._has_loss_of_pieces = False
        self._temporaries: Amount = 0.0
        self._passing = 0.0
        self._left: Stage | None = None
        self._borrowed: dict[str, Amount] = {}
        self._tensors = Tensors(self.footprint)
        self._before: dict[type[Any], Callable[[Any], Taken]] = {
            ops.Forward: self._before_forward,
            ops.Backward: self._before_backward,
            ops.Update: self._before_update,
            unit_ops.Open: self._units.open,
            unit_ops.Release: self._units.release,
            ops.AllGather: self._units.all_gather,
            unit_ops.Unshard: self._units.unshard,
            coalesced.GatherTogether: self._units.gather_together,
            one_process.CopyOut: self._copy_out,
            one_process.Scatter: self._scatter,
            one_process.Gather: self._before_gather,
            one_process.LossOfAll: self._loss_of_all,
            one_process.HandBack: self._hand_back,
            one_process.Reduce: self._before_reduce,
        }
        self._after: dict[type[Any], Callable[[Any], Taken]] = {
            ops.Batch: self._batch,
            ops.Forward: self._after_forward,
            ops.Exchange: self._exchange,
            ops.Backward: self._after_backward,
            ops.Done: self._done,
            ops.Update: self._after_update,
            ops.Hold: self._hold,
            ops.ReduceScatter: self._reduce_scatter,
            unit_ops.Unshard: self._units.copied_out,
            unit_ops.Free: self._units.free,
            one_process.Gather: self._after_gather,
            one_process.HandBack: self._give_back_outputs,
            one_process.Reduce: self._after_reduce,
            one_process.TakeSums: self._take_sums,
        }

    def begin(self, step: int, batches: StepBatches) -> None:
        """Begin a step, with who trains on what."""
        self._step, self._batches = step, batches

    @property
    def is_observed(self) -> bool:
        """Whether memory is accounted for in the current step."""
        return self._step < self.observed_steps

    def before(self, op: ops.Op) -> Taken:
        """What is taken as an operation begins."""
        return self._noted(self._before.get(type(op)), op)

    def after(self, op: ops.Op) -> Taken:
        """What is taken, or given back, as it ends."""
        return self._noted(self._after.get(type(op)), op)

    def follow(self, op: ops.Op) -> None:
        """Tell the ledger alone what an operation of an observed step takes and gives back."""
        hold = self.ledger.hold
        for acts in (self._before, self._after):
            act = acts.get(type(op))
            for part, nbytes in () if act is None else act(op):
                if nbytes.any() if isinstance(nbytes, np.ndarray) else nbytes:
                    hold(part, nbytes)

    def _noted(self, act: Callable[[Any], Taken] | None, op: ops.Op | None) -> Taken:
        """Tell the ledger."""
        if act is None or not self.is_observed:
            return
        for part, nbytes in act(op):
            if nbytes.any() if isinstance(nbytes, np.ndarray) else nbytes:
                self.ledger.hold(part, nbytes)
                yield part, nbytes

    def model(self) -> Taken:
        """What is there before the setup."""
        return self._noted(self._model, None)

    def buckets(self) -> Taken:
        """What is there from the end of the setup on: buckets, and gradients that live in them."""
        return self._noted(self._buckets, None)

    def state(self) -> None:
        """Begin with the optimizer's state there, as it is from the second step on."""
        self.ledger.hold("optimizer_state", self.footprint.state())
        self._has_state = True

    def _model(self, op: None) -> Taken:
        yield "parameters", self.footprint.parameters()
        yield "buffers", self.footprint.buffers()
        yield "optimizer_state", self.footprint.master()

    def _buckets(self, op: None) -> Taken:
        if not self._facts.is_inference:
            yield "buckets", self._room([self._program.bucket_room])
        if self._program.gradients_stay:
            yield "gradients", self._gradients(self._facts.ready_order)

    # Forward and backward ------------------------------------------------------------------------

    @cached_property
    def _lifetimes(self) -> Lifetimes:
        workload = self._scenario.workload
        return lifetimes(workload, recomputed(workload), not self._facts.is_inference)

    def _batch(self, op: ops.Batch) -> Taken:
        if op.root is None:
            nbytes = self._inputs(op.micro)
            if self._facts.is_inference:
                yield from self._borrow("inputs", nbytes)
            else:
                yield "inputs", nbytes
        self._has_loss_of_pieces = False

    def _stage(self, op: ops.Forward) -> Stage:
        return (self._lifetimes.again if op.again else self._lifetimes.forward)[op.call]

    def _before_forward(self, op: ops.Forward) -> Taken:
        self._has_loss_of_pieces |= op.call == len(self._facts.graph.calls)
        return self._take(self._stage(op), op.micro)

    def _after_forward(self, op: ops.Forward) -> Taken:
        if op.call in self._facts.exchanges:
            self._left = self._stage(op)
        else:
            yield from self._give(self._stage(op), op.micro)

    def _exchange(self, op: ops.Exchange) -> Taken:
        """What a call of forward needs no more is given back when it has the others' numbers."""
        if self._left is not None:
            yield from self._give(self._left, op.micro)
        self._left = None

    def _before_backward(self, op: ops.Backward) -> Taken:
        stage = self._lifetimes.backward[op.call]
        if op.call == len(self._facts.graph.calls):
            yield from self._take(stage if self._begins_at_loss else self._arriving, op.micro)
            return
        yield from self._take(stage, op.micro)
        if self._one_process:
            made = self._of_gradients(self._facts.graph.ready_at[op.call])
            there = (self._sizes(op.micro) > 0).astype(float)
            yield from self._borrow("gradients", made * there)
        else:
            yield from self._take_gradients(self._facts.graph.learned(op.call))

    def _after_backward(self, op: ops.Backward) -> Taken:
        if op.call < len(self._facts.graph.calls):
            yield "temporary", -self._passing
            self._passing = 0.0
        elif not self._begins_at_loss:
            return
        yield from self._give(self._lifetimes.backward[op.call], op.micro)

    @property
    def _begins_at_loss(self) -> bool:
        """Whether every rank's backward begins at its own loss, or with a gradient it was sent."""
        return not self._one_process or (self._has_loss_of_pieces and self._shapes.has_loss)

    @cached_property
    def _arriving(self) -> Stage:
        """The gradients of a model's outputs, without what a loss keeps and needs beside them."""
        taken, given = self._lifetimes.backward[-1]
        return Stage(tuple(t for t in taken if all(t is not gone for gone in given)), ())

    def _take_gradients(self, names: Sequence[str]) -> Taken:
        """Take the gradients that a call's backward makes; of some there is a place already.

        What is made of these is added to them, and then given back.
        """
        stay = self._program.gradients_stay
        there = set(self._facts.ready_order) if stay else self._has_gradient
        again = [name for name in names if name in there]
        fresh = [name for name in names if name not in there]
        self._has_gradient.update(fresh)
        whole = self._units.in_rows
        yield "gradients", self._of_gradients(fresh) if whole else self._gradients(fresh)
        self._passing = self._of_gradients(again)
        yield "temporary", self._passing

    def _done(self, op: ops.Done) -> Taken:
        if self._facts.is_inference:
            yield from self._let_go(op.micro)
            return
        yield from self._give(self._lifetimes.end, op.micro)
        if not self._one_process:
            yield "inputs", -self._inputs(op.micro)

    def _let_go(self, micro: int) -> Taken:
        """Give back what inference has left when it has its outputs."""
        yield from self._take(self._lifetimes.forward[-1], micro)
        yield from self._give(self._lifetimes.forward[-1], micro)
        yield from self._give_back("outputs")
        yield from self._give_back("inputs")

    def _take(self, stage: Stage, micro: int) -> Taken:
        return iter(self._tensors.by_part(stage.taken, self._sizes(micro)))

    def _give(self, stage: Stage, micro: int) -> Taken:
        return (
            (part, -nbytes)
            for part, nbytes in self._tensors.by_part(stage.given, self._sizes(micro))
        )

    # The update ----------------------------------------------------------------------------------

    def _before_update(self, op: ops.Update) -> Taken:
        if not self._has_state:
            yield "optimizer_state", self.footprint.state()
        self._has_state = True
        self._temporaries = self.footprint.temporaries()
        yield "temporary", self._temporaries

    def _after_update(self, op: ops.Update) -> Taken:
        yield "temporary", -self._temporaries
        if self._units.in_rows:
            yield from self._units.forget_gradients()
        elif not self._program.gradients_stay:
            mine = [name for name in self._facts.ready_order if name in self._has_gradient]
            yield "gradients", -self._gradients(mine)
        self._has_gradient.clear()

    # What travels --------------------------------------------------------------------------------

    def _hold(self, op: ops.Hold) -> Taken:
        yield op.part, op.nbytes

    def _reduce_scatter(self, op: ops.ReduceScatter) -> Taken:
        if self._units.in_rows:
            self._has_gradient.difference_update(op.bucket.names)
            yield from self._units.summed(op.bucket)

    # One process ---------------------------------------------------------------------------------

    def _borrow(self, part: str, nbytes: Amount) -> Taken:
        """Take what will be given back together with all else that was borrowed for the part."""
        self._borrowed[part] = self._borrowed.get(part, np.zeros(self._world_size)) + nbytes
        yield part, nbytes

    def _give_back(self, part: str) -> Taken:
        if part in self._borrowed:
            yield part, -self._borrowed.pop(part)

    def _among(self, group: Group) -> Floats:
        there = np.zeros(self._world_size)
        assert isinstance(group, tuple), "one process tells its devices by their numbers"
        there[list(group)] = 1.0
        return there

    def _copy_out(self, op: one_process.CopyOut) -> Taken:
        others = self._among(op.group) * ~self._is_root
        yield from self._borrow("gathered", self._room([op.nbytes]) * others)

    def _scatter(self, op: one_process.Scatter) -> Taken:
        sizes, per_sample = self._sizes(op.micro), self._shapes.nbytes_of(op.name, op.micro)
        pieces = np.where(self._is_root, sizes.sum(), sizes)
        nbytes = for_each(pieces, lambda n: self._room([n * per_sample]))
        yield from self._borrow("inputs", nbytes)

    def _before_gather(self, op: one_process.Gather) -> Taken:
        if not op.losses:
            yield from self._borrow("outputs", self._outputs_at(op.root, op.micro))

    def _after_gather(self, op: one_process.Gather) -> Taken:
        if self._facts.is_inference:
            yield from self._let_go(op.micro)

    def _outputs_at(self, root: int, micro: int) -> Floats:
        whole = self._sizes(micro).sum() * self._shapes.output_nbytes(micro)
        return self._at(root, self._room([whole]))

    def _loss_of_all(self, op: one_process.LossOfAll) -> Taken:
        num_samples = int(self._sizes(op.micro).sum())
        if not self._scenario.workload.model.timed:
            whole = self._room([num_samples * self._shapes.nbytes_of("y", op.micro)])
            yield from self._borrow("inputs", self._at(op.root, whole))
        if self._shapes.has_loss:
            taken, given = self._lifetimes.forward[-1]
            stays = [one for one in taken if all(one is not gone for gone in given)]
            kept = self._tensors.room_of(stays, num_samples)
            yield from self._borrow("outputs", self._at(op.root, kept))

    def _hand_back(self, op: one_process.HandBack) -> Taken:
        if not op.losses and self._shapes.has_loss:
            yield from self._borrow("outputs", self._outputs_at(op.root, op.micro))

    def _give_back_outputs(self, op: one_process.HandBack) -> Taken:
        return self._give_back("outputs")

    def _before_reduce(self, op: one_process.Reduce) -> Taken:
        yield "buckets", self._flat_copies(op)

    def _flat_copies(self, op: one_process.Reduce) -> Floats:
        there = self._among(op.group)
        found: Floats = self._room([op.bucket.nbytes]) * there * (there.sum() > 1)
        return found

    def _after_reduce(self, op: one_process.Reduce) -> Taken:
        yield "buckets", -self._flat_copies(op)
        if self._among(op.group).sum() > 1:
            learned = [name for name in op.bucket.names if name in set(self._facts.ready_order)]
            yield from self._borrow("gradients", self._is_root * self._of_gradients(learned))

    def _take_sums(self, op: one_process.TakeSums) -> Taken:
        names = self._facts.ready_order
        self._has_gradient.update(names)
        stays = self._is_root * self._of_gradients(names) * (op.micro == 0)
        yield "gradients", stays - self._borrowed.pop("gradients")
        yield from self._give_back("gathered")
        yield from self._give_back("inputs")

    # Counting ------------------------------------------------------------------------------------

    def _sizes(self, micro: int) -> Ints:
        return np.asarray(self._batches.sizes[micro])

    def _room(self, nbytes: Iterable[float]) -> float:
        return self.footprint.room(nbytes)

    def _at(self, rank: int, nbytes: float) -> Floats:
        found = np.zeros(self._world_size)
        found[rank] = nbytes
        return found

    def _inputs(self, micro: int) -> Amount:
        """The samples of a micro-step with their targets."""
        per_sample = sample_nbytes(self._scenario.workload)
        return for_each(self._sizes(micro), lambda n: self._room(n * size for size in per_sample))

    def _gradients(self, names: Iterable[str]) -> Amount:
        return sum((self.footprint.gradient(name) for name in names), 0.0)

    def _of_gradients(self, names: Iterable[str]) -> float:
        return self._room(self._facts.sizes[name] * self._facts.itemsize for name in names)
