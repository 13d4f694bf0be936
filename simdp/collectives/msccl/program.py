"""Reads an MSCCL XML program and orders its instructions.

The format is that of msccl-tools. Its hardware attributes (``proto``, ``nchannels``, ``minBytes``,
``maxBytes``) are ignored. `simdp.collectives.msccl` turns the steps into rounds.

Every step is one or two *acts*: a receive, then a send; or a local operation. An act comes after
the previous one of its thread block, after its step's dependency, and a receive not before its
send; its *turn* is the longest path to it. Sends are buffered, as in NCCL, so that two ranks may
send to each other before they receive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Literal, NamedTuple

from simdp.errors import ScenarioError, unknown_name
from simdp.files import XmlElement, parse_xml

# Program ------------------------------------------------------------------------------------------

Kind = Literal["s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop"]

USES_SOURCE: tuple[Kind, ...] = ("s", "rrs", "rrc", "rrcs", "cpy", "re")
USES_TARGET: tuple[Kind, ...] = ("r", "rcs", "rrc", "rrcs", "cpy", "re")
SENDS: tuple[Kind, ...] = ("s", "rcs", "rrs", "rrcs")
RECEIVES: tuple[Kind, ...] = ("r", "rcs", "rrs", "rrc", "rrcs")
KINDS: tuple[Kind, ...] = (*SENDS, "r", "rrc", "cpy", "re", "nop")

COLLECTIVES = {
    "allgather": "all_gather",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "gather": "gather",
    "reduce": "reduce",
    "reducescatter": "reduce_scatter",
    "scatter": "scatter",
}
"""Collectives by MSCCL's name."""

TAKES_APART = ("reduce_scatter", "scatter")
PUTS_TOGETHER = ("all_gather", "gather")

MAX_CHUNKS = 2**16
"""Far above any algorithm's, so that a typing error does not fill the memory."""


class BufferPlace(NamedTuple):
    """Chunks of a rank: buffer ``i``, ``o`` or ``s`` (scratch), and the first of them."""

    buffer: str
    offset: int


@dataclass(frozen=True)
class ThreadStep:
    """One step of a thread block.

    ``kind``: ``s`` sends, ``r`` receives, ``rcs`` receives and forwards, ``rrc`` adds the received
    chunk to the source and stores the sum at the target, ``rrcs`` also forwards it, ``rrs`` only
    forwards it; ``cpy`` and ``re`` copy and add locally; ``nop`` waits. ``after`` is a thread block
    of the same GPU, and its step, that must be done.
    """

    line: int
    kind: Kind
    source: BufferPlace
    target: BufferPlace
    count: int
    after: tuple[int, int] | None


@dataclass(frozen=True)
class ThreadBlock:
    """A thread block: its steps run one after the other, with at most two peers."""

    line: int
    send: int
    recv: int
    channel: int
    steps: tuple[ThreadStep, ...]


@dataclass(frozen=True)
class Gpu:
    """The thread blocks of a rank by number, and its scratch chunks."""

    blocks: dict[int, ThreadBlock]
    num_scratch: int


@dataclass(frozen=True)
class MscclProgram:
    """A whole algorithm: number of chunks of the buffer, GPUs by rank."""

    collective: str
    num_chunks: int
    in_place: bool
    gpus: list[Gpu]

    @property
    def num_pieces(self) -> int:
        """Chunks of one rank's piece."""
        return self.num_chunks // len(self.gpus)

    def steps(self) -> Iterator[tuple[int, int, int, ThreadStep]]:
        """Yield every step, with its rank, thread block and number."""
        for rank, gpu in enumerate(self.gpus):
            for block in sorted(gpu.blocks):
                for number, step in enumerate(gpu.blocks[block].steps):
                    yield rank, block, number, step


def read_program(text: str, where: str, collective: str) -> MscclProgram:
    """Read an algorithm from the text of its file; ``where``, the path, leads errors.

    Raises
    ------
    ScenarioError
        With the file, the line and the reason.
    """
    return _Reader(where, collective).program(parse_xml(text, where))


