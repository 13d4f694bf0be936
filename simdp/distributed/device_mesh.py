"""Device meshes: ranks in a grid, with a process group along each of its dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from simdp.arrays import Ints
from simdp.distributed.groups import AnyGroup, GroupMember, initialised, whole_number
from simdp.distributed.making import init_process_group, made_groups
from simdp.distributed.process import process
from simdp.errors import ProgramError

CALL = "init_device_mesh"


class DeviceMesh:
    """A grid of ranks; every rank must make it, also one that is not in it.

    Without a default group it makes one first.

    Parameters
    ----------
    device_type : str
        ``"cuda"`` or ``"cpu"``; of no effect.
    mesh : array_like of int
        Global ranks, each once.
    mesh_dim_names : sequence of str, optional
        A name for each dimension.
    backend_override : sequence of (str or None), optional
        A backend for the groups of each dimension; the default group's, where None.

    Raises
    ------
    ProgramError
        If the ranks or the names are none.
    """

    def __init__(
        self,
        device_type: str,
        mesh: Any,
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
        found: list[AnyGroup] = []
        for dim, (size, backend) in enumerate(zip(self.mesh.shape, backends, strict=True)):
            if size == asking.runtime.cluster.world_size and backend is None:
                found.append(GroupMember.WORLD)
                continue
            name = self.mesh_dim_names[dim] if self.mesh_dim_names else f"dim_{dim}"
            rows = np.moveaxis(self.mesh, dim, -1).reshape(-1, size).tolist()
            lists = [tuple(sorted(row)) for row in rows]
            made = made_groups(asking, lists, backend, f"mesh_{name}", CALL)
            mine = [group for group in made if group is not GroupMember.NON_GROUP_MEMBER]
            found.append(mine[0] if mine else GroupMember.NON_GROUP_MEMBER)
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Ranks along each dimension."""
        return self.mesh.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.mesh.ndim

    def size(self, mesh_dim: int | None = None) -> int:
        """Number of ranks, along one dimension or of all."""
        return self.mesh.size if mesh_dim is None else self.mesh.shape[mesh_dim]

    def get_rank(self) -> int:
        """Global rank of the caller."""
        return self._rank

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Where the caller is in the grid; None if nowhere."""
        found = np.argwhere(self.mesh == self._rank).tolist()
        return tuple(found[0]) if found else None

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """The caller's place along a dimension, which a grid of one need not name.

        Raises
        ------
        ProgramError
            If there is no such dimension, or the caller is not in the grid.
        """
        dim, where = self._dim(mesh_dim, "get_local_rank"), self.get_coordinate()
        if where is None:
            raise ProgramError(f"get_local_rank: rank {self._rank} is not in {self}.")
        return where[dim]

    def get_group(self, mesh_dim: int | str | None = None) -> AnyGroup:
        """The caller's group along a dimension, which a grid of one need not name.

        Raises
        ------
        ProgramError
            If there is no such dimension.
        """
        return self._groups[self._dim(mesh_dim, "get_group")]

    def get_all_groups(self) -> list[AnyGroup]:
        """The caller's groups along all dimensions."""
        return list(self._groups)

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> DeviceMesh:
        """The grid of some dimensions that the caller is in, with the groups that are there."""
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

    def _dim(self, asked: int | str | None, call: str) -> int:
        names = self.mesh_dim_names or ()
        if isinstance(asked, str) and asked in names:
            return names.index(asked)
        number = 0 if asked is None and self.ndim == 1 else whole_number(asked)
        if number is None or not -self.ndim <= number < self.ndim:
            raise ProgramError(f"{call}: {asked!r} is no dimension of {self}.")
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
    backend_override: Mapping[int | str, Any] | None = None,
) -> DeviceMesh:
    """Lay the first ranks out in a grid, the last dimension running fastest.

    Parameters
    ----------
    device_type : str
        ``"cuda"`` or ``"cpu"``; of no effect.
    mesh_shape : sequence of int
        Ranks along each dimension.
    mesh_dim_names : sequence of str, optional
        A name for each dimension.
    backend_override : mapping, optional
        Backends of the groups along a dimension, by its number or name; a pair of backend and
        options is taken as well, for the backend.

    Raises
    ------
    ProgramError
        If there are not as many ranks, or an argument is wrong.
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
