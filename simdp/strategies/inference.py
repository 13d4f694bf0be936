"""Inference by processes that have a copy of the model each, and send each other no gradients."""

from __future__ import annotations

from collections.abc import Sequence

from simdp.strategies.base import Rank, Script, Strategy


def infer_in_processes(rank: Rank, scatters: bool) -> Script:
    """One step: forward alone.

    Parameters
    ----------
    rank : Rank
        Whose models are alike.
    scatters : bool
        Whether rank 0 has the batch, hands it out and gathers the outputs; else every rank has
        samples of its own, and keeps what it makes of them.
    """
    if not scatters:
        yield from rank.own_batch(0)
        yield from rank.forward_together(0)
        return
    yield from rank.scatter_batch(0)
    yield from rank.forward_together(0)
    yield from rank.gather_outputs(0, 0)
    yield from rank.meet()  # a rank that got nothing is no step ahead


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
