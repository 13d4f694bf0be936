"""Process groups and device meshes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from operator import index
from typing import Any, ClassVar, NamedTuple

import numpy as np

from simdp.arrays import Ints
from simdp.distributed.launch import CURRENT, Process, chosen_backend, process
from simdp.engine.programs.groups import ProgramGroup
from simdp.engine.programs.records import NOTHING, CallSignature
from simdp.errors import ProgramError

# Groups -------------------------------------------------------------------------------------------


class ProcessGroup:
    """A process group, as `new_group` returns it to a member; ``desc`` is the program's name."""

    def __init__(self, of: Process, members: ProgramGroup, desc: str = "undefined") -> None:
        self._of, self.members, self.group_desc = of, members, desc

    @property
    def group_name(self) -> str:
        """Its name in messages."""
        return self.members.name

    def rank(self) -> int:
        """Return the member's place in the group."""
        return self.members.place[self._of.rank]

    def size(self) -> int:
        """Return the number of members."""
        return len(self.members.ranks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessGroup) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Process, ProgramGroup]:
        return self._of, self.members

    def __repr__(self) -> str:
        return f"<group {self.members.name}>"


class _World(type):
    """Metaclass of class attributes that look like constants, but have a value per rank."""

    @property
    def WORLD(cls) -> ProcessGroup | None:  # noqa: N802  torch's name
        """The default group; None before its creation, or outside of a rank."""
        asking = CURRENT.get(None)
        if asking is None or asking.world is None:
            return None
        return ProcessGroup(asking, asking.world, "default_pg")


class GroupMember(metaclass=_World):
    """Predefined groups: ``WORLD``, and the result for a rank outside of a group."""

    NON_GROUP_MEMBER: ClassVar[object] = object()
    """Result of `new_group` on ranks outside of the group."""


AnyGroup = ProcessGroup | object | None


class Root(NamedTuple):
    """The root of a call: its place, its global rank, and its name in messages."""

    place: int
    rank: int
    mine: bool
    shown: str


class Member(NamedTuple):
    """A rank in a group that it belongs to."""

    process: Process
    group: ProgramGroup

    def place(self, rank: object, call: str, name: str) -> int:
        """Return the place in the group of the rank given as argument ``name``.

        Raises
        ------
        ProgramError
            If it is not in the group.
        """
        number = whole_number(rank)
        place = None if number is None else self.group.place.get(number)
        if place is None:
            known = ", ".join(map(str, self.group.ranks))
            raise ProgramError(
                f"{call}: {name}={rank!r} is no rank of group {self.group.name}; give one of "
                f"{known}."
            )
        return place

    def root(
        self, rank: object, group_rank: object, call: str, name: str, default: int | None = None
    ) -> Root:
        """Return the root given as argument ``name``, or by its place as ``group_name``.

        Raises
        ------
        ProgramError
            If it is not in the group, or not given in one of these ways.
        """
        if rank is None and group_rank is None:
            rank = default
        if (rank is None) == (group_rank is None):
            raise ProgramError(f"{call}: give {name} or group_{name}, one of the two.")
        if group_rank is None:
            place = self.place(rank, call, name)
        else:
            place = _place(self.group, group_rank, call, f"group_{name}")
        root_rank = self.group.ranks[place]
        return Root(place, root_rank, root_rank == self.process.rank, f"{name}={root_rank}")


def _place(group: ProgramGroup, number: object, call: str, name: str) -> int:
    place = whole_number(number)
    if place is None or not 0 <= place < len(group.ranks):
        raise ProgramError(
            f"{call}: {name}={number!r} is no place in group {group.name}; give one of 0 ... "
            f"{len(group.ranks) - 1}."
        )
    return place


def whole_number(rank: Any) -> int | None:
    """Return an integer of any type as int, or None."""
    try:
        return index(rank)
    except TypeError:
        return None


