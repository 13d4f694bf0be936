"""Agreement: whether ranks call the same collective, in the words of torch's analyser.

``torchfrtrace`` compares what ranks call in one place of a process group, in this order: the type,
the sizes, the dtypes, the state. All-to-alls may have uneven sizes, which only all ranks together
decide. Whose call differs from most of the others is the culprit; where no side is in the majority,
the rank whose further calls are those of the others one place on: it left one out.

References
----------
torch, torch/distributed/flight_recorder/components/types.py: MatchState, Op.match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

FULLY_MATCHED = "FULLY_MATCHED"
COLLECTIVE_TYPE_MISMATCH = "COLLECTIVE_TYPE_MISMATCH"
SIZE_OR_SYNTAX_MISMATCH = "SIZE_OR_SYNTAX_MISMATCH"
COLLECTIVE_DTYPE_MISMATCH = "COLLECTIVE_DTYPE_MISMATCH"
COLLECTIVE_STATE_MISMATCH = "COLLECTIVE_STATE_MISMATCH"
UNDECIDED = "UNDECIDED"

UNEVEN = ("all_to_all",)
"""Collectives in which ranks may send different sizes."""

AHEAD = 4
"""Calls that are compared to find the rank that left one out."""


class RankCall(NamedTuple):
    """What a rank called; empty where it is not known.

    Attributes
    ----------
    name : str
        In torch's terms.
    sizes, out_sizes : tuple of int
        Elements of each input and output.
    dtypes : tuple of str
        Of both.
    state : str
        How far it came.
    """

    name: str
    sizes: tuple[int, ...] = ()
    out_sizes: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    state: str = ""


def compared(
    calls: Mapping[int, RankCall], is_complete: bool = True
) -> tuple[str, str, tuple[int, ...]]:
    """Compare what the ranks of a group call in one place.

    Parameters
    ----------
    calls : mapping of int to Called
        By rank; at least one.
    is_complete : bool
        Whether these are all the ranks of the group.

    Returns
    -------
    (str, str, tuple of int)
        The state of the match, the difference in words, and the rank that differs from most; none
        where no side is in the majority.
    """
    checks: list[tuple[str, Callable[[RankCall], object]]] = [
        (COLLECTIVE_TYPE_MISMATCH, lambda call: call.name),
        (SIZE_OR_SYNTAX_MISMATCH, _sizes),
        (COLLECTIVE_DTYPE_MISMATCH, lambda call: call.dtypes),
        (COLLECTIVE_STATE_MISMATCH, lambda call: call.state),
    ]
    for state, what in checks:
        seen = {rank: what(call) for rank, call in calls.items()}
        if len(set(seen.values())) > 1:
            return state, _differ(seen), _odd(seen)
    some = next(iter(calls.values()))
    if some.name not in UNEVEN:
        return FULLY_MATCHED, "", ()
    if not is_complete or not all(call.out_sizes for call in calls.values()):
        return UNDECIDED, "uneven sizes take all ranks to decide", ()
    sent = sum(sum(call.sizes) for call in calls.values())
    got = sum(sum(call.out_sizes) for call in calls.values())
    if sent != got:
        return SIZE_OR_SYNTAX_MISMATCH, f"{sent} elements are sent, and {got} expected", ()
    return FULLY_MATCHED, "", ()


def _sizes(call: RankCall) -> tuple[object, ...]:
    """Sizes that have to be equal on all ranks."""
    if call.name in UNEVEN:
        return ()
    return (
        call.sizes if call.name != "scatter" else (),
        call.out_sizes if call.name != "gather" else (),
    )


def _odd(seen: Mapping[int, object]) -> tuple[int, ...]:
    counts = Counter(seen.values()).most_common()
    if counts[0][1] * 2 <= len(seen):
        return ()
    return tuple(rank for rank, value in seen.items() if value != counts[0][0])


def _differ(seen: Mapping[int, object]) -> str:
    """``rank 3: 128, the others: 256``."""
    by_value = dict[object, list[int]]()
    for rank, value in seen.items():
        by_value.setdefault(value, []).append(rank)
    ordered = sorted(by_value.items(), key=lambda item: (len(item[1]), item[1]))
    return "; ".join(f"{ranks_in_words(ranks)}: {_plain(value)}" for value, ranks in ordered)


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return " to ".join(
            str(list(part)) if isinstance(part, tuple) else str(part) for part in value
        )
    return str(value)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0, 1, 2, 3 and 4 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"ranks {', '.join(map(str, ranks[:4]))}{more}"


def who_left_one_out(calls: Mapping[int, Sequence[RankCall]]) -> tuple[int, ...]:
    """Whose calls are those of every other rank, one place on.

    Parameters
    ----------
    calls : mapping of int to sequence of Called
        Of each rank, from where they first differ.
    """
    plain = {rank: [call._replace(state="") for call in listed] for rank, listed in calls.items()}
    found = []
    for rank, mine in plain.items():
        others = [listed for other, listed in plain.items() if other != rank]
        length = min([AHEAD, len(mine), *(len(listed) - 1 for listed in others)])
        if length > 0 and all(mine[:length] == other[1 : length + 1] for other in others):
            found.append(rank)
    return tuple(found) if len(found) == 1 else ()
