"""Process groups, as torch.distributed has them."""

from __future__ import annotations

import warnings
from operator import index
from typing import Any, ClassVar, NamedTuple

from simdp.distributed.process import CURRENT, Process, process
from simdp.engine.programs.groups import Group
from simdp.errors import ProgramError


class ProcessGroup:
    """What `new_group` gives to a member.

    Parameters
    ----------
    of : Process
        The member.
    members : Group
        All of them.
    desc : str
        What the program calls it.

    Attributes
    ----------
    group_desc : str
        The same.
    """

    def __init__(self, of: Process, members: Group, desc: str = "undefined") -> None:
        self._of, self.members, self.group_desc = of, members, desc

    @property
    def group_name(self) -> str:
        """What messages call it."""
        return self.members.name

    def rank(self) -> int:
        """The member's place in the group."""
        return self.members.place[self._of.rank]

    def size(self) -> int:
        """Number of members."""
        return len(self.members.ranks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessGroup) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Process, Group]:
        return self._of, self.members

    def __repr__(self) -> str:
        return f"<group {self.members.name}>"


class _World(type):
    """Has what looks like a constant of a class, but is each rank's own."""

    @property
    def WORLD(cls) -> ProcessGroup | None:  # noqa: N802  torch's name
        """The default group; None where there is none yet, or no rank asks."""
        asking = CURRENT.get(None)
        if asking is None or asking.world is None:
            return None
        return ProcessGroup(asking, asking.world, "default_pg")


class GroupMember(metaclass=_World):
    """Groups that are not made: ``WORLD``, and what a rank gets that is not a member.

    Attributes
    ----------
    NON_GROUP_MEMBER : object
        What `new_group` gives to ranks that are not in the group.
    """

    NON_GROUP_MEMBER: ClassVar[object] = object()


AnyGroup = ProcessGroup | object | None


class Root(NamedTuple):
    """The rank that a call begins or ends at: its place, itself, and how messages show it."""

    place: int
    rank: int
    mine: bool
    shown: str


class Member(NamedTuple):
    """A rank in a group that it belongs to."""

    process: Process
    group: Group

    def place(self, rank: Any, call: str, name: str) -> int:
        """The place in the group of a rank that is given as ``name``.

        Raises
        ------
        ProgramError
            If it is no rank of the group.
        """
        number = whole_number(rank)
        found = None if number is None else self.group.place.get(number)
        if found is None:
            known = ", ".join(map(str, self.group.ranks))
            raise ProgramError(
                f"{call}: {name}={rank!r} is no rank of group {self.group.name}; give one of "
                f"{known}."
            )
        return found

    def root(
        self, rank: Any, group_rank: Any, call: str, name: str, default: int | None = None
    ) -> Root:
        """The rank that is given as ``name``, or by its place as ``group_name``.

        Raises
        ------
        ProgramError
            If it is no rank of the group, or not given in one of these ways.
        """
        if rank is None and group_rank is None:
            rank = default
        if (rank is None) == (group_rank is None):
            raise ProgramError(f"{call}: give {name} or group_{name}, one of the two.")
        if group_rank is None:
            place = self.place(rank, call, name)
        else:
            place = _place(self.group, group_rank, call, f"group_{name}")
        found = self.group.ranks[place]
        return Root(place, found, found == self.process.rank, f"{name}={found}")


def _place(group: Group, number: Any, call: str, name: str) -> int:
    found = whole_number(number)
    if found is None or not 0 <= found < len(group.ranks):
        raise ProgramError(
            f"{call}: {name}={number!r} is no place in group {group.name}; give one of 0 ... "
            f"{len(group.ranks) - 1}."
        )
    return found


def whole_number(rank: Any) -> int | None:
    """A whole number of any type, or None."""
    try:
        return index(rank)
    except TypeError:
        return None


def initialised(call: str) -> Process:
    """The rank that asks, which must have a default group.

    Raises
    ------
    ProgramError
        If it has none.
    """
    found = process(call)
    if found.world is None:
        raise ProgramError(f"{call}: there is no default group yet; call init_process_group first.")
    return found


def member(group: AnyGroup, call: str, warn: bool = True, depth: int = 3) -> Member | None:
    """The rank that asks, in a group; None, with torch's warning, where it is no member.

    Parameters
    ----------
    group : ProcessGroup, object or None
        As the program gives it.
    call : str
        For messages.
    warn : bool
        Whether a stranger is warned.
    depth : int
        Frames from here to the program's, which the warning names.

    Raises
    ------
    ProgramError
        If there is no such group.
    """
    asking = initialised(call)
    if group is None:
        assert asking.world is not None
        return Member(asking, asking.world)
    stranger = isinstance(group, ProcessGroup) and asking.rank not in group.members.place
    if stranger or group is GroupMember.NON_GROUP_MEMBER:
        if warn:
            warnings.warn(
                f"Running {call} on global rank {asking.rank} which does not belong to the given "
                "group.",
                stacklevel=depth,
            )
        return None
    if not isinstance(group, ProcessGroup) or group.members.name in asking.destroyed:
        raise ProgramError(
            f"{call}: unknown group {group!r}; give what new_group returned and nobody destroyed, "
            "or None for all ranks."
        )
    return Member(asking, group.members)


def destroy_process_group(group: AnyGroup = None) -> None:
    """Give a group up; without one, the default group and all others."""
    found = member(group, "destroy_process_group", warn=False)
    if found is None:
        return
    if found.group is found.process.world:
        found.process.world = None
    else:
        found.process.destroyed[found.group.name] = None


def is_initialized() -> bool:
    """Tell whether there is a default group."""
    return process("is_initialized").world is not None


def get_rank(group: AnyGroup = None) -> int:
    """Rank of the caller, in a group its place there; -1 where it is no member."""
    found = member(group, "get_rank", warn=False)
    return -1 if found is None else found.group.place[found.process.rank]


def get_world_size(group: AnyGroup = None) -> int:
    """Number of ranks of a group; -1 where the caller is no member."""
    found = member(group, "get_world_size", warn=False)
    return -1 if found is None else len(found.group.ranks)


def _of(group: AnyGroup, call: str) -> Group:
    """A group that the caller must be a member of."""
    found = member(group, call, warn=False)
    if found is None:
        raise ProgramError(f"{call}: this rank is no member of the group; ask on one that is.")
    return found.group


def get_backend(group: AnyGroup = None) -> str:
    """Name of a group's backend.

    Raises
    ------
    ProgramError
        If the caller is no member.
    """
    return _of(group, "get_backend").backend


def get_process_group_ranks(group: AnyGroup) -> list[int]:
    """Global ranks of a group's members, in its order; of all ranks, if None.

    Raises
    ------
    ProgramError
        If the caller is no member.
    """
    return list(_of(group, "get_process_group_ranks").ranks)


def get_global_rank(group: AnyGroup, group_rank: int) -> int:
    """Global rank of the member at a place.

    Raises
    ------
    ProgramError
        If there is no such place, or the caller is no member.
    """
    of = _of(group, "get_global_rank")
    return of.ranks[_place(of, group_rank, "get_global_rank", "group_rank")]


def get_group_rank(group: AnyGroup, global_rank: int) -> int:
    """Place of a global rank in a group.

    Raises
    ------
    ProgramError
        If it is no member, or the caller is none.
    """
    of = _of(group, "get_group_rank")
    return Member(process("get_group_rank"), of).place(global_rank, "get_group_rank", "global_rank")
