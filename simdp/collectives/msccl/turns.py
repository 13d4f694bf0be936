"""When the steps of an MSCCL algorithm happen: acts, which come after each other in turns.

Every step is one or two *acts*: receiving, then sending; or working at home. An act comes after
the one before it in its thread block, after what its step waits for, and a receive not before its
send; its *turn* is the longest way to it. Sends are buffered, as NCCL's are, so that two ranks may
send to each other before they receive.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Literal

from simdp.collectives.msccl.program import RECEIVES, SENDS, Program, Step
from simdp.errors import ScenarioError


@dataclass(eq=False)
class Act:
    """Half of a step: what a rank does in one turn.

    Attributes
    ----------
    rank, block, number : int
        Whose step it is: rank, thread block, number of the step.
    step : Step
        The step.
    role : {"in", "out", "home"}
        Receiving, sending, or neither.
    """

    rank: int
    block: int
    number: int
    step: Step
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


def acts_of(program: Program) -> Acts:
    """Take every step apart."""
    found: Acts = {}
    for rank, block, number, step in program.steps():
        acts = []
        if step.kind in RECEIVES:
            acts.append(Act(rank, block, number, step, "in"))
        if step.kind in SENDS:
            acts.append(Act(rank, block, number, step, "out"))
        found[rank, block, number] = acts or [Act(rank, block, number, step, "home")]
    return found


def pairs_of(program: Program, acts: Acts, where: str) -> list[tuple[Act, Act]]:
    """Match sends and receives of each connection in their order.

    Raises
    ------
    ScenarioError
        If one has no counterpart or another count, or two thread blocks share a connection.
    """
    ends: dict[str, dict[tuple[int, int, int], list[Act]]] = {"in": {}, "out": {}}
    owner: dict[tuple[str, int, int, int], int] = {}
    for act in (act for found in acts.values() for act in found if act.role != "home"):
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
    """Give every act its turn: the longest way to it.

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

    for (rank, block, number), found in acts.items():
        chain = ([acts[rank, block, number - 1][-1]] if number else []) + found
        for first, then in pairwise(chain):
            follow(first, then, 1)
        if found[0].step.after is not None:
            follow(acts[(rank, *found[0].step.after)][-1], found[0], 1)
    for send, receive in pairs:
        follow(send, receive, 0)
    everything = [act for found in acts.values() for act in found]
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
    """Say which steps wait for each other: walk back from one that is stuck until one repeats."""
    walked = [act]
    while act not in walked[:-1]:
        act = next(first for first, _ in before[act] if waiting[first])
        walked.append(act)
    circle = walked[walked.index(act) : -1]
    steps = list(dict.fromkeys(str(each) for each in circle))
    waits = ", which waits for ".join([*steps, steps[0]])
    return f"{where}:{act.step.line}: steps wait for each other in a circle: {waits}."
