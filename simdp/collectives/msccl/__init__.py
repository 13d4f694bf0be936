"""MSCCL XML programs as collective algorithms.

A send reads at the beginning of its turn, a receive stores at the end of its turn. Both become one
transfer, in the turn of the receive. If the source changes in between, the transfer lands in
scratch when it is sent, and is stored when it is received. Local copies and sums are transfers from
a rank to itself, which take no time.

The file is read, put into rounds and proved before anything runs, so that a program that drops or
doubles a contribution is refused. It is written for one world_size. A broadcast or reduce supports
every root, with ranks counted from there. In time a transfer waits for the data that it sends, not
for the thread block that carries it.

References
----------
Cowan et al., "MSCCLang: Microsoft collective communication language", ASPLOS 2023;
github.com/microsoft/msccl-tools.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import PrivateAttr

from simdp.collectives.base import (
    AllGatherAlgorithm,
    AllReduceAlgorithm,
    AllToAllAlgorithm,
    BroadcastAlgorithm,
    GatherAlgorithm,
    ReduceAlgorithm,
    ReduceScatterAlgorithm,
    ScatterAlgorithm,
    Simple,
)
from simdp.collectives.msccl.program import (
    PUTS_TOGETHER,
    TAKES_APART,
    Act,
    Acts,
    BufferPlace,
    MscclProgram,
    acts_of,
    pairs_of,
    read_program,
    take_turns,
)
from simdp.collectives.plans import Layout, Plan, Round, even_offsets, prove
from simdp.errors import PlanError, ScenarioError
from simdp.files import read_text

# Rounds -------------------------------------------------------------------------------------------


class Move(NamedTuple):
    """Chunks sent from rank to rank over a channel, or moved locally by a thread block."""

    turn: int
    src: int
    dst: int
    chunk: int
    to: int
    reduce: bool
    num_chunks: int
    channel: int


@dataclass(frozen=True, eq=False)
class MscclAlgorithm:
    """An algorithm in rounds, with its root and its chunks of scratch per rank."""

    root: int
    num_scratch: int
    rounds: list[Round]


def schedule(program: MscclProgram, where: str) -> MscclAlgorithm:
    """Put a program into rounds.

    Raises
    ------
    ScenarioError
        With the file, the line and the reason: an unmatched send or receive, thread blocks that
        share a connection, steps that wait for each other in a circle.
    """
    acts = acts_of(program)
    pairs = pairs_of(program, acts, where)
    take_turns(acts, pairs, where)
    return _Scheduler(program, acts, pairs).schedule()


class _Scheduler:
    """Turns acts, and pairs of sends and receives, into moves."""

    def __init__(self, program: MscclProgram, acts: Acts, pairs: list[tuple[Act, Act]]) -> None:
        self.program, self.acts, self.pairs = program, acts, pairs
        self.root = self._find_root()
        self.output, self.scratch, self.first_free = self._lay_out()
        self.used = dict.fromkeys(range(len(program.gpus)), self.first_free)
        self.reads: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.writes: dict[tuple[int, int], list[tuple[int, bool]]] = defaultdict(list)
        self.carrier: dict[tuple[int, int, int], int] = {}
        self.moves: list[Move] = []

    def _find_root(self) -> int:
        """Return the rank that receives nothing (broadcast, scatter), or sends nothing."""
        gives = self.program.collective in ("broadcast", "scatter")
        busy = {(receive if gives else send).rank for send, receive in self.pairs}
        if gives or self.program.collective in ("reduce", "gather"):
            return next((r for r in range(len(self.program.gpus)) if r not in busy), 0)
        return 0

    def _lay_out(self) -> tuple[int, int, int]:
        """Return the offsets of the output, the scratch, and the free space after it."""
        program = self.program
        chunks = program.num_chunks
        behind = 2 * chunks if program.collective == "all_to_all" else chunks
        if not program.in_place and program.collective != "all_to_all":
            behind += program.num_pieces if program.collective in TAKES_APART else chunks
        most = max((gpu.num_scratch for gpu in program.gpus), default=0)
        return (0 if program.in_place else chunks), behind, behind + most

    def slot(self, rank: int, place: BufferPlace) -> int:
        """Return the plan's chunk of a place."""
        program, (buffer, offset) = self.program, place
        if buffer == "s":
            return self.scratch + offset
        own = rank * program.num_pieces
        if buffer == "i":
            return own + offset if program.collective in PUTS_TOGETHER else offset
        if program.in_place and program.collective in TAKES_APART:
            return own + offset
        return self.output + offset

    def schedule(self) -> MscclAlgorithm:
        everything = [act for acts in self.acts.values() for act in acts]
        for act in everything:
            self._note_accesses(act)
        for act in everything:
            if act.role == "in" and act.step.kind == "rrs":
                self._choose_carrier(act)
        for act in everything:
            if act.role == "home":
                self._work_at_home(act)
        for send, receive in self.pairs:
            self._transfer(send, receive)
        last = max((move.turn for move in self.moves), default=0)
        self._bring_home(last + 1)
        num_scratch = max(self.used.values()) - self.program.num_chunks
        return MscclAlgorithm(self.root, num_scratch, list(self._rounds()))

    # What reads and writes where, if every act does so in its own turn -----------------------

    def _slots(self, act: Act, place: BufferPlace) -> range:
        first = self.slot(act.rank, place)
        return range(first, first + act.step.count)

    def _note_accesses(self, act: Act) -> None:
        step, turn = act.step, act.turn
        reads, writes, adds = [], [], False
        if act.role == "out":
            reads = {"s": [step.source], "rrs": []}.get(step.kind, [step.target])
        elif step.kind in ("r", "rcs"):
            writes = [step.target]
        elif step.kind == "rrs":
            reads = [step.source]
        elif step.kind in ("rrc", "rrcs", "cpy", "re"):
            reads, writes = [step.source], [step.target]
            adds = step.kind == "re" or (step.kind != "cpy" and step.source == step.target)
        for place in reads + (writes if adds else []):
            for slot in self._slots(act, place):
                self.reads[act.rank, slot].append(turn)
        for place in writes:
            for slot in self._slots(act, place):
                self.writes[act.rank, slot].append((turn, adds))

    def _choose_carrier(self, act: Act) -> None:
        """Let a sum that is only forwarded replace the local part, if that is no longer needed."""
        slots = self._slots(act, act.step.source)
        if all(self._done_for(act.rank, slot, act.turn) for slot in slots):
            self.carrier[act.key] = slots[0]
            for slot in slots:
                self.writes[act.rank, slot].append((act.turn, True))
        else:
            self.carrier[act.key] = self._spare(act.rank, act.step.count)

    def _done_for(self, rank: int, slot: int, turn: int) -> bool:
        """Return whether a chunk is not read after a turn before it is replaced."""
        reads, writes = self.reads[rank, slot], self.writes[rank, slot]
        if any(when == turn for when, _ in writes):
            return False
        replaced = min((when for when, adds in writes if when > turn and not adds), default=None)
        if replaced is None:
            return not self._is_result(rank, slot) and max(reads) <= turn
        return not any(turn < when <= replaced for when in reads)

    def _is_result(self, rank: int, slot: int) -> bool:
        program = self.program
        if not program.in_place:
            return self.output <= slot < self.scratch
        if slot >= program.num_chunks:
            return False
        if program.collective in TAKES_APART:
            return slot // program.num_pieces == rank
        return program.collective not in ("reduce", "gather") or rank == self.root

    def _spare(self, rank: int, count: int) -> int:
        """Return unused chunks."""
        first = self.used[rank]
        self.used[rank] += count
        return first

    # Moves -----------------------------------------------------------------------------------

    def _work_at_home(self, act: Act) -> None:
        step, rank = act.step, act.rank
        if step.kind == "nop":
            return
        ends = self.slot(rank, step.source), self.slot(rank, step.target)
        if ends[0] != ends[1]:
            adds = step.kind == "re"
            self.moves.append(Move(act.turn, rank, rank, *ends, adds, step.count, act.block))

    def _source_of(self, send: Act) -> int:
        step = send.step
        if step.kind == "rrs":
            return self.carrier[send.key]
        return self.slot(send.rank, step.source if step.kind == "s" else step.target)

    def _transfer(self, send: Act, receive: Act) -> None:
        step, count, rank = receive.step, receive.step.count, receive.rank
        chunk, src, turn = self._source_of(send), send.rank, receive.turn
        channel = self.program.gpus[rank].blocks[receive.block].channel
        changes = (
            when
            for slot in range(chunk, chunk + count)
            for when, _ in self.writes[src, slot]
            if send.turn <= when < turn
        )
        if next(changes, None) is not None:
            spare = self._spare(rank, count)
            self.moves.append(Move(send.turn, src, rank, chunk, spare, False, count, channel))
            src, chunk, channel = rank, spare, receive.block
        adds = step.kind.startswith("rr")
        target = self.carrier[receive.key] if step.kind == "rrs" else self.slot(rank, step.target)
        if adds:
            local = self.slot(rank, step.source)
            if local != target:
                home = Move(turn, rank, rank, local, target, False, count, receive.block)
                self.moves.append(home)
        self.moves.append(Move(turn, src, rank, chunk, target, adds, count, channel))

    def _bring_home(self, turn: int) -> None:
        """Copy the output to the buffer's chunks, if it is elsewhere."""
        program = self.program
        exchange = program.collective == "all_to_all"
        if program.in_place != exchange:
            return
        chunks = program.num_chunks
        for rank in range(len(program.gpus)):
            if exchange:
                self.moves.append(Move(turn, rank, rank, 0, chunks, False, chunks, 0))
                continue
            apart = program.collective in TAKES_APART
            own = rank * program.num_pieces if apart else 0
            for slot in range(self.output, self.scratch):
                if self.writes[rank, slot]:
                    self.moves.append(
                        Move(turn, rank, rank, slot, own + slot - self.output, False, 1, 0)
                    )

    def _rounds(self) -> Iterator[Round]:
        """Yield the moves by turn; in a round, replacements of a place come before additions."""
        by_turn: dict[int, list[Move]] = defaultdict(list)
        for move in self.moves:
            by_turn[move.turn].append(move)
        for turn in sorted(by_turn):
            moves = sorted(by_turn[turn], key=lambda move: move.reduce)
            columns = zip(
                *((m.src, m.dst, m.chunk, m.to, m.num_chunks, m.channel) for m in moves),
                strict=True,
            )
            src, dst, chunk, to, count, channel = (np.array(column) for column in columns)
            adds = np.array([m.reduce for m in moves])
            yield Round(src, dst, chunk, adds, to, count, channel=channel)


