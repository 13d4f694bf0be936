"""Lifetimes of activations in a step, as in torch.

A tensor kept for backward, or passed from call to call, exists from the call that makes it until
its last use. Gradients of parameters are not counted here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from math import floor, prod
from typing import Any, Literal, NamedTuple

from simdp.workload import Workload
from simdp.workload.execution import call_dtypes
from simdp.workload.finetuning import kept_of
from simdp.workload.layers.base import Kept, ModelGraph, ModuleBlock, Value
from simdp.workload.models.base import Model
from simdp.workload.precision import numpy_dtype

# Stages -------------------------------------------------------------------------------------------

TensorPart = Literal["activations", "outputs", "temporary"]


class Tensor(NamedTuple):
    """A tensor of ``n per_sample + fixed`` bytes in a micro-batch of n samples; 0 if n is 0."""

    part: TensorPart
    """Needed by backward; belonging to the model's outputs, their gradients, or the loss; or only
    passed from call to call."""
    per_sample: float
    """Sizes [bytes]."""
    fixed: float = 0.0
    """Sizes [bytes]."""


class Stage(NamedTuple):
    """Tensors allocated at the beginning of a call (``taken``) and freed at its end (``given``)."""

    taken: tuple[Tensor, ...]
    given: tuple[Tensor, ...]


NOTHING = Stage((), ())


class Lifetimes(NamedTuple):
    """Tensors allocated and freed by each call of a micro-step; the loss counts as a last call."""

    forward: tuple[Stage, ...]
    """By number of the call."""
    backward: tuple[Stage, ...]
    """By number of the call."""
    again: dict[int, Stage]
    """Calls that run forward again in backward, by number."""
    end: Stage
    """The end of backward."""


def joined(stage: Stage, other: Stage) -> Stage:
    """Both stages as one."""
    return Stage((*stage.taken, *other.taken), (*stage.given, *other.given))


# Recomputation ------------------------------------------------------------------------------------


class Rerun(NamedTuple):
    """Consecutive calls of a block without kept activations.

    ``stored`` ones keep their outputs; the last ``stopped`` ones do not run again, since backward
    needs no tensor that they make.
    """

    calls: range
    stored: frozenset[int] = frozenset()
    stopped: int = 0

    @property
    def again(self) -> tuple[int, ...]:
        """Calls that run again, in the order of forward."""
        calls = self.calls[: len(self.calls) - self.stopped]
        return tuple(number for number in calls if number not in self.stored)


def recomputed(workload: Workload) -> list[Rerun]:
    """Runs of calls that are recomputed in backward, first to last.

    ``blocks`` is torch's checkpoint of every block: only its inputs are kept. ``selective`` is
    checkpoint with torchtitan's list of operations: outputs of matrix products and convolutions are
    kept too, and those of fused attention with its log-sum-exp; the rest is recomputed, including
    plain attention. Nothing runs again where backward does not pass, because of frozen parameters.
    ``selective_every_other`` keeps every second product of each block, from the first, as
    torchtitan did at first. Without ``use_reentrant`` a block stops behind the last tensor that
    backward needs (torch's ``early_stop``): of a transformer's block the last product and addition
    do not run again.

    References
    ----------
    torch.utils.checkpoint.create_selective_checkpoint_contexts, set_checkpoint_early_stop;
    torchtitan, torchtitan/distributed/activation_checkpoint.py.
    """
    if workload.recompute == "none":
        return []
    runs: list[Rerun] = []
    saved = None if workload.use_reentrant or workload.model.timed else _Saved(workload)
    for block in _checkpointed(workload):
        stored = _stored(workload.graph, block.calls, workload.recompute)
        ends = [i for i, (a, b) in enumerate(pairwise(block.calls), 1) if b != a + 1]
        for first, last in pairwise([0, *ends, len(block.calls)]):
            calls = block.calls[first:last]
            span, kept = range(calls[0], calls[-1] + 1), stored.intersection(calls)
            # torch.compile does not store an output that backward has no use for.
            stops_at = frozenset[int]() if workload.compile else kept
            stopped = 0 if saved is None else saved.stopped(span, stops_at)
            kept = kept.intersection(span[: len(span) - stopped])
            run = Rerun(span, kept, stopped)
            needed = any(workload.graph.flows[number] for number in calls)
            runs += [run] if run.again and needed else []
    return sorted(runs, key=lambda run: run.calls.start)


def _checkpointed(workload: Workload) -> list[ModuleBlock]:
    """The blocks that are checkpointed: a share of all, spread evenly."""
    share = workload.recompute_share
    return [
        block
        for number, block in enumerate(workload.graph.blocks)
        if floor((number + 1) * share + ROUNDING) > floor(number * share + ROUNDING)
    ]


class _Saved:
    """What backward needs of each call's tensors; layers with given times have unknown needs."""

    def __init__(self, workload: Workload) -> None:
        self.graph = workload.graph
        self.shapes = self.graph.shapes(workload.model.known_shapes())
        self.dtypes = call_dtypes(self.graph, workload.precision, workload.dtype)

    def stopped(self, calls: range, stored: frozenset[int]) -> int:
        """Count the calls at the end of a block behind the last tensor that backward needs.

        Inputs and weights are saved before a call runs, outputs and statistics only afterwards: a
        product does not run again for its inputs, a norm does for its statistics.
        """
        for number in reversed(calls):
            call, flows = self.graph.calls[number], self.graph.flows[number]
            given = [self.shapes[value] for value in call.inputs]
            kept = kept_of(self.graph, number, given, _itemsize(self.dtypes[number]))
            if number in stored or (flows and (kept.output or kept.nbytes or kept.fixed)):
                return calls[-1] - number
            if flows and (kept.inputs or call.layer.parameters()):
                return calls[-1] - number + 1
        return len(calls)


ROUNDING = 1e-9


def _stored(graph: ModelGraph, calls: tuple[int, ...], recompute: str) -> frozenset[int]:
    if recompute == "blocks":
        return frozenset()
    costly = {number: graph.calls[number].layer.costly for number in calls}
    products = [number for number, what in costly.items() if what == "product"]
    if recompute == "selective_every_other":
        products = products[::2]
    return frozenset(products) | {n for n, what in costly.items() if what == "fused_attention"}


Token = tuple[object, ...]


def lifetimes(workload: Workload, reruns: Sequence[Rerun] = (), keeps: bool = True) -> Lifetimes:
    """Follow the tensors of a micro-batch of samples of full length.

    Backward recomputes the calls of ``reruns``, block by block. Without ``keeps`` nothing is kept
    for backward, which then has no stages: inference.
    """
    numbers = (workload.precision, workload.dtype, workload.loss)
    of = (*numbers, workload.compile, workload.keeps_outputs)
    key = (*of, tuple(reruns), keeps)
    for graph, model, other, tensors in _KNOWN:
        if graph is workload.graph and model == workload.model and other == key:
            return tensors
    tensors = _Following(workload, reruns).run(keeps)
    _KNOWN.append((workload.graph, workload.model, key, tensors))
    return tensors


_KNOWN: deque[tuple[ModelGraph, Model, tuple[Any, ...], Lifetimes]] = deque(maxlen=16)
"""Last results and all that they depend on: strategies share them."""


class _Following:
    """Counts each tensor's remaining uses: calls that take it, and calls that keep it."""

    def __init__(self, workload: Workload, reruns: Sequence[Rerun]) -> None:
        graph = workload.graph
        self.workload, self.graph, self.first = workload, graph, len(graph.inputs)
        self.dtypes = call_dtypes(graph, workload.precision, workload.dtype)
        self.fused = None
        if workload.compile:
            from simdp.workload.transforms import Fused  # imports layers

            self.fused = Fused(graph)
        # A timed layer defines the bytes that it keeps, but not the values between layers.
        self.flows = not workload.model.timed
        self.shapes = graph.shapes(workload.model.known_shapes()) if self.flows else []
        self.widens = workload.precision.widens_outputs
        self.stored = _itemsize(workload.precision.weight_dtype(workload.dtype))
        self.uses: Counter[int] = Counter(value for call in graph.calls for value in call.inputs)
        self.uses.update(value for value, _ in graph.outputs)
        self.outputs = {value for value, _ in graph.outputs}
        self.blocks = [rerun.calls for rerun in reruns]
        self.stopped = {n for run in reruns for n in run.calls[len(run.calls) - run.stopped :]}
        self.block_of = {number: block for block in self.blocks for number in block}
        self.apart = {number for rerun in reruns for number in rerun.stored}
        self.kept = [self._kept(number) for number in range(len(graph.calls))]
        # A tensor that backward needs is an activation from its beginning.
        self.lasting: set[Token] = set()
        self.needed: Counter[Token] = Counter()
        self.sizes: dict[Token, Tensor] = {}
        self.changes: list[Tensor] = []

    def run(self, keeps: bool) -> Lifetimes:
        calls = range(len(self.graph.calls))
        if keeps:
            self._mark_lasting()
        forward = [self._forward(number, keeps) for number in calls]
        forward.append(self._loss_forward(keeps))
        if not keeps:
            return Lifetimes(tuple(forward), (), {}, NOTHING)
        backward, again = [self._loss_backward()], dict[int, Stage]()
        for number in reversed(calls):
            block = self.block_of.get(number)
            if block is not None and number == block[-1]:
                again |= self._run_again(block)
            backward.append(self._backward(number, block))
        if self.workload.keeps_outputs:  # the script's own variable
            self._release_outputs()
        assert not +self.needed, "whatever is taken is given back"
        end = Stage((), self._changed())
        return Lifetimes(tuple(forward), tuple(reversed(backward)), again, end)

    def _release_outputs(self) -> None:
        if self.widens:
            self._done(("loss", "copy"))
            return
        for value, _ in self.graph.outputs:
            self._done(self._value(value))

    # Counting -------------------------------------------------------------------------------------

    def _need(self, token: Token, per_sample: float, fixed: float = 0.0, times: int = 1) -> None:
        if times and not self.needed[token]:
            self.sizes[token] = Tensor(self._part(token), per_sample, fixed)
            if per_sample or fixed:
                self.changes.append(self.sizes[token])
        self.needed[token] += times

    def _part(self, token: Token) -> TensorPart:
        of_outputs = token[0] in ("value", "gradient") and token[1] in self.outputs
        if token[0] == "loss" or (of_outputs and len(token) < 4):
            return "outputs"
        return "activations" if token in self.lasting else "temporary"

    def _done(self, token: Token) -> None:
        self.needed[token] -= 1
        assert self.needed[token] >= 0, token
        gone = self.sizes[token]
        if not self.needed[token] and (gone.per_sample or gone.fixed):
            self.changes.append(gone)

    def _changed(self) -> tuple[Tensor, ...]:
        changes, self.changes = tuple(self.changes), []
        return changes

    # Tensors --------------------------------------------------------------------------------------

    def _dtype_of(self, value: int) -> str:
        return self.workload.dtype if value < self.first else self.dtypes[value - self.first]

    def _value(self, value: int, block: range | None = None) -> Token:
        """A value; another token if a block recomputes it."""
        number = value - self.first
        inside = block is not None and number in block and number not in self.apart
        return ("value", value, block.start if inside and block else None)

    def _nbytes(self, value: int, dtype: str | None = None) -> float:
        if not self.flows or (self.fused and not self.fused.is_written(Value(value))):
            return 0.0
        return float(prod(self.shapes[value]) * _itemsize(dtype or self._dtype_of(value)))

    def _kept(self, number: int) -> Kept:
        call = self.graph.calls[number]
        given = [self.shapes[value] for value in call.inputs] if self.flows else [()]
        return kept_of(self.graph, number, given, _itemsize(self.dtypes[number]))

    def _is_fused(self, number: int) -> bool:
        return self.fused is not None and number in self.fused.of

    def _seen(self, value: int, number: int, block: range | None) -> Token:
        """The value that a call reads: itself, or a copy in the dtype of the call."""
        integer = value < self.first and self._is_integer(value)
        casts = not integer and not self._is_fused(number)  # a chain casts as it reads
        if not casts or self._dtype_of(value) == self.dtypes[number]:
            return self._value(value, block)
        return ("copy", self.dtypes[number], *self._value(value, block))

    def _is_integer(self, value: int) -> bool:
        model = self.workload.model
        return self.flows and model.num_tokens(self.graph.inputs[value]) is not None

    def _keeps(self, number: int, block: range | None) -> list[tuple[Token, float, float]]:
        """Tensors that a call keeps for its backward: values, and others."""
        call, kept, dtype = self.graph.calls[number], self.kept[number], self.dtypes[number]
        values = dict.fromkeys(call.inputs[i] for i in kept.inputs)
        if self.fused and self._is_fused(number):
            values, kept = dict.fromkeys(self.fused.kept(number, kept)), Kept()
        tensors = []
        for value in values:
            seen = self._seen(value, number, block)
            if not self._is_batch(seen):
                held = dtype if seen[0] == "copy" else None
                tensors.append((seen, self._nbytes(value, held), 0.0))
        if kept.output:
            made = self.first + number
            tensors.append((self._value(made, block), self._nbytes(made), 0.0))
        tensors.append((("beside", number), kept.nbytes, kept.fixed))
        flows = self.graph.flows[number] or not self.graph.frozen
        if flows and _itemsize(dtype) < self.stored:  # autocast's copies of the weights
            learned = sum(parameter.num_elements for parameter in call.layer.parameters())
            if learned:
                tensors.append((("weights", number), 0.0, float(learned * _itemsize(dtype))))
        return tensors

    def _is_batch(self, token: Token) -> bool:
        """Whether this is an input of the model, which exists for the whole micro-step."""
        return token[0] == "value" and int(token[1]) < self.first  # type: ignore[call-overload]

    def _mark_lasting(self) -> None:
        for number in range(len(self.graph.calls)):
            block = self.block_of.get(number)
            self.lasting.update(token for token, _, _ in self._keeps(number, block))
        for block in self.blocks:
            self.lasting.update(self._enters(block))
        for number in self.apart:
            self.lasting.update(token for token, _, _ in self._stores(number))

    def _enters(self, block: range) -> list[Token]:
        """Values that a block takes from calls before it."""
        values = dict.fromkeys(v for number in block for v in self.graph.calls[number].inputs)
        return [self._value(v) for v in values if self.first <= v < self.first + block.start]

    def _stores(self, number: int) -> list[tuple[Token, float, float]]:
        """Tensors kept of a call that does not run again: its output, and others."""
        value, kept = self.first + number, self.kept[number]
        made = (self._value(value), self._nbytes(value), 0.0)
        return [made, (("beside", number), kept.nbytes, kept.fixed)]

    # Stages ---------------------------------------------------------------------------------------

    def _forward(self, number: int, keeps: bool) -> Stage:
        block = self.block_of.get(number)
        if keeps and block is not None and number == block.start:
            for token in self._enters(block):
                self._need(token, 0.0)  # it exists already
        return self._compute(number, keeps and block is None, None, self.uses)

    def _run_again(self, block: range) -> dict[int, Stage]:
        """Stages of the calls that run again before a block's backward.

        Stored outputs exist when the first call after them begins.
        """
        inside: Counter[int] = Counter(v for other in block for v in self.graph.calls[other].inputs)
        stages, before, last = dict[int, Stage](), NOTHING, -1
        for number in block:
            if number in self.stopped:
                before = joined(before, self._not_again(number, block))
            elif number in self.apart:
                before = joined(before, self._restored(number, block, inside))
            else:
                stages[number] = joined(before, self._compute(number, True, block, inside))
                before, last = NOTHING, number
        stages[last] = joined(stages[last], before)
        return stages

    def _not_again(self, number: int, block: range) -> Stage:
        """At the end of a block: backward takes what the call keeps, which others have made."""
        for token, per_sample, fixed in self._keeps(number, block):
            self._need(token, per_sample, fixed)
        taken = self._changed()
        inputs = self.graph.calls[number].inputs
        made = [value for value in inputs if value - self.first not in self.stopped]
        for token in self._flowed(made, block):
            self._done(token)
        return Stage(taken, self._changed())

    def _restored(self, number: int, block: range, inside: Counter[int]) -> Stage:
        """Instead of recomputing a call: backward and the calls after it use the kept tensors."""
        output = self.first + number
        self._need(self._value(output), self._nbytes(output), 0.0, inside[output])
        for token, per_sample, fixed in self._keeps(number, block):
            self._need(token, per_sample, fixed)
        taken = self._changed()
        for token in self._flowed(self.graph.calls[number].inputs, block):
            self._done(token)
        for token, _, _ in self._stores(number):
            self._done(token)
        return Stage(taken, self._changed())

    def _compute(self, number: int, keeps: bool, block: range | None, uses: Counter[int]) -> Stage:
        call, output = self.graph.calls[number], self.first + number
        made = self._value(output, block)
        self._need(made, self._nbytes(output), 0.0, 1 + uses[output])
        copies = []
        for value in dict.fromkeys(call.inputs):
            seen = self._seen(value, number, block)
            if seen[0] == "copy":
                self._need(seen, self._nbytes(value, self.dtypes[number]))
                copies.append(seen)
        stores = self._stores(number) if number in self.apart else []
        for token, per_sample, fixed in stores:
            self._need(token, per_sample, fixed)
        there = [token for token, _, _ in stores]
        for token, per_sample, fixed in self._keeps(number, block):
            if keeps:
                self._need(token, per_sample, fixed)
            elif token[0] in ("beside", "weights") and token not in there:  # while it runs
                self._need((*token, "passing"), per_sample, fixed)
                copies.append((*token, "passing"))
        taken = self._changed()
        for token in (*copies, *self._flowed(call.inputs, block), made):
            self._done(token)
        return Stage(taken, self._changed())

    def _flowed(self, inputs: Sequence[int], block: range | None) -> list[Token]:
        """Inputs that a call has consumed; a block that runs again does not consume its inputs."""
        mine = [value for value in inputs if value >= self.first]
        if block is not None:
            mine = [value for value in mine if value - self.first in block]
        return [self._value(value, block) for value in mine]

    def _loss_forward(self, keeps: bool) -> Stage:
        """Outputs of low precision are copied to full precision until the loss is computed.

        If the model itself casts them, the copies replace the outputs.
        """
        copy: Token = ("loss", "copy")
        loss, width = self.workload.loss, self._width()
        if keeps:
            self._need(("loss",), self._loss_kept())
        casts = self.widens or (keeps and not loss.is_fused)
        part = width if self.widens else width * loss.copied_share
        self._need(copy, part if casts and self._is_low() else 0.0)
        taken = self._changed()
        if not (keeps and self.widens):
            self._done(copy)
        for value, _ in self.graph.outputs if self.widens or not keeps else ():
            self._done(self._value(value))
        if keeps and not self.workload.keeps_outputs and not self.workload.loss.is_fused:
            self._release_outputs()
        return Stage(taken, self._changed())

    def _loss_backward(self) -> Stage:
        """The gradients of the outputs are made, besides other tensors of their size.

        In 16 bits these are casts of the loss's gradients, which are freed by then.
        """
        passing: Token = ("loss", "passing")
        for value, _ in self.graph.outputs:
            self._need(("gradient", value), self._nbytes(value))
        self._need(passing, self._loss_nbytes() - self._loss_kept() - self._made_nbytes())
        taken = self._changed()
        self._done(("loss",))
        self._done(passing)
        if not self.workload.keeps_outputs and self.workload.loss.is_fused:
            self._release_outputs()
        return Stage(taken, self._changed())

    def _loss_nbytes(self) -> float:
        """Bytes per sample at the peak of the loss's backward, besides the outputs."""
        return self.workload.loss.backward_nbytes(self._width(), self._made_nbytes())

    def _loss_kept(self) -> float:
        """Bytes per sample that the loss keeps until its backward ends."""
        kept = self._width() * self.workload.loss.num_kept
        return min(kept, self._loss_nbytes() - self._made_nbytes())

    def _is_low(self) -> bool:
        """Whether the model's outputs have less than full precision."""
        return self._width() > self._made_nbytes()

    def _made_nbytes(self) -> float:
        """Bytes per sample of the outputs in the model's dtypes."""
        return sum(self._nbytes(value) for value, _ in self.graph.outputs)

    def _width(self) -> float:
        """Bytes per sample of the outputs in full precision."""
        return sum(self._nbytes(value, self.workload.dtype) for value, _ in self.graph.outputs)

    def _backward(self, number: int, block: range | None) -> Stage:
        call, output = self.graph.calls[number], self.first + number
        flows = self.needed["gradient", output] > 0
        more: list[Token] = []
        for value, wanted in zip(call.inputs, self.graph.needs[number], strict=True):
            if not (wanted and flows):
                continue
            gradient: Token = ("gradient", value)
            if self.needed[gradient]:  # another one is made, and added to the first
                gradient = ("gradient", value, number, len(more))
                more.append(gradient)
            self._need(gradient, self._nbytes(value))
        taken = self._changed()
        done = [*more, *(token for token, _, _ in self._keeps(number, block))]
        done += [("gradient", output)] if flows else []
        for token in done:
            self._done(token)
        if block is not None and number == block.start:
            for token in self._enters(block):
                self._done(token)
        return Stage(taken, self._changed())


@cache
def _itemsize(dtype: str) -> int:
    return numpy_dtype(dtype).itemsize
