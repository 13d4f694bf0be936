"""Collectives: what a rank sent, in torch's terms, as columns."""

from __future__ import annotations

from dataclasses import dataclass

from simdp.arrays import Array, Floats, Ints


@dataclass(frozen=True, eq=False)
class Collectives:
    """Collectives and messages of a rank, sorted by their start.

    Attributes
    ----------
    names : tuple of str
        Every name once, as torch says it: ``all_reduce``, ``all_gather``, ``reduce_scatter``,
        ``broadcast``, ``reduce``, ``all_to_all``, ``gather``, ``scatter``, ``send``, ``recv``,
        ``barrier``, ``send_recv`` (messages, or an all_to_all, of which the trace says no more),
        ``unknown``.
    name : ndarray, int64
        Which of ``names`` each has.
    kernel : ndarray, int64
        Index into the kernels, or -1 where none belongs to it.
    num_elements, out_elements : ndarray, int64
        Of this rank's input and output; -1 unknown.
    dtype : ndarray, str
        As torch says it, ``"float32"``; ``""`` unknown.
    group : ndarray, str
        Name of the process group; ``""`` unknown.
    group_size : ndarray, int64
        Its ranks; -1 unknown.
    sequence : ndarray, int64
        Number of the collective in its group; -1 unknown.
    peer : ndarray, int64
        Of a message the other rank, by its number in the group; -1 unknown, or none.
    algorithm, protocol : ndarray, str
        ``"RING"``, ``"TREE"`` ... and ``"LL"``, ``"LL128"``, ``"SIMPLE"``; ``""`` unknown.
    start, end : ndarray, float64
        Of the kernel, else of the host's call [s]; a rank enters at the start, and waits there
        for the others.
    step : ndarray, int64
        Index of the step in which the host called it, or -1.
    enqueued : ndarray, float64
        The host's call [s]; nan unknown.
    """

    names: tuple[str, ...]
    name: Ints
    kernel: Ints
    num_elements: Ints
    out_elements: Ints
    dtype: Array
    group: Array
    group_size: Ints
    sequence: Ints
    peer: Ints
    algorithm: Array
    protocol: Array
    start: Floats
    end: Floats
    step: Ints
    enqueued: Floats

    def __len__(self) -> int:
        return len(self.start)