class _Reader:
    """Reads one file; ``where`` leads its errors."""

    def __init__(self, where: str, collective: str) -> None:
        self.where, self.collective = where, collective
        self.num_ranks = self.num_chunks = 0

    def wrong(self, line: int, reason: str) -> ScenarioError:
        return ScenarioError([f"{self.where}:{line}: {reason}"])

    def text(self, element: XmlElement, key: str) -> str:
        if key not in element.attributes:
            raise self.wrong(element.line, f"<{element.name}> has no attribute {key!r}; add it.")
        return element.attributes[key]

    def number(self, element: XmlElement, key: str, least: int, most: int) -> int:
        """Return a whole number from ``least`` to ``most``."""
        given = self.text(element, key)
        try:
            value = int(given)
        except ValueError:
            reason = f"<{element.name}> {key} {given!r} is not a whole number."
            raise self.wrong(element.line, reason) from None
        if not least <= value <= most:
            reason = (
                f"<{element.name}> {key} {given} is out of range; it must be {least} ... {most}."
            )
            raise self.wrong(element.line, reason)
        return value

    def numbered(self, parent: XmlElement, name: str, most: int) -> dict[int, XmlElement]:
        """Return elements by their unique ``id``."""
        elements: dict[int, XmlElement] = {}
        for element in self.children(parent, name):
            number = self.number(element, "id", 0, most)
            if number in elements:
                first = elements[number].line
                raise self.wrong(element.line, f"<{name}> {number} is already in line {first}.")
            elements[number] = element
        return elements

    def children(self, parent: XmlElement, name: str) -> list[XmlElement]:
        for element in parent.children:
            if element.name != name:
                reason = f"<{element.name}> is in <{parent.name}>, which may only hold <{name}>."
                raise self.wrong(element.line, reason)
        return parent.children

    def program(self, top: XmlElement) -> MscclProgram:
        if top.name != "algo":
            raise self.wrong(
                top.line, f"<{top.name}> is not an MSCCL algorithm, which begins with <algo>."
            )
        name = self.text(top, "coll")
        if name not in COLLECTIVES:
            raise self.wrong(top.line, unknown_name("coll", name, sorted(COLLECTIVES)))
        if COLLECTIVES[name] != self.collective:
            reason = f"is for {COLLECTIVES[name]}, not for {self.collective}."
            raise self.wrong(top.line, reason)
        self.num_ranks = self.number(top, "ngpus", 1, MAX_CHUNKS)
        self.num_chunks = self.number(top, "nchunksperloop", 1, MAX_CHUNKS)
        cut_by_rank = self.collective in (*TAKES_APART, *PUTS_TOGETHER, "all_to_all")
        if cut_by_rank and self.num_chunks % self.num_ranks:
            reason = (
                f"nchunksperloop {self.num_chunks} is not a multiple of ngpus {self.num_ranks}, "
                f"as {self.collective} needs."
            )
            raise self.wrong(top.line, reason)
        in_place = bool(self.number(top, "inplace", 0, 1))
        gpus = self.numbered(top, "gpu", self.num_ranks - 1)
        for rank in range(self.num_ranks):
            if rank not in gpus:
                raise self.wrong(top.line, f"has no <gpu> {rank}, but ngpus {self.num_ranks}.")
        programs = [self.gpu(gpus[rank], rank) for rank in range(self.num_ranks)]
        return MscclProgram(self.collective, self.num_chunks, in_place, programs)

    def gpu(self, element: XmlElement, rank: int) -> Gpu:
        piece = self.num_chunks // self.num_ranks
        sizes = {
            "i": piece if self.collective in PUTS_TOGETHER else self.num_chunks,
            "o": piece if self.collective in TAKES_APART else self.num_chunks,
            "s": MAX_CHUNKS,
        }
        sizes = {key: self.number(element, f"{key}_chunks", 0, most) for key, most in sizes.items()}
        blocks = {
            number: self.block(block, rank, sizes)
            for number, block in self.numbered(element, "tb", MAX_CHUNKS).items()
        }
        self._check_waits(element, blocks)
        return Gpu(blocks, sizes["s"])

    def block(self, element: XmlElement, rank: int, sizes: dict[str, int]) -> ThreadBlock:
        peers = []
        for key in ("send", "recv"):
            peer = self.number(element, key, -1, self.num_ranks - 1)
            if peer == rank:
                raise self.wrong(element.line, f"<tb> {key} {peer} is the rank itself.")
            peers.append(peer)
        steps = tuple(
            self.step(step, number, peers, sizes)
            for number, step in enumerate(self.children(element, "step"))
        )
        channel = self.number(element, "chan", 0, MAX_CHUNKS)
        return ThreadBlock(element.line, peers[0], peers[1], channel, steps)

    def step(
        self, element: XmlElement, number: int, peers: list[int], sizes: dict[str, int]
    ) -> ThreadStep:
        given = self.text(element, "type")
        if given not in KINDS:
            raise self.wrong(element.line, unknown_name("step type", given, KINDS))
        kind = given
        if self.number(element, "s", 0, MAX_CHUNKS) != number:
            given = element.attributes["s"]
            raise self.wrong(element.line, f"<step> s is {given}, but this is step {number}.")
        for key, peer, kinds in zip(("send", "recv"), peers, (SENDS, RECEIVES), strict=True):
            if kind in kinds and peer < 0:
                reason = f"step type {kind!r} needs a peer, but its <tb> has {key} -1."
                raise self.wrong(element.line, reason)
        count = self.number(element, "cnt", 0 if kind == "nop" else 1, MAX_CHUNKS)
        source = self.place(element, "src", kind in USES_SOURCE, count, sizes)
        target = self.place(element, "dst", kind in USES_TARGET, count, sizes)
        block = self.number(element, "depid", -1, MAX_CHUNKS)
        before = self.number(element, "deps", -1, MAX_CHUNKS)
        self.number(element, "hasdep", 0, 1)
        after = (block, before) if block >= 0 else None
        return ThreadStep(element.line, kind, source, target, count, after)

    def place(
        self, element: XmlElement, side: str, used: bool, count: int, sizes: dict[str, int]
    ) -> BufferPlace:
        buffer = self.text(element, f"{side}buf")
        if buffer not in sizes:
            raise self.wrong(element.line, unknown_name(f"{side}buf", buffer, sorted(sizes)))
        offset = self.number(element, f"{side}off", 0 if used else -1, MAX_CHUNKS)
        if used and offset + count > sizes[buffer]:
            reason = (
                f"chunk {offset + count - 1} of buffer {buffer!r} is out of range; "
                f"the <gpu> has {buffer}_chunks {sizes[buffer]}."
            )
            raise self.wrong(element.line, reason)
        return BufferPlace(buffer, offset)

    def _check_waits(self, gpu: XmlElement, blocks: dict[int, ThreadBlock]) -> None:
        """Check that awaited steps exist and announce that they are done."""
        announced = {
            int(block.attributes["id"]): [
                number
                for number, step in enumerate(block.children)
                if step.attributes["hasdep"] == "1"
            ]
            for block in gpu.children
        }
        for block in blocks.values():
            for step in block.steps:
                if step.after is None:
                    continue
                other, number = step.after
                there = blocks.get(other)
                if there is None or not 0 <= number < len(there.steps):
                    reason = f"waits for step {number} of <tb> {other}, which is not there."
                    raise self.wrong(step.line, reason)
                if max(announced[other], default=-1) < number:
                    reason = (
                        f"waits for step {number} of <tb> {other} (line "
                        f"{there.steps[number].line}), which has hasdep 0."
                    )
                    raise self.wrong(step.line, reason)


