"""LowRank: the numbers of PowerSGD, on all ranks.

The order of operations is that of torch's powerSGD_hook: sums of P are not divided, since they are
made orthonormal; sums of Q and of what travels as it is are divided after the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Array
from simdp.engine.buffers import FlatBuffers
from simdp.engine.compression.errors import Errors
from simdp.engine.compression.kernels import by_columns
from simdp.engine.threads import each_rank
from simdp.steps.bucket import Factor, Factoring
from simdp.workload.torch_generator import GROUP, TorchGenerator, hook_seed


class Thin(NamedTuple):
    """What travels in place of a bucket, on every rank: as it is, and as factors P and Q."""

    rest: FlatBuffers
    p: FlatBuffers
    q: FlatBuffers


class LowRank:
    """What PowerSGD keeps on every rank: Q of the step before, and errors.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.errors = Errors()
        self._q: dict[str, list[Array]] = {}
        self._num_seeds = 0  # drawn so far, one for each bucket whose Q is drawn
        self._begun: set[str] = set()  # labels of buckets whose Q has been drawn
        self._squares: dict[str, FlatBuffers] = {}  # of buckets on their way

    def take(self, bucket: FlatBuffers, factoring: Factoring) -> Thin:
        """Add the errors, make Q orthonormal, and compute P = M Q."""
        if factoring.is_square:
            bucket = self._squares[factoring.label] = self._square(bucket, factoring)
        if factoring.error_feedback:
            self.errors.add(bucket)
        dtype, factors = bucket.flat[0].dtype, factoring.factors
        shapes = {name: bucket.views(name)[0].shape for name in factoring.rest.names}
        thin = Thin(
            FlatBuffers(shapes, self.world_size, dtype),
            FlatBuffers({f.name: (f.rows, f.rank) for f in factors}, self.world_size, dtype),
            FlatBuffers({f.name: (f.columns, f.rank) for f in factors}, self.world_size, dtype),
        )
        for name in factoring.rest.names:
            _copy(bucket.views(name), thin.rest.views(name))
        self._first_q(factoring, thin)
        for f in factors:
            matrices = [view.reshape(f.rows, f.columns) for view in bucket.views(f.name)]
            self._multiply(
                matrices, thin.q.views(f.name), thin.p.views(f.name), factoring.epsilon, False
            )
        return thin

    def turn(self, bucket: FlatBuffers, factoring: Factoring, thin: Thin) -> None:
        """Make the sums of P orthonormal, and compute Q = M^T P."""
        bucket = self._squares.get(factoring.label, bucket)
        for f in factoring.factors:
            matrices = [view.reshape(f.rows, f.columns) for view in bucket.views(f.name)]
            self._multiply(
                matrices, thin.p.views(f.name), thin.q.views(f.name), factoring.epsilon, True
            )

    def join(self, bucket: FlatBuffers, factoring: Factoring, thin: Thin, divisor: float) -> None:
        """Make the bucket's content the average that all ranks know, and keep what it lacks."""
        whole, bucket = bucket, self._squares.pop(factoring.label, bucket)
        for flat in (*thin.rest.flat, *thin.q.flat):
            np.divide(flat, flat.dtype.type(divisor), out=flat)
        for name in factoring.rest.names:
            _copy(thin.rest.views(name), bucket.views(name))
        for f in factoring.factors:
            self._q[f.name] = thin.q.views(f.name)
            both = zip(thin.p.views(f.name), thin.q.views(f.name), strict=True)
            for view, (p, q) in zip(bucket.views(f.name), both, strict=True):
                view.reshape(f.rows, f.columns)[...] = times(p, q.T)
        if factoring.error_feedback:
            self.errors.settle(bucket)
        if factoring.is_square:
            for flat, square in zip(whole.flat, bucket.flat, strict=True):
                flat[...] = square[: flat.size]

    def _square(self, bucket: FlatBuffers, factoring: Factoring) -> FlatBuffers:
        """Copy a bucket, and fill it up with zeros."""
        shapes: dict[str, tuple[int, ...]] = {
            f.name: (f.rows, f.columns) for f in factoring.factors
        }
        squares = FlatBuffers(shapes, self.world_size, bucket.flat[0].dtype)
        for flat, square in zip(bucket.flat, squares.flat, strict=True):
            square[: flat.size] = flat
            square[flat.size :] = 0
        return squares

    def state_dict(self) -> dict[str, Array]:
        """Errors, the last Q of every matrix, and how many seeds were drawn for which buckets."""
        found = self.errors.state_dict()
        for name, views in self._q.items():
            found[f"q/{name}"] = views[0]  # of a sum, which is the same on all ranks
        for label in sorted(self._begun):
            found[f"drawn/{label}"] = np.array(self._num_seeds)
        return found

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Take up what was kept."""
        self.errors.load_state_dict(arrays, self.world_size)
        for name, kept in arrays.items():
            if name.startswith("q/"):
                self._q[name[2:]] = [kept.copy() for _ in range(self.world_size)]
            elif name.startswith("drawn/"):
                self._begun.add(name[6:])
                self._num_seeds = int(kept)

    def _first_q(self, factoring: Factoring, thin: Thin) -> None:
        """Begin with the Q of the step before, or with torch's random numbers."""
        names = [f.name for f in factoring.factors]
        known = factoring.label in self._begun and all(name in self._q for name in names)
        if factoring.warm_start and known:
            for name in names:
                _copy(self._q[name], thin.q.views(name))
            return
        self._begun.add(factoring.label)
        generator = TorchGenerator(hook_seed(factoring.random_seed, self._num_seeds))
        self._num_seeds += 1
        for group in _drawn_at_once(factoring):
            first = group[0]
            shape = len(group), first.columns, first.rank
            drawn = _randn(generator, shape, thin.q.flat[0].dtype)
            for f, fresh in zip(group, drawn, strict=True):
                _copy([fresh] * self.world_size, thin.q.views(f.name))

    def _multiply(
        self,
        matrices: Sequence[Array],
        factor: Sequence[Array],
        into: Sequence[Array],
        epsilon: float,
        transposed: bool,
    ) -> None:
        def work(rank: int) -> None:
            orthonormalise(factor[rank], epsilon)
            own = matrices[rank].T if transposed else matrices[rank]
            into[rank][...] = times(own, factor[rank])

        each_rank(work, self.world_size, matrices[0].size)