def initialised(call: str) -> Process:
    """Return the calling rank, which must have a default group.

    Raises
    ------
    ProgramError
        If it has none.
    """
    caller = process(call)
    if caller.world is None:
        raise ProgramError(f"{call}: there is no default group yet; call init_process_group first.")
    return caller


def member(group: AnyGroup, call: str, warn: bool = True, depth: int = 3) -> Member | None:
    """Return the calling rank in a group; None, with torch's warning, outside of the group.

    ``depth`` is the number of frames from here to the program's, which the warning names.

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
            f"{call}: unknown group {group!r}; give an existing group from new_group, "
            "or None for all ranks."
        )
    return Member(asking, group.members)


def destroy_process_group(group: AnyGroup = None) -> None:
    """Destroy a group; by default, the default group and all others."""
    membership = member(group, "destroy_process_group", warn=False)
    if membership is None:
        return
    if membership.group is membership.process.world:
        membership.process.world = None
    else:
        membership.process.destroyed[membership.group.name] = None


def is_initialized() -> bool:
    """Return whether there is a default group."""
    return process("is_initialized").world is not None


def get_rank(group: AnyGroup = None) -> int:
    """Return the rank of the caller, in a group its place there; -1 outside of it."""
    membership = member(group, "get_rank", warn=False)
    return -1 if membership is None else membership.group.place[membership.process.rank]


def get_world_size(group: AnyGroup = None) -> int:
    """Return the number of ranks of a group; -1 outside of it."""
    membership = member(group, "get_world_size", warn=False)
    return -1 if membership is None else len(membership.group.ranks)


def _of(group: AnyGroup, call: str) -> ProgramGroup:
    """Return a group that the caller must belong to."""
    membership = member(group, call, warn=False)
    if membership is None:
        raise ProgramError(f"{call}: this rank is no member of the group; ask on one that is.")
    return membership.group


def get_backend(group: AnyGroup = None) -> str:
    """Return the name of a group's backend.

    Raises
    ------
    ProgramError
        If the caller is not a member.
    """
    return _of(group, "get_backend").backend


def get_process_group_ranks(group: AnyGroup) -> list[int]:
    """Return global ranks of a group's members, in its order; of all ranks, if None.

    Raises
    ------
    ProgramError
        If the caller is not a member.
    """
    return list(_of(group, "get_process_group_ranks").ranks)


def get_global_rank(group: AnyGroup, group_rank: int) -> int:
    """Return the global rank of the member at a place.

    Raises
    ------
    ProgramError
        If there is no such place, or the caller is not a member.
    """
    of = _of(group, "get_global_rank")
    return of.ranks[_place(of, group_rank, "get_global_rank", "group_rank")]


def get_group_rank(group: AnyGroup, global_rank: int) -> int:
    """Return the place of a global rank in a group.

    Raises
    ------
    ProgramError
        If it, or the caller, is not a member.
    """
    of = _of(group, "get_group_rank")
    return Member(process("get_group_rank"), of).place(global_rank, "get_group_rank", "global_rank")


# Making -------------------------------------------------------------------------------------------

DEFAULT_BACKEND = "nccl"

METHODS = "env://", "tcp://", "file://"
"""Rendezvous methods of torch, without effect."""


def seconds_of(timeout: object, call: str) -> float | None:
    """Return a timeout in seconds; None for none.

    Raises
    ------
    ProgramError
        If it is not a `datetime.timedelta`, or not above 0.
    """
    if timeout is None:
        return None
    total_seconds = getattr(timeout, "total_seconds", None)
    seconds = 0.0 if total_seconds is None else float(total_seconds())
    if seconds <= 0:
        raise ProgramError(
            f"{call}: timeout is {timeout!r}; give a timedelta above 0, as timedelta(minutes=10)."
        )
    return seconds


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: object = None,
    world_size: int = -1,
    rank: int = -1,
    store: object = None,
    group_name: str = "",
    pg_options: object = None,
    device_id: object = None,
) -> None:
    """Make the default group of all ranks; every rank waits for all others.

    Parameters
    ----------
    backend : {"nccl", "gloo", "mpi"}, optional
        Determines algorithms and costs of the group (`simdp.distributed.launch`); default ``nccl``.
        Of ``"cpu:gloo,cuda:nccl"`` that of ``cuda``.
    init_method, store
        Rendezvous; without effect.
    world_size, rank : int, optional
        If given, they must equal the actual values.
    timeout : timedelta, optional
        Of `monitored_barrier`; in other calls a missing rank gives a deadlock report.
    group_name, pg_options, device_id
        As in torch; without effect.

    Raises
    ------
    ProgramError
        If an argument is invalid, or the group exists already.
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
    asking.runtime.meet(asking.rank, CallSignature(call, more=f"backend={chosen}"))
    asking.world, asking.timeout = made, patience
    asking.destroyed.pop("default", None)