# Turns --------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Act:
    """The work of a rank in one turn: a step's receive, its send, or a local operation."""

    rank: int
    block: int
    number: int
    step: ThreadStep
    role: Literal["in", "out", "home"]
    turn: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        """Rank, thread block and number of the step."""
        return self.rank, self.block, self.number

    def __str__(self) -> str:
        return (
            f"step {self.number} of <tb> {self.block} of <gpu> {self.rank} (line {self.step.line})"
        )


Acts = dict[tuple[int, int, int], list[Act]]
"""The acts of each step, by its rank, thread block and number."""


def acts_of(program: MscclProgram) -> Acts:
    """Split every step into acts."""
    acts_by_step: Acts = {}
    for rank, block, number, step in program.steps():
        acts = []
        if step.kind in RECEIVES:
            acts.append(Act(rank, block, number, step, "in"))
        if step.kind in SENDS:
            acts.append(Act(rank, block, number, step, "out"))
        acts_by_step[rank, block, number] = acts or [Act(rank, block, number, step, "home")]
    return acts_by_step


def pairs_of(program: MscclProgram, acts: Acts, where: str) -> list[tuple[Act, Act]]:
    """Match sends and receives of each connection in their order.

    Raises
    ------
    ScenarioError
        If one has no counterpart or another count, or two thread blocks share a connection.
    """
    ends: dict[str, dict[tuple[int, int, int], list[Act]]] = {"in": {}, "out": {}}
    owner: dict[tuple[str, int, int, int], int] = {}
    for act in (
        act for acts_of_step in acts.values() for act in acts_of_step if act.role != "home"
    ):
        block = program.gpus[act.rank].blocks[act.block]
        there = (act.rank, block.send) if act.role == "out" else (block.recv, act.rank)
        connection = (*there, block.channel)
        first = owner.setdefault((act.role, *connection), act.block)
        if first != act.block:
            raise ScenarioError(
                [
                    f"{where}:{block.line}: <tb> {act.block} of <gpu> {act.rank} shares the "
                    f"connection from rank {there[0]} to rank {there[1]} over channel "
                    f"{block.channel} with <tb> {first}; give it a channel of its own."
                ]
            )
        ends[act.role].setdefault(connection, []).append(act)
    matched = []
    for connection in sorted({**ends["in"], **ends["out"]}):
        sends, receives = (ends[role].get(connection, []) for role in ("out", "in"))
        for send, receive in zip_longest(sends, receives):
            wrong = _mismatch(connection, send, receive)
            if wrong:
                raise ScenarioError([f"{where}:{wrong}"])
            matched.append((send, receive))
    return matched


