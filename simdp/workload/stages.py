"""Stages: what a call of a micro-batch takes as it begins, and gives back as it ends."""

from __future__ import annotations

from typing import Literal, NamedTuple

TensorPart = Literal["activations", "outputs", "temporary"]


class Tensor(NamedTuple):
    """A tensor of a micro-batch of n samples takes ``n per_sample + fixed`` bytes, or 0 if n is 0.

    Attributes
    ----------
    part : {"activations", "outputs", "temporary"}
        Whether backward needs it; or it belongs to what the model makes, to its gradient, or to the
        loss; or it only flows from one call to the next.
    per_sample, fixed : float
        Sizes [bytes].
    """

    part: TensorPart
    per_sample: float
    fixed: float = 0.0


class Stage(NamedTuple):
    """A call at work.

    Attributes
    ----------
    taken : tuple of Tensor
        What is made as it begins.
    given : tuple of Tensor
        What nothing needs any more when it ends.
    """

    taken: tuple[Tensor, ...]
    given: tuple[Tensor, ...]


NOTHING = Stage((), ())


class Lifetimes(NamedTuple):
    """What comes and goes with each call of a micro-step; the loss counts as one more call.

    Attributes
    ----------
    forward, backward : tuple of Stage
        By the number of the call.
    again : dict of int to Stage
        Calls that run forward again in backward, by their numbers.
    end : Stage
        When backward is through.
    """

    forward: tuple[Stage, ...]
    backward: tuple[Stage, ...]
    again: dict[int, Stage]
    end: Stage


def joined(one: Stage, other: Stage) -> Stage:
    """What both take, and what both give."""
    return Stage((*one.taken, *other.taken), (*one.given, *other.given))