# Msccl --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Loaded:
    """Content of a file: number of ranks and of chunks, and its rounds."""

    num_ranks: int
    num_chunks: int
    schedule: MscclAlgorithm


@lru_cache(maxsize=16)
def load(text: str, where: str, collective: str) -> Loaded:
    """Read an algorithm from the text of its file, and prove it; ``where``, the path, leads errors.

    Raises
    ------
    ScenarioError
        With the file, the line and the reason; of a dropped or doubled contribution, with the
        round, rank and chunk.
    """
    program = read_program(text, where, collective)
    algorithm = schedule(program, where)
    plan = Plan(
        collective=collective,
        world_size=len(program.gpus),
        num_chunks=program.num_chunks,
        root=algorithm.root,
        rounds=partial(iter, algorithm.rounds),
        offsets=even_offsets(program.num_chunks),
        num_scratch=algorithm.num_scratch,
    )
    try:
        prove(plan)
    except PlanError as error:
        raise ScenarioError([f"{where}: {error}"]) from None
    return Loaded(plan.world_size, plan.num_chunks, algorithm)


class Msccl(Simple):
    """Base of the algorithms from files."""

    kind: Literal["msccl"] = "msccl"
    path: str
    """An XML file of msccl-tools, relative to the scenario file."""

    _loaded: Loaded | None = PrivateAttr(default=None)

    def settled(self, base: Path) -> Self:
        file = base / self.path
        read = self.model_copy()
        read._loaded = load(read_text(file, "an algorithm is XML"), str(file), self.collective)
        return read

    @property
    def loaded(self) -> Loaded:
        """Content of the file.

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


class MscclAllGather(Msccl, AllGatherAlgorithm):
    """An all_gather from an XML file of msccl-tools; see `Msccl`."""


class MscclAllReduce(Msccl, AllReduceAlgorithm):
    """An all_reduce from an XML file of msccl-tools; see `Msccl`."""


class MscclAllToAll(Msccl, AllToAllAlgorithm):
    """An all_to_all from an XML file of msccl-tools; see `Msccl`."""


class MscclBroadcast(Msccl, BroadcastAlgorithm):
    """A broadcast from an XML file of msccl-tools; see `Msccl`."""


class MscclGather(Msccl, GatherAlgorithm):
    """A gather from an XML file of msccl-tools; see `Msccl`."""


class MscclReduce(Msccl, ReduceAlgorithm):
    """A reduce from an XML file of msccl-tools; see `Msccl`."""


class MscclReduceScatter(Msccl, ReduceScatterAlgorithm):
    """A reduce_scatter from an XML file of msccl-tools; see `Msccl`."""


class MscclScatter(Msccl, ScatterAlgorithm):
    """A scatter from an XML file of msccl-tools; see `Msccl`."""
