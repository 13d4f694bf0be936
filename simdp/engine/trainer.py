"""Trainer: what happens between the averaged gradients and the weights, on every rank.

Loss scaling, clipping, master weights and the optimizer, in torch's order: unscale, look for inf,
clip, step unless there was inf, update the scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simdp.engine.threads import each_rank
from simdp.scenario import Scenario
from simdp.workload.precision.rounding import rounded
from simdp.workload.precision.scaler import GradScaler

Array = NDArray[Any]
Arrays = dict[str, Array]

CLIP_EPS = 1e-6
"""torch.nn.utils.clip_grad_norm_ divides by the norm plus this."""


class Update(NamedTuple):
    """What an update did on one rank.

    Attributes
    ----------
    norm : float
        Of the gradient, after unscaling and before clipping.
    skipped : bool
        Whether an inf or nan kept the weights as they were.
    """

    norm: float
    skipped: bool


class Trainer:
    """Weights and optimizer state of every rank.

    Parameters
    ----------
    scenario : Scenario
        One point.
    drawn : list of dict of str to ndarray
        Each rank's first parameters.

    Attributes
    ----------
    weights : list of dict of str to ndarray
        What forward computes with. With master weights these are their rounded copies.
    stored : str
        Dtype that the weights are kept in; their arrays are of the workload's.
    """

    def __init__(self, scenario: Scenario, drawn: list[Arrays]) -> None:
        self.workload, self.world_size = scenario.workload, scenario.cluster.world_size
        dtype, precision = self.workload.dtype, self.workload.precision
        self.stored = precision.weight_dtype(dtype)
        self._master = drawn
        self.weights = drawn
        if precision.has_master:
            self.weights = [{n: rounded(w, self.stored) for n, w in own.items()} for own in drawn]
        optimizer = self.workload.optimizer
        self._optimizers = {name: optimizer.for_parameter(name) for name in drawn[0]}
        self._state = [
            {name: self._optimizers[name].new_state(w) for name, w in own.items()} for own in drawn
        ]
        settings = precision.scaler()
        self._scalers = [GradScaler(settings) for _ in drawn] if settings else None
        self._taken = [0] * self.world_size

    def loss_scale(self, rank: int) -> float:
        """What a rank's loss is multiplied by before backward."""
        return self._scalers[rank].scale if self._scalers else 1.0

    def follow(self, root: int, names: Sequence[str]) -> None:
        """Let master weights be those of the rank whose weights have been broadcast."""
        for own in self._master if self._master is not self.weights else ():
            for name in names:
                own[name][...] = self._master[root][name]

    def update(
        self, gradients: Sequence[Arrays], step: int, active: Sequence[bool]
    ) -> list[Update | None]:
        """Let the optimizer change the weights of every active rank.

        Parameters
        ----------
        gradients : sequence of dict of str to ndarray
            Of each rank; changed by unscaling and clipping.
        step : int
            Number of the step, from 1.
        active : sequence of bool
            Which ranks take part.
        """
        num_elements = self.workload.model.num_parameters()

        def work(rank: int) -> Update | None:
            return self._update_of(rank, gradients[rank], step) if active[rank] else None

        return each_rank(work, self.world_size, num_elements)

    def _update_of(self, rank: int, gradients: Arrays, step: int) -> Update:
        scaler = self._scalers[rank] if self._scalers else None
        if scaler:
            for gradient in gradients.values():
                gradient *= gradient.dtype.type(scaler.inverse())
        norm = sqrt(sum(float(np.vdot(g, g)) for g in gradients.values()))
        bad = scaler is not None and not _all_finite(norm, gradients)
        if self.workload.clip_grad_norm is not None:
            factor = self.workload.clip_grad_norm / (norm + CLIP_EPS)
            for gradient in gradients.values() if factor < 1 else ():
                gradient *= gradient.dtype.type(factor)
        if not bad:
            self._taken[rank] += 1
            self._step_of(rank, gradients, step)
        if scaler:
            scaler.update(bad)
        return Update(norm, bad)

    def _step_of(self, rank: int, gradients: Arrays, step: int) -> None:
        state, t = self._state[rank], self._taken[rank]
        for name, weight in self._master[rank].items():
            if name not in gradients:  # never used: torch's optimizers skip it too
                continue
            optimizer = self._optimizers[name]
            lr = self.workload.learning_rate(optimizer.lr, step, self.world_size)
            optimizer.step(weight, gradients[name], state[name], lr, t)
            if self._master is not self.weights:
                self.weights[rank][name][...] = rounded(weight, self.stored)


def _all_finite(norm: float, gradients: Arrays) -> bool:
    """Whether no gradient is inf or nan; the norm of large finite ones may overflow."""
    return isfinite(norm) or all(bool(np.isfinite(g).all()) for g in gradients.values())