def _randn(generator: TorchGenerator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """``torch.randn(shape, dtype=dtype)``; what has 16 bits is drawn in float32, to be rounded.

    torch then draws numbers group by group, and the last 16 instead of the last few.
    """
    count = prod(shape)
    if dtype.itemsize > 2 or count < GROUP or not count % GROUP:
        return generator.normal(1.0, shape, "float64" if dtype.itemsize == 8 else "float32")
    groups = generator.normal(1.0, (count // GROUP * GROUP,))
    last = generator.normal(1.0, (GROUP,))
    return np.concatenate([groups[: count - GROUP], last]).reshape(shape)


def _drawn_at_once(factoring: Factoring) -> list[list[Factor]]:
    """Factors whose Q torch draws in one call: those of a shape if they are batched."""
    if not factoring.batched:
        return [[f] for f in factoring.factors]
    shapes: dict[tuple[int, int], list[Factor]] = {}
    for f in factoring.factors:
        shapes.setdefault((f.rows, f.columns), []).append(f)
    return list(shapes.values())


def orthonormalise(matrix: Array, epsilon: float = 0.0) -> None:
    """Make the columns of a matrix orthonormal, in place.

    Parameters
    ----------
    matrix : ndarray, shape `(rows, columns)`
        At least as many rows as columns.
    epsilon : float
        Added to a column's norm before the column is divided by it.

    Notes
    -----
    torch's powerSGD_hook takes Gram-Schmidt for at most two columns, or 16 bits; else QR. A column
    of zeros stays what it is; torch would make it nan without an epsilon.
    """
    columns = matrix.shape[1]
    if not by_columns(columns, matrix.dtype.itemsize):
        matrix[...] = np.linalg.qr(matrix)[0]
        return
    wide = matrix.astype(np.float32) if matrix.dtype.itemsize == 2 else matrix
    for number in range(columns):
        column = wide[:, number]
        norm = np.sqrt(np.vdot(column, column)) + wide.dtype.type(epsilon)
        if norm:
            column /= norm
        rest = wide[:, number + 1 :]
        rest -= np.outer(column, column @ rest)
    if wide is not matrix:
        matrix[...] = wide


def times(left: Array, right: Array) -> Array:
    """Multiply; what has 16 bits is summed in 32, as on a tensor core."""
    if left.dtype.itemsize > 2:
        return left @ right
    product: Array = left.astype(np.float32) @ right.astype(np.float32)
    return product


def _copy(sources: Sequence[Array], targets: Sequence[Array]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target[...] = source