def _meeting(call: str, init_method: object, store: object, world_size: int, rank: int) -> None:
    """Refuse a rendezvous that torch would refuse."""
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


def _device(asking: Process, device_id: object, call: str) -> None:
    number, local_size = whole_number(device_id), asking.runtime.cluster.local_size
    if number is not None and not 0 <= number < local_size:
        raise ProgramError(
            f"{call}: device_id={device_id!r} is no device of a node; give one of 0 ... "
            f"{local_size - 1}."
        )


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: object = None,
    backend: str | None = None,
    pg_options: object = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: object = None,
) -> AnyGroup:
    """Make a group; every rank must call this, members or not, and in the same order.

    Parameters
    ----------
    ranks : sequence of int, optional
        Members; default: all ranks. They are sorted, as in torch.
    backend : str, optional
        As in `init_process_group`; default: the default group's.
    use_local_synchronization : bool
        Whether only members call this.
    group_desc : str, optional
        Its name in the program.
    timeout, pg_options, device_id
        As in `init_process_group`; without effect.

    Returns
    -------
    ProcessGroup or object
        ``GroupMember.NON_GROUP_MEMBER`` for a rank outside of it.

    Raises
    ------
    ProgramError
        If the ranks are invalid, or ranks make different requests.
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
    timeout: object = None,
    backend: str | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
) -> tuple[AnyGroup | None, list[AnyGroup]]:
    """Split a group into groups of neighbours of one size.

    Parameters
    ----------
    group_size : int, optional
        Ranks of each; default: those of a node.
    group : ProcessGroup, optional
        Group to split; default: all ranks.
    timeout, backend, pg_options, group_desc
        As in `new_group`.

    Returns
    -------
    tuple of ProcessGroup and list
        The caller's group, and all of them.

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
    timeout: object = None,
    backend: str | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
) -> tuple[AnyGroup | None, list[AnyGroup]]:
    """Make disjoint groups with the given members; see `new_subgroups`.

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
    timeout: object,
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


def _members(asking: Process, ranks: object, call: str) -> tuple[int, ...]:
    n = asking.runtime.cluster.world_size
    if ranks is not None and not isinstance(ranks, Iterable):
        raise ProgramError(f"{call}: ranks is {ranks!r}; give a list of ranks, as [{ranks!r}].")
    given = list(range(n)) if ranks is None else list(ranks)
    valid_ranks = [
        number for number in map(whole_number, given) if number is not None and 0 <= number < n
    ]
    members = tuple(sorted(dict.fromkeys(valid_ranks)))
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
    """Create groups; all ranks, or with ``alone`` the members of the only one, wait for each other.

    ``lists`` are the members of each; ``backend``, ``desc`` as in `new_group`.
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
    signature = CallSignature(call, more=f"{shown}, backend={chosen}")
    if alone:
        (own,) = groups
        handle = own.issue(rank, runtime.clock[rank], signature, NOTHING, None, blocked=True)
        runtime.wait(handle)
    else:
        runtime.meet(rank, signature)
    return [
        ProcessGroup(asking, group, desc or "undefined")
        if rank in group.place
        else GroupMember.NON_GROUP_MEMBER
        for group in groups
    ]


