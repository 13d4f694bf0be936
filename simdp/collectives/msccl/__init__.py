"""MSCCL: an algorithm from an XML file, in the format of msccl-tools.

The file is read, put into rounds and proved before anything runs, so that one that drops or
doubles a contribution is refused. It is written for one world_size. A broadcast or reduce serves
every root, its ranks counted from there. On the clock a transfer waits for the data that it sends,
not for the thread block that carries it.

References
----------
Cowan et al., "MSCCLang: Microsoft collective communication language", ASPLOS 2023;
github.com/microsoft/msccl-tools.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, Self

from pydantic import PrivateAttr

from simdp.collectives.base import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Gather,
    Plan,
    Reduce,
    ReduceScatter,
    Round,
    Scatter,
    Simple,
    even_offsets,
)
from simdp.collectives.msccl.program import read_program
from simdp.collectives.msccl.rounds import Schedule, schedule
from simdp.collectives.plans.layout import Layout
from simdp.collectives.plans.ledger import prove
from simdp.errors import PlanError, ScenarioError
from simdp.files import read_text


@dataclass(frozen=True, eq=False)
class Loaded:
    """What a file holds: for how many ranks, in how many chunks, and its rounds."""

    num_ranks: int
    num_chunks: int
    schedule: Schedule


@lru_cache(maxsize=16)
def load(text: str, where: str, collective: str) -> Loaded:
    """Read an algorithm from the text of its file, and prove it.

    Parameters
    ----------
    text, where : str
        What the file holds; and the file, which leads every error.
    collective : str
        What it must do, a key of `simdp.collectives.FAMILIES`.

    Raises
    ------
    ScenarioError
        With the file, the line and the reason; of a contribution that is dropped or doubled, with
        the round, rank and chunk.
    """
    program = read_program(text, where, collective)
    found = schedule(program, where)
    plan = Plan(
        collective=collective,
        world_size=len(program.gpus),
        num_chunks=program.num_chunks,
        root=found.root,
        rounds=partial(iter, found.rounds),
        offsets=even_offsets(program.num_chunks),
        num_scratch=found.num_scratch,
    )
    try:
        prove(plan)
    except PlanError as error:
        raise ScenarioError([f"{where}: {error}"]) from None
    return Loaded(plan.world_size, plan.num_chunks, found)


class Msccl(Simple):
    """Base of the members: the file, and what it holds once it is read.

    Attributes
    ----------
    path : str
        An XML file of msccl-tools, relative to the scenario file.
    """

    kind: Literal["msccl"] = "msccl"
    path: str

    _loaded: Loaded | None = PrivateAttr(default=None)

    def settled(self, base: Path) -> Self:
        file = base / self.path
        read = self.model_copy()
        read._loaded = load(read_text(file, "an algorithm is XML"), str(file), self.collective)
        return read

    @property
    def loaded(self) -> Loaded:
        """What the file holds.

        Raises
        ------
        ValueError
            If it has not been read.
        """
        if self._loaded is None:
            raise ValueError(f"{self.path} has not been read; call settled with its folder first")
        return self._loaded

    def problem_with(self, layout: Layout) -> str | None:
        if self.loaded.num_ranks == layout.world_size:
            return None
        return f"needs {self.loaded.num_ranks} ranks, for which {self.path} is written"

    def num_chunks(self, layout: Layout, nbytes: float) -> int:
        return self.loaded.num_chunks

    def num_scratch(self, layout: Layout, num_chunks: int) -> int:
        return self.loaded.schedule.num_scratch

    def build(self, layout: Layout, cut: Hashable, root: int) -> Plan:
        written = self.loaded.schedule.root
        if self.collective in ("gather", "scatter") and root != written:
            raise ValueError(
                f"{self.collective} msccl: {self.path} is written for root {written}, got {root}"
            )
        return super().build(layout, cut, root)

    def rounds(self, layout: Layout, num_chunks: int, root: int) -> Iterator[Round]:
        shift, n = root - self.loaded.schedule.root, layout.world_size
        for transfers in self.loaded.schedule.rounds:
            src, dst = (transfers.src + shift) % n, (transfers.dst + shift) % n
            yield transfers._replace(src=src, dst=dst)


class MscclAllGather(Msccl, AllGather):
    """An all_gather from an XML file of msccl-tools; see `Msccl`."""


class MscclAllReduce(Msccl, AllReduce):
    """An all_reduce from an XML file of msccl-tools; see `Msccl`."""


class MscclAllToAll(Msccl, AllToAll):
    """An all_to_all from an XML file of msccl-tools; see `Msccl`."""


class MscclBroadcast(Msccl, Broadcast):
    """A broadcast from an XML file of msccl-tools; see `Msccl`."""


class MscclGather(Msccl, Gather):
    """A gather from an XML file of msccl-tools; see `Msccl`."""


class MscclReduce(Msccl, Reduce):
    """A reduce from an XML file of msccl-tools; see `Msccl`."""


class MscclReduceScatter(Msccl, ReduceScatter):
    """A reduce_scatter from an XML file of msccl-tools; see `Msccl`."""


class MscclScatter(Msccl, Scatter):
    """A scatter from an XML file of msccl-tools; see `Msccl`."""
