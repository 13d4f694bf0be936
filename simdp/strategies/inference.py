"""Inference by processes that have a copy of the model each, and send each other no gradients."""

from __future__ import annotations

from collections.abc import Sequence

from simdp.steps.facts import Facts, Ops
from simdp.steps.one_process import Gather
from simdp.steps.ops import Batch, Done, Meet
from simdp.steps.passes import forward_of_all, scatter
from simdp.strategies.base import Strategy


def infer_in_processes(facts: Facts, scatters: bool) -> Ops:
    """One step: forward alone.

    Parameters
    ----------
    facts : Facts
        Of ranks whose models are alike.
    scatters : bool
        Whether rank 0 has the batch, hands it out and gathers the outputs; else every rank has
        samples of its own, and keeps what it makes of them.
    """
    if scatters:
        yield from scatter(facts, 0)
    else:
        yield Batch(0)
    yield from forward_of_all(facts, 0)
    if scatters:
        yield Gather(0, 0)
        yield Meet()  # a rank that got nothing is no step ahead
    else:
        yield Done(0)


def idle_option(strategy: Strategy, read: Sequence[str] = ()) -> str | None:
    """Say that an option is about gradients, of which inference has none; or None.

    Parameters
    ----------
    strategy : Strategy
        As it is written.
    read : sequence of str
        Options that inference reads too.
    """
    for name, field in type(strategy).model_fields.items():
        if name in ("kind", *read) or getattr(strategy, name) == field.get_default():
            continue
        return f"{name}: mode: inference has no gradients to send; leave this out."
    return None