CALL = "init_device_mesh"


class DeviceMesh:
    """A grid of ranks; every rank must create it, also ranks outside of it.

    Without a default group it creates one first.

    Parameters
    ----------
    device_type : str
        ``"cuda"`` or ``"cpu"``; without effect.
    mesh : array_like of int
        Global ranks, each once.
    mesh_dim_names : sequence of str, optional
        A name for each dimension.
    backend_override : sequence of (str or None), optional
        A backend for the groups of each dimension; None is the default group's.

    Raises
    ------
    ProgramError
        If the ranks or the names are invalid.
    """

    def __init__(
        self,
        device_type: str,
        mesh: object,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        backend_override: Sequence[str | None] | None = None,
        _groups: Sequence[AnyGroup] | None = None,
    ) -> None:
        self.device_type = device_type
        self.mesh: Ints = np.asarray(mesh)
        self.mesh_dim_names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        if _groups is None:
            if process(CALL).world is None:
                init_process_group()
            _check(self.mesh, self.mesh_dim_names, device_type)
            _groups = self._make(backend_override or (None,) * self.ndim)
        self._groups = _groups
        self._rank = process(CALL).rank

    def _make(self, backends: Sequence[str | None]) -> list[AnyGroup]:
        asking = initialised(CALL)
        groups: list[AnyGroup] = []
        for dim, (size, backend) in enumerate(zip(self.mesh.shape, backends, strict=True)):
            if size == asking.runtime.cluster.world_size and backend is None:
                groups.append(GroupMember.WORLD)
                continue
            name = self.mesh_dim_names[dim] if self.mesh_dim_names else f"dim_{dim}"
            rows = np.moveaxis(self.mesh, dim, -1).reshape(-1, size).tolist()
            lists = [tuple(sorted(row)) for row in rows]
            made = made_groups(asking, lists, backend, f"mesh_{name}", CALL)
            mine = [group for group in made if group is not GroupMember.NON_GROUP_MEMBER]
            groups.append(mine[0] if mine else GroupMember.NON_GROUP_MEMBER)
        return groups

    @property
    def shape(self) -> tuple[int, ...]:
        """Ranks along each dimension."""
        return self.mesh.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.mesh.ndim

    def size(self, mesh_dim: int | None = None) -> int:
        """Return the number of ranks, along one dimension or of all."""
        return self.mesh.size if mesh_dim is None else self.mesh.shape[mesh_dim]

    def get_rank(self) -> int:
        """Return the global rank of the caller."""
        return self._rank

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Return the caller's coordinate in the grid; None outside of it."""
        coordinates = np.argwhere(self.mesh == self._rank).tolist()
        return tuple(coordinates[0]) if coordinates else None

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return the caller's place along a dimension, which is optional for a grid of one.

        Raises
        ------
        ProgramError
            If there is no such dimension, or the caller is outside of the grid.
        """
        dim, where = self._dim(mesh_dim, "get_local_rank"), self.get_coordinate()
        if where is None:
            raise ProgramError(f"get_local_rank: rank {self._rank} is not in {self}.")
        return where[dim]

    def get_group(self, mesh_dim: int | str | None = None) -> AnyGroup:
        """Return the caller's group along a dimension, which is optional for a grid of one.

        Raises
        ------
        ProgramError
            If there is no such dimension.
        """
        return self._groups[self._dim(mesh_dim, "get_group")]

    def get_all_groups(self) -> list[AnyGroup]:
        """Return the caller's groups along all dimensions."""
        return list(self._groups)

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        """Return the caller's grid of some dimensions, with the existing groups."""
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        if names == self.mesh_dim_names:
            return self
        dims = [self._dim(name, f"mesh[{', '.join(map(repr, names))}]") for name in names]
        where = self.get_coordinate()
        if not dims or dims != sorted(set(dims)) or where is None:
            raise ProgramError(
                f"mesh[{', '.join(map(repr, names))}]: give dimensions of {self} in their order, "
                "each once, on a rank that is in it."
            )
        place = tuple(slice(None) if dim in dims else at for dim, at in enumerate(where))
        groups = [self._groups[dim] for dim in dims]
        part = self.mesh[place]
        return DeviceMesh(self.device_type, part, mesh_dim_names=names, _groups=groups)

    def _dim(self, dim: int | str | None, call: str) -> int:
        names = self.mesh_dim_names or ()
        if isinstance(dim, str) and dim in names:
            return names.index(dim)
        number = 0 if dim is None and self.ndim == 1 else whole_number(dim)
        if number is None or not -self.ndim <= number < self.ndim:
            raise ProgramError(f"{call}: {dim!r} is not a dimension of {self}.")
        return number % self.ndim

    def __repr__(self) -> str:
        sizes = [str(size) for size in self.shape]
        if self.mesh_dim_names:
            sizes = [
                f"{name}={size}" for name, size in zip(self.mesh_dim_names, sizes, strict=True)
            ]
        return f"DeviceMesh(({', '.join(sizes)}), {self.device_type!r})"


