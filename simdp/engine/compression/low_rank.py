"""LowRank: the numbers of PowerSGD, on all ranks.

The order of operations is that of torch's powerSGD_hook: sums of P are not divided, since they are
made orthonormal; sums of Q and of what travels as it is are divided after the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Array
from simdp.engine.buffers import FlatBuffers
from simdp.engine.compression.errors import Errors
from simdp.engine.compression.kernels import by_columns
from simdp.engine.threads import each_rank
from simdp.rng import stream
from simdp.steps.bucket import Factoring


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
    seed : int
        The scenario's; every new Q is drawn from it, the same on all ranks.
    """

    def __init__(self, world_size: int, seed: int) -> None:
        self.world_size, self.seed = world_size, seed
        self.errors = Errors()
        self._q: dict[str, list[Array]] = {}
        self._num_drawn: dict[str, int] = {}
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
        for f in factors:
            matrices = [view.reshape(f.rows, f.columns) for view in bucket.views(f.name)]
            self._first_q(f.name, thin.q.views(f.name), factoring.warm_start)
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
        """Errors, the last Q of every matrix, and how many were drawn."""
        found = self.errors.state_dict()
        for name, views in self._q.items():
            found[f"q/{name}"] = views[0]  # of a sum, which is the same on all ranks
            found[f"drawn/{name}"] = np.array(self._num_drawn.get(name, 0))
        return found

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Take up what was kept."""
        self.errors.load_state_dict(arrays, self.world_size)
        for name, kept in arrays.items():
            if name.startswith("q/"):
                self._q[name[2:]] = [kept.copy() for _ in range(self.world_size)]
            elif name.startswith("drawn/"):
                self._num_drawn[name[6:]] = int(kept)

    def _first_q(self, name: str, views: Sequence[Array], warm: bool) -> None:
        if warm and name in self._q:
            _copy(self._q[name], views)
            return
        draw = self._num_drawn.get(name, 0)
        self._num_drawn[name] = draw + 1
        random = stream(self.seed, "power_sgd", name, draw)
        fresh = random.standard_normal(views[0].shape)
        _copy([fresh] * self.world_size, views)

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