def _mismatch(
    connection: tuple[int, int, int], send: Act | None, receive: Act | None
) -> str | None:
    src, dst, channel = connection
    if send is None:
        assert receive is not None
        return (
            f"{receive.step.line}: rank {dst} receives from rank {src} over channel {channel}, "
            f"but rank {src} does not send it."
        )
    if receive is None:
        return (
            f"{send.step.line}: rank {src} sends to rank {dst} over channel {channel}, but rank "
            f"{dst} does not receive it."
        )
    if send.step.count != receive.step.count:
        return (
            f"{receive.step.line}: rank {dst} receives cnt {receive.step.count} where rank {src} "
            f"sends cnt {send.step.count} (line {send.step.line})."
        )
    return None


def take_turns(acts: Acts, pairs: list[tuple[Act, Act]], where: str) -> None:
    """Set the turn of every act: the longest path to it.

    Raises
    ------
    ScenarioError
        If steps wait for each other in a circle; ``where`` leads it.
    """
    before: dict[Act, list[tuple[Act, int]]] = defaultdict(list)
    after: dict[Act, list[tuple[Act, int]]] = defaultdict(list)

    def follow(first: Act, then: Act, turns: int) -> None:
        before[then].append((first, turns))
        after[first].append((then, turns))

    for (rank, block, number), acts_of_step in acts.items():
        chain = ([acts[rank, block, number - 1][-1]] if number else []) + acts_of_step
        for first, then in pairwise(chain):
            follow(first, then, 1)
        if acts_of_step[0].step.after is not None:
            follow(acts[(rank, *acts_of_step[0].step.after)][-1], acts_of_step[0], 1)
    for send, receive in pairs:
        follow(send, receive, 0)
    everything = [act for acts_of_step in acts.values() for act in acts_of_step]
    waiting = {act: len(before[act]) for act in everything}
    ready = [act for act in everything if not waiting[act]]
    for act in ready:
        for then, turns in after[act]:
            then.turn = max(then.turn, act.turn + turns)
            waiting[then] -= 1
            if not waiting[then]:
                ready.append(then)
    stuck = [act for act in everything if waiting[act]]
    if stuck:
        raise ScenarioError([_circle(stuck[0], before, waiting, where)])


def _circle(
    act: Act, before: dict[Act, list[tuple[Act, int]]], waiting: dict[Act, int], where: str
) -> str:
    """Describe steps that wait for each other: walk back from a stuck one until one repeats."""
    walked = [act]
    while act not in walked[:-1]:
        act = next(first for first, _ in before[act] if waiting[first])
        walked.append(act)
    circle = walked[walked.index(act) : -1]
    steps = list(dict.fromkeys(str(act_in_circle) for act_in_circle in circle))
    waits = ", which waits for ".join([*steps, steps[0]])
    return f"{where}:{act.step.line}: steps wait for each other in a circle: {waits}."
