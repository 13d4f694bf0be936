"""How process groups are made: the default one, others, and many of one size at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from simdp.distributed.backends import chosen_backend
from simdp.distributed.groups import (
    AnyGroup,
    GroupMember,
    ProcessGroup,
    get_process_group_ranks,
    initialised,
    whole_number,
)
from simdp.distributed.process import Process, process
from simdp.engine.programs.calls import NOTHING, Asked
from simdp.errors import ProgramError

DEFAULT_BACKEND = "nccl"

METHODS = "env://", "tcp://", "file://"
"""How torch's ranks find each other; here they are together anyway."""


def seconds_of(timeout: Any, call: str) -> float | None:
    """A timeout in seconds; None for none.

    Raises
    ------
    ProgramError
        If it is no `datetime.timedelta`, or not above 0.
    """
    if timeout is None:
        return None
    try:
        seconds = float(timeout.total_seconds())
    except AttributeError:
        seconds = 0.0
    if seconds <= 0:
        raise ProgramError(
            f"{call}: timeout is {timeout!r}; give a timedelta above 0, as timedelta(minutes=10)."
        )
    return seconds


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
) -> None:
    """Make the default group of all ranks; every rank waits until all have come.

    Parameters
    ----------
    backend : {"nccl", "gloo", "mpi"}, optional
        Which algorithms and costs serve the group (`simdp.distributed.backends`); ``nccl`` if left
        out. Of ``"cpu:gloo,cuda:nccl"`` that of ``cuda``.
    init_method, store
        How ranks would find each other; of no effect.
    world_size, rank : int, optional
        If given, they must be what they are.
    timeout : timedelta, optional
        Of `monitored_barrier`; elsewhere what never comes is a deadlock report.
    group_name, pg_options, device_id
        As in torch; of no effect.

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
    _meeting(call, init_method, store, world_size, rank)
    patience = seconds_of(timeout, call)
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
    _device(asking, device_id, call)
    chosen = chosen_backend(backend, DEFAULT_BACKEND, call)
    made = asking.runtime.group("default", tuple(range(n)), chosen)
    asking.runtime.meet(asking.rank, Asked(call, more=f"backend={chosen}"))
    asking.world, asking.timeout = made, patience
    asking.destroyed.pop("default", None)


def _meeting(call: str, init_method: Any, store: Any, world_size: int, rank: int) -> None:
    """Refuse a way to meet that torch would refuse."""
    if init_method is not None and not str(init_method).startswith(METHODS):
        raise ProgramError(
            f"{call}: init_method {init_method!r} must begin with one of {', '.join(METHODS)}; or "
            "leave it out."
        )
    if init_method is not None and store is not None:
        raise ProgramError(f"{call}: give init_method or store, not both.")
    alone = store is not None or not str(init_method or "env://").startswith("env://")
    if alone and -1 in (world_size, rank) and "rank=" not in str(init_method):
        name = "store" if store is not None else f"init_method {init_method!r}"
        raise ProgramError(f"{call}: {name} needs world_size and rank as well; give both.")


def _device(asking: Process, device_id: Any, call: str) -> None:
    number, local_size = whole_number(device_id), asking.runtime.cluster.local_size
    if number is not None and not 0 <= number < local_size:
        raise ProgramError(
            f"{call}: device_id={device_id!r} is no device of a node; give one of 0 ... "
            f"{local_size - 1}."
        )


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: Any = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
) -> AnyGroup:
    """Make a group; every rank must call this, members or not, and in the same order.

    Parameters
    ----------
    ranks : sequence of int, optional
        Members; all ranks if left out. They are sorted, as in torch.
    backend : str, optional
        As in `init_process_group`; the default group's, if left out.
    use_local_synchronization : bool
        Whether members alone call this.
    group_desc : str, optional
        What the program calls it.
    timeout, pg_options, device_id
        As in `init_process_group`; of no effect.

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
    seconds_of(timeout, call)
    _device(asking, device_id, call)
    members = _members(asking, ranks, call)
    if not use_local_synchronization:
        return made_groups(asking, [members], backend, group_desc, call)[0]
    if asking.rank not in members:
        return GroupMember.NON_GROUP_MEMBER
    return made_groups(asking, [members], backend, group_desc, call, alone=True)[0]


