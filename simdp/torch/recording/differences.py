"""Differences: what of a tape grows with the samples, from two tapes of different batch sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simdp.errors import SimdpError
from simdp.torch.kernels.sizes import Sizes, moved
from simdp.torch.recording.tape import Ran, Tape
from simdp.workload.layers.operator import KeptSizes, KernelSizes
from simdp.workload.models.operators import RecordedCall


class Taped(NamedTuple):
    """A tape, and how many samples were in its batch."""

    batch: int
    tape: Tape


def calls_of(small: Taped, large: Taped | None) -> list[RecordedCall]:
    """The operators of forward, with what they cost per sample, and whatever the samples.

    Parameters
    ----------
    small : Taped
        Of the batch that sizes are exact for.
    large : Taped, optional
        Of a larger one; left out, a sample is the whole batch, and nothing is constant.

    Raises
    ------
    SimdpError
        If other operators ran in the larger batch.
    """
    other = small if large is None else large
    if [ran.name for ran in small.tape.ran] != [ran.name for ran in other.tape.ran]:
        raise SimdpError(
            "workload: the module calls other operators when the batch is twice as large; give "
            "scales=False, to take the batch as one sample."
        )
    names = {name: number for number, name in enumerate(small.tape.name_of.values())}
    split = _Split(small, large)
    pairs = zip(small.tape.ran, other.tape.ran, strict=True)
    order = {name: place for place, name in enumerate(small.tape.ready)}
    return [_call(number, one, two, split, names, order) for number, (one, two) in enumerate(pairs)]


class _Split:
    """Parts of a figure: per sample, and constant."""

    def __init__(self, small: Taped, large: Taped | None) -> None:
        self.small, self.large = small, large

    def of(self, one: float, two: float) -> tuple[float, float]:
        if self.large is None:
            return one / self.small.batch, 0.0
        each = (two - one) / (self.large.batch - self.small.batch)
        if each < 0 or one - each * self.small.batch < 0:  # not linear: exact for the small one
            return one / self.small.batch, 0.0
        return each, one - each * self.small.batch

    def kernels(self, one: Sequence[Sizes], two: Sequence[Sizes]) -> Iterator[KernelSizes]:
        if len(one) != len(two):
            raise SimdpError(
                "workload: backward launches other kernels when the batch is twice as large; give "
                "scales=False, to take the batch as one sample."
            )
        for small, large in zip(one, two, strict=True):
            elements, fixed_elements = self.of(small.elements, large.elements)
            nbytes, fixed_nbytes = self.of(small.nbytes, large.nbytes)
            flops = small.flops / self.small.batch
            yield KernelSizes(flops, elements, nbytes, fixed_elements, fixed_nbytes)


def _call(
    number: int,
    one: Ran,
    two: Ran,
    split: _Split,
    names: dict[str, int],
    order: dict[str, int],
) -> RecordedCall:
    small = split.small
    learned = sorted(one.learned, key=lambda name: order.get(name, len(order)))
    return RecordedCall(
        name=one.name,
        policy=one.launched.policy,
        takes=tuple(one.takes),
        elements=round(split.of(one.elements, two.elements)[0]),
        learned=tuple(names[name] for name in learned),
        products=one.launched.products / small.batch,
        forward=tuple(split.kernels(one.launched.kernels, two.launched.kernels)),
        backward=tuple(split.kernels(one.backward, two.backward)),
        keeps=_kept(number, one, two, split),
    )


def _kept(number: int, one: Ran, two: Ran, split: _Split) -> KeptSizes:
    inputs, output, own = _sorted_out(number, one, split.small.tape)
    other = own if split.large is None else _sorted_out(number, two, split.large.tape)[2]
    elements, fixed_elements = split.of(own.elements, other.elements)
    nbytes, fixed_nbytes = split.of(own.nbytes, other.nbytes)
    return KeptSizes(inputs, output, elements, nbytes, fixed_elements, fixed_nbytes)


def _sorted_out(number: int, ran: Ran, tape: Tape) -> tuple[tuple[int, ...], bool, Sizes]:
    """Which inputs an operator keeps, whether its output, and what beside them."""
    inputs, output, beside = list[int](), False, list[Sizes]()
    for store, tensor in ran.kept.items():
        value = tape.value_of.get(store)
        if store in tape.held:
            continue
        flows = value is not None and store not in tape.beside and tensor.is_floating_point()
        if flows and value == tape.first + number:
            output = True
        elif value in ran.takes and (flows or value < tape.first):
            inputs.append(ran.takes.index(value))
        elif store not in tape.counted:
            tape.counted.add(store)
            beside.append(moved([tensor]))
    if number >= tape.of_module:
        inputs += [place for place, value in enumerate(ran.takes) if value in tape.outputs]
    elements, nbytes = (sum(sizes[place] for sizes in beside) for place in (1, 2))
    return tuple(sorted(set(inputs))), output, Sizes(0.0, elements, nbytes)