def _check(mesh: Ints, names: tuple[str, ...] | None, device_type: str) -> None:
    n = initialised(CALL).runtime.cluster.world_size
    if not isinstance(device_type, str) or not device_type.isalpha():
        raise ProgramError(f"{CALL}: device_type is {device_type!r}; give 'cuda' or 'cpu'.")
    ranks = mesh.reshape(-1).tolist() if mesh.ndim and mesh.dtype.kind in "iu" else []
    if not ranks or len(set(ranks)) < len(ranks) or min(ranks) < 0 or max(ranks) >= n:
        raise ProgramError(
            f"{CALL}: mesh {mesh.tolist()} must hold ranks of 0 ... {n - 1}, each once."
        )
    if names is not None and (len(names) != mesh.ndim or len(set(names)) < len(names)):
        raise ProgramError(
            f"{CALL}: mesh_dim_names {names} must name each of {mesh.ndim} dimensions differently."
        )


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Mapping[int | str, str | tuple[str | None, object] | None] | None = None,
) -> DeviceMesh:
    """Arrange the first ranks in a grid, the last dimension running fastest.

    Parameters
    ----------
    device_type : str
        ``"cuda"`` or ``"cpu"``; without effect.
    mesh_shape : sequence of int
        Ranks along each dimension.
    mesh_dim_names : sequence of str, optional
        A name for each dimension.
    backend_override : mapping, optional
        Backends of the groups along a dimension, by its number or name; of a pair of backend and
        options, the backend counts.

    Raises
    ------
    ProgramError
        If there are fewer ranks, or an argument is invalid.
    """
    n = process(CALL).runtime.cluster.world_size
    sizes = [whole_number(size) or 0 for size in mesh_shape]
    if not sizes or min(sizes) < 1 or prod(sizes) > n:
        raise ProgramError(
            f"{CALL}: mesh_shape {tuple(mesh_shape)} must be whole numbers >= 1 whose product is "
            f"at most {n}, the number of ranks."
        )
    names = list(mesh_dim_names or ())
    backends: list[str | None] = [None] * len(sizes)
    for key, chosen in (backend_override or {}).items():
        dim = names.index(key) if key in names else whole_number(key)
        if dim is None or not 0 <= dim < len(sizes):
            raise ProgramError(f"{CALL}: backend_override has {key!r}, which is no dimension.")
        backends[dim] = chosen[0] if isinstance(chosen, tuple) else chosen
    mesh = np.arange(prod(sizes)).reshape(sizes)
    return DeviceMesh(device_type, mesh, mesh_dim_names=mesh_dim_names, backend_override=backends)