def new_subgroups(
    group_size: int | None = None,
    group: AnyGroup = None,
    timeout: Any = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[AnyGroup | None, list[AnyGroup]]:
    """Cut a group into groups of one size, each of neighbours.

    Parameters
    ----------
    group_size : int, optional
        Ranks of each; those of a node, if left out.
    group : ProcessGroup, optional
        What is cut; all ranks, if left out.
    timeout, backend, pg_options, group_desc
        As in `new_group`.

    Returns
    -------
    tuple of ProcessGroup and list
        The caller's own, and all of them.

    Raises
    ------
    ProgramError
        If the size does not divide the group.
    """
    call = "new_subgroups"
    asking = initialised(call)
    ranks = get_process_group_ranks(group)
    size = asking.runtime.cluster.local_size if group_size is None else whole_number(group_size)
    if not size or size < 0 or len(ranks) % size:
        given = asking.runtime.cluster.local_size if group_size is None else group_size
        raise ProgramError(
            f"{call}: group_size={given!r} must be a whole number that divides {len(ranks)}, the "
            "ranks of the group."
        )
    cut = [ranks[begin : begin + size] for begin in range(0, len(ranks), size)]
    return _subgroups(asking, cut, timeout, backend, group_desc, call)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: Any = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[AnyGroup | None, list[AnyGroup]]:
    """Make groups that have no rank in common; see `new_subgroups`.

    Parameters
    ----------
    ranks_per_subgroup_list : sequence of sequences of int
        The members of each.
    timeout, backend, pg_options, group_desc
        As in `new_group`.

    Raises
    ------
    ProgramError
        If a rank is in two of them, or there is none.
    """
    call = "new_subgroups_by_enumeration"
    asking = initialised(call)
    return _subgroups(asking, ranks_per_subgroup_list, timeout, backend, group_desc, call)


def _subgroups(
    asking: Process,
    lists: Sequence[Sequence[int]],
    timeout: Any,
    backend: str | None,
    desc: str | None,
    call: str,
) -> tuple[AnyGroup | None, list[AnyGroup]]:
    seconds_of(timeout, call)
    if not isinstance(lists, list | tuple) or not lists:
        raise ProgramError(f"{call}: give a list of lists of ranks, as [[0, 1], [2, 3]].")
    cut = [_members(asking, ranks, call) for ranks in lists]
    seen: set[int] = set()
    for ranks in cut:
        for rank in ranks:
            if rank in seen:
                raise ProgramError(f"{call}: rank {rank} is in two subgroups; name it once.")
            seen.add(rank)
    made = made_groups(asking, cut, backend, desc, call)
    mine = [group for group in made if isinstance(group, ProcessGroup)]
    return (mine[0] if mine else None), made


def _members(asking: Process, ranks: Any, call: str) -> tuple[int, ...]:
    n = asking.runtime.cluster.world_size
    if ranks is not None and not isinstance(ranks, Iterable):
        raise ProgramError(f"{call}: ranks is {ranks!r}; give a list of ranks, as [{ranks!r}].")
    given = list(range(n)) if ranks is None else list(ranks)
    asked = [found for found in map(whole_number, given) if found is not None and 0 <= found < n]
    members = tuple(sorted(dict.fromkeys(asked)))
    if not members or len(members) < len(given):
        raise ProgramError(
            f"{call}: ranks {given} must be some of 0 ... {n - 1}, each once and one at least."
        )
    return members


def made_groups(
    asking: Process,
    lists: Sequence[tuple[int, ...]],
    backend: str | None,
    desc: str | None,
    call: str,
    alone: bool = False,
) -> list[AnyGroup]:
    """Make groups; all ranks, or with ``alone`` the members of the only one, wait for each other.

    Parameters
    ----------
    asking : Process
        The rank.
    lists : sequence of tuple of int
        The members of each.
    backend, desc
        As in `new_group`.
    call : str
        As messages name it.
    alone : bool
        Whether there is one group, of whose members the caller is one.
    """
    runtime, rank = asking.runtime, asking.rank
    assert asking.world is not None
    chosen = chosen_backend(backend, asking.world.backend, call)
    groups = []
    for members in lists:
        among = members if alone else ()
        asking.made[among] = number = asking.made.get(among, 0) + 1
        name = f"{number}{' of its own' * alone} (ranks {', '.join(map(str, members))})"
        groups.append(runtime.group(name, members, chosen))
    shown = ", ".join(str(list(members)) for members in lists)
    asked = Asked(call, more=f"{shown}, backend={chosen}")
    if alone:
        (own,) = groups
        handle = own.issue(rank, runtime.clock[rank], asked, NOTHING, None, blocked=True)
        runtime.wait(handle)
    else:
        runtime.meet(rank, asked)
    return [
        ProcessGroup(asking, group, desc or "undefined")
        if rank in group.place
        else GroupMember.NON_GROUP_MEMBER
        for group in groups
    ]
