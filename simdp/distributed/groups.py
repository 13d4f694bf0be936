"""Process groups, as torch.distributed has them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, ClassVar, NamedTuple

from simdp.distributed.process import Process, process
from simdp.engine.programs.calls import Asked
from simdp.engine.programs.groups import Group
from simdp.errors import ProgramError

DEFAULT_BACKEND = "nccl"


class ProcessGroup:
    """What `new_group` gives to a member.

    Parameters
    ----------
    of : Process
        The member.
    members : Group
        All of them.
    """

    def __init__(self, of: Process, members: Group) -> None:
        self._of, self.members = of, members

    def rank(self) -> int:
        """The member's place in the group."""
        return self.members.place[self._of.rank]

    def size(self) -> int:
        """Number of members."""
        return len(self.members.ranks)

    def __repr__(self) -> str:
        return f"<group {self.members.name}>"


class GroupMember:
    """Groups that are not made: the default one, and what a rank gets that is not a member.

    Attributes
    ----------
    WORLD : None
        The default group.
    NON_GROUP_MEMBER : object
        What `new_group` gives to ranks that are not in the group.
    """

    WORLD: ClassVar[None] = None
    NON_GROUP_MEMBER: ClassVar[object] = object()


AnyGroup = ProcessGroup | object | None


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
        number = _number(rank)
        found = None if number is None else self.group.place.get(number)
        if found is None:
            known = ", ".join(map(str, self.group.ranks))
            raise ProgramError(
                f"{call}: {name}={rank!r} is no rank of group {self.group.name}; give one of "
                f"{known}."
            )
        return found


def _number(rank: Any) -> int | None:
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


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    world_size: int = -1,
    rank: int = -1,
) -> None:
    """Make the default group of all ranks; every rank waits until all have come.

    Parameters
    ----------
    backend : {"nccl", "gloo", "mpi"}, optional
        Which algorithms and costs serve the group (`simdp.distributed.backends`); ``nccl`` if left
        out.
    init_method : str, optional
        Only ``"env://"``: ranks find each other by themselves.
    world_size, rank : int, optional
        If given, they must be what they are.

    Raises
    ------
    ProgramError
        If something is wrong with an argument, or the group is there already.
    """
    call = "init_process_group"
    asking = process(call)
    n = asking.runtime.cluster.world_size
    if asking.world is not None:
        raise ProgramError(f"{call}: the default group is there already; call it once.")
    if init_method not in (None, "env://"):
        raise ProgramError(
            f"{call}: init_method {init_method!r} is not needed; leave it out, or give 'env://'."
        )
    if world_size not in (-1, n):
        raise ProgramError(
            f"{call}: world_size is {world_size}, but the program runs on {n} ranks; leave it out, "
            f"or start it with --world-size {world_size}."
        )
    if rank not in (-1, asking.rank):
        raise ProgramError(
            f"{call}: rank is {rank}, but this is rank {asking.rank}; leave it out, or give "
            "int(os.environ['RANK'])."
        )
    chosen = DEFAULT_BACKEND if backend is None else backend
    made = asking.runtime.group("default", tuple(range(n)), chosen)
    asking.runtime.meet(asking.rank, Asked(call, more=f"backend={chosen}"))
    asking.world = made
    asking.destroyed.pop("default", None)


def destroy_process_group(group: AnyGroup = None) -> None:
    """Give a group up; without one, the default group and all others."""
    found = member(group, "destroy_process_group", warn=False)
    if found is None:
        return
    if group is None:
        found.process.world = None
    else:
        found.process.destroyed[found.group.name] = None


def is_initialized() -> bool:
    """Tell whether there is a default group."""
    return process("is_initialized").world is not None


def new_group(ranks: Sequence[int] | None = None, backend: str | None = None) -> AnyGroup:
    """Make a group; every rank must call this, members or not, and in the same order.

    Parameters
    ----------
    ranks : sequence of int, optional
        Members; all ranks if left out. They are sorted, as in torch.
    backend : {"nccl", "gloo", "mpi"}, optional
        The default group's, if left out.

    Returns
    -------
    ProcessGroup or object
        ``GroupMember.NON_GROUP_MEMBER`` for a rank that is not in it.

    Raises
    ------
    ProgramError
        If the ranks are none, or ranks differ in what they ask for.
    """
    call = "new_group"
    asking = initialised(call)
    assert asking.world is not None
    n = asking.runtime.cluster.world_size
    chosen = asking.world.backend if backend is None else backend
    if ranks is not None and not isinstance(ranks, Iterable):
        raise ProgramError(f"{call}: ranks is {ranks!r}; give a list of ranks, as [{ranks!r}].")
    given = list(range(n)) if ranks is None else list(ranks)
    asked = [number for number in map(_number, given) if number is not None and 0 <= number < n]
    members = tuple(sorted(dict.fromkeys(asked)))
    if not members or len(members) < len(given):
        raise ProgramError(
            f"{call}: ranks {given} must be some of 0 ... {n - 1}, each once and one at least."
        )
    asking.made += 1
    name = f"{asking.made} (ranks {', '.join(map(str, members))})"
    made = asking.runtime.group(name, members, chosen)
    asking.runtime.meet(asking.rank, Asked(call, more=f"{list(members)}, backend={chosen}"))
    return ProcessGroup(asking, made) if asking.rank in members else GroupMember.NON_GROUP_MEMBER


def get_rank(group: AnyGroup = None) -> int:
    """Rank of the caller, in a group its place there; -1 where it is no member."""
    found = member(group, "get_rank", warn=False)
    return -1 if found is None else found.group.place[found.process.rank]


def get_world_size(group: AnyGroup = None) -> int:
    """Number of ranks of a group; -1 where the caller is no member."""
    found = member(group, "get_world_size", warn=False)
    return -1 if found is None else len(found.group.ranks)


def get_backend(group: AnyGroup = None) -> str:
    """Name of a group's backend.

    Raises
    ------
    ProgramError
        If the caller is no member.
    """
    found = member(group, "get_backend", warn=False)
    if found is None:
        raise ProgramError("get_backend: this rank is no member of the group; ask on one that is.")
    return found.group.backend
