"""Trains: loss, gradients, optimizer, schedule, and gradient scaling.

Loss scaling, clipping, master weights and the optimizer run in torch's order: unscale, check for
inf, clip, step unless there was inf, update the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, isnan, nan, sqrt
from typing import NamedTuple

import numpy as np

from simdp.arrays import Array
from simdp.collectives import Plan
from simdp.engine import payload
from simdp.engine.payload import FlatBuffers, of_rank
from simdp.engine.threads import each_rank
from simdp.errors import ScenarioError
from simdp.scenario.root import Scenario
from simdp.workload.optimizers.base import Optimizer, State, TrustRatio, squares
from simdp.workload.precision import GradScaler, rounded
from simdp.workload.sampling import Participants
from simdp.workload.schedules.base import Progress, ReduceLROnPlateau, Schedule, Seen

Arrays = dict[str, Array]

CLIP_EPS = 1e-6
"""torch.nn.utils.clip_grad_norm_ divides by the norm plus this."""


class UpdateResult(NamedTuple):
    """Gradient norm after unscaling and before clipping; whether inf or nan prevented the step."""

    norm: float
    skipped: bool


class Half(NamedTuple):
    """The begun update of a piece of a tensor, before the trust ratio of the whole tensor."""

    made: Array
    ratio: float


class Trainer:
    """Weights and optimizer state of every rank.

    ``drawn`` are each rank's initial parameters; or a server's, as the only rank.

    Attributes
    ----------
    weights : list of dict of str to ndarray
        Weights of forward; with master weights their rounded copies.
    stored : str
        Dtype in which weights are kept; their arrays have the workload's.
    """

    look: Callable[[Sequence[Arrays]], None] | None = None
    """Called with every rank's gradients before they are unscaled and clipped."""

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
        self._sizes = {name: weight.size for name, weight in drawn[0].items()}
        self._shapes = {name: weight.shape for name, weight in drawn[0].items()}
        self._frozen = self.workload.graph.frozen
        self._state = [self._new_state(own) for own in drawn]
        settings = precision.scaler()
        self._scalers = [GradScaler(settings) for _ in drawn] if settings else None
        self._taken = [0] * len(drawn)
        self._groups: Sequence[Sequence[int]] = [[rank] for rank in range(len(drawn))]
        self._places: Sequence[Mapping[str, slice]] = [{} for _ in drawn]
        self._global: list[Arrays] = []
        self._outer_state: list[dict[str, State]] = []
        self._num_outer = 0

    @property
    def is_sharded(self) -> bool:
        """Whether every rank updates only its own pieces of the parameters."""
        return any(self._places)

    def loss_scale(self, rank: int) -> float:
        """Factor on a rank's loss before backward."""
        return self._scalers[rank].scale if self._scalers else 1.0

    def follow(self, root: int, names: Sequence[str]) -> None:
        """Copy the master weights of the root of a broadcast of weights."""
        if self.is_sharded or not self.workload.precision.has_master:
            return
        for own in self._master:
            for name in names:
                own[name][...] = self._master[root][name]

    def average(
        self, plan: Plan, who: Participants | None = None, num_averaged: int | None = None
    ) -> None:
        """Set every rank's weights to the mean: divided, then summed by an all_reduce.

        Master weights are averaged if there are any, and the others rounded from them; frozen ones
        are unchanged. All participating ranks get the mean of the counted ones; in process groups
        of ``num_averaged`` ranks, that of their group.
        """
        who = who or Participants.without(self.world_size, "absent", ())
        drawn = self._master[0].items()
        shapes = {name: weight.shape for name, weight in drawn if name not in self._frozen}
        dtype = np.dtype(self.workload.dtype)
        buffers = FlatBuffers(shapes, self.world_size, dtype)
        for name in shapes:
            for rank, view in enumerate(buffers.views(name)):
                own = self._master[rank][name] if who.counted[rank] else dtype.type(0)
                np.divide(own, dtype.type(num_averaged or who.num_counted), out=view)
        payload.run(plan, buffers.flat)
        for name in shapes:
            views = buffers.views(name)
            for rank, view in ((rank, views[rank]) for rank in who.ranks):
                self._master[rank][name][...] = view
                if self.workload.precision.has_master:
                    self.weights[rank][name][...] = rounded(view, self.stored)

    def start_outer(self, optimizer: Optimizer) -> None:
        """Copy every rank's trainable weights as global ones, with optimizer state."""
        self._global = [
            {name: weight.copy() for name, weight in own.items() if name not in self._frozen}
            for own in self._master
        ]
        self._outer_state = [
            {name: optimizer.for_parameter(name).new_state(weight) for name, weight in own.items()}
            for own in self._global
        ]

    def outer_update(self, optimizer: Optimizer) -> None:
        """Update the global weights by their distance from the ranks'; copy them to the ranks."""
        self._num_outer += 1

        def work(rank: int) -> None:
            for name, kept in self._global[rank].items():
                own, member = self._master[rank][name], optimizer.for_parameter(name)
                state = self._outer_state[rank][name]
                member.step(kept, kept - own, state, member.lr, self._num_outer)
                own[...] = kept
                if self.workload.precision.has_master:
                    self.weights[rank][name][...] = rounded(kept, self.stored)

        each_rank(work, self.world_size, self.workload.model.num_parameters())

    def _outer_arrays(self, rank: int) -> Arrays:
        """Global weights of a rank and their optimizer's state, by name."""
        if not self._global:
            return {}
        arrays = {f"global/{name}": weight for name, weight in self._global[rank].items()}
        for name, state in self._outer_state[rank].items():
            arrays |= {f"outer/{part}/{name}": value for part, value in state.items()}
        return arrays

    def shard(
        self, places: Sequence[Mapping[str, slice]], groups: Sequence[Sequence[int]], whole: bool
    ) -> None:
        """Keep, and update, only each rank's own pieces of the parameters.

        ``places`` are the positions of each rank's pieces in flattened parameters; the ranks of a
        group have all pieces together; ``whole``: every rank also keeps the whole weights.
        """
        self._groups, self._places = groups, places
        pieces = []
        for own, mine in zip(self._master, places, strict=True):
            cut = {name: own[name].reshape(-1)[place] for name, place in mine.items()}
            shared = whole and not self.workload.precision.has_master
            pieces.append(cut if shared else {name: piece.copy() for name, piece in cut.items()})
        self._master = pieces
        self._state = [self._new_state(own) for own in pieces]

    def _new_state(self, own: Arrays) -> dict[str, State]:
        return {
            name: self._optimizers[name].new_state(self._shaped(name, weight))
            for name, weight in own.items()
            if name not in self._frozen
        }

    def _shaped(self, name: str, piece: Array) -> Array:
        """A parameter's tensor, in its shape if it is whole."""
        return piece.reshape(self._shapes[name]) if piece.size == self._sizes[name] else piece

    def state_dict(self, groups: Sequence[Sequence[int]] | None) -> dict[str, Array]:
        """Master or other weights, state, counts and scales by rank and name.

        The ranks of a group have all pieces together, and the whole is stored under the first one;
        None: every rank has all.
        """
        arrays: dict[str, Array] = {}
        for ranks in groups or [[rank] for rank in range(len(self._taken))]:
            first = ranks[0]
            for name in self._optimizers:
                arrays[f"{first}/weights/{name}"] = self._whole(name, ranks, self._master)
                shapes = self._optimizers[name].state_shapes(self._shapes[name])
                for part in shapes if name not in self._frozen else ():
                    kept = [{name: own[name][part]} if name in own else {} for own in self._state]
                    arrays[f"{first}/{part}/{name}"] = self._whole(name, ranks, kept)
        for rank, taken in enumerate(self._taken):
            arrays[f"{rank}/taken"] = np.array(taken)
            arrays |= {f"{rank}/{key}": value for key, value in self._outer_arrays(rank).items()}
            if self._global:
                arrays[f"{rank}/outer_taken"] = np.array(self._num_outer)
            if self._scalers:
                scaler = self._scalers[rank]
                arrays[f"{rank}/scaler"] = np.array([scaler.scale, float(scaler.growth_tracker)])
        return arrays

    def _whole(self, name: str, ranks: Sequence[int], pieces: Sequence[Arrays]) -> Array:
        """Join a tensor, flat, from the pieces of some ranks."""
        if name in self._frozen and name not in pieces[ranks[0]]:  # it is kept whole
            return self.weights[ranks[0]][name].reshape(-1)
        if len(ranks) == 1 and not self._places[ranks[0]]:
            return pieces[ranks[0]][name].reshape(-1)
        holders = [rank for rank in ranks if name in self._places[rank]]
        if len(holders) == 1:
            return pieces[holders[0]][name].reshape(-1)
        whole = np.zeros(self._sizes[name], self.workload.dtype)
        for rank in ranks:
            if name in self._places[rank]:
                whole[self._places[rank][name]] = pieces[rank][name].reshape(-1)
        return whole

    def whole_gradients(self, gradients: Sequence[Arrays], rank: int = 0) -> Arrays:
        """Join copies of the gradients of a rank's group, without the loss scale."""
        ranks = next(group for group in self._groups if rank in group)
        gradients_by_name, scale = dict[str, Array](), self.loss_scale(rank)
        for name, size in self._sizes.items():
            first = next((gradients[rank][name] for rank in ranks if name in gradients[rank]), None)
            if first is not None:
                whole = first if first.size == size else self._whole(name, ranks, gradients)
                gradients_by_name[name] = whole.reshape(self._shapes[name]) / first.dtype.type(
                    scale
                )
        return gradients_by_name

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Load a state: each rank its own, or its piece of it.

        Raises
        ------
        ScenarioError
            If an array is missing, or of another size.
        """
        leaders = {rank: ranks[0] for ranks in self._groups for rank in ranks}
        for rank, own in enumerate(self._master):
            leader = leaders[rank]  # whole tensors are stored under its name
            for name, weight in self.weights[rank].items():
                whole = of_rank(arrays, leader, f"weights/{name}", (self._sizes[name],))
                stored = self.workload.precision.has_master
                kept = rounded(whole, self.stored) if stored else whole
                weight[...] = kept.reshape(weight.shape)
            for name, piece in own.items():
                place, size = self._places[rank].get(name, slice(None)), (self._sizes[name],)
                piece.reshape(-1)[...] = of_rank(arrays, leader, f"weights/{name}", size)[place]
                for part, kept in self._state[rank].get(name, {}).items():
                    all_of_it = piece.size == self._sizes[name]
                    form = (kept.size,) if all_of_it else size
                    whole = of_rank(arrays, leader, f"{part}/{name}", form)
                    kept.reshape(-1)[...] = whole[place][: kept.size]  # a scalar is everywhere
            self._taken[rank] = int(of_rank(arrays, rank, "taken", ()))
            for key, value in self._outer_arrays(rank).items():
                value[...] = of_rank(arrays, rank, key, value.shape)
            if self._global:
                self._num_outer = int(of_rank(arrays, rank, "outer_taken", ()))
            if self._scalers:
                scale, tracker = of_rank(arrays, rank, "scaler", (2,)).tolist()
                self._scalers[rank].scale = scale
                self._scalers[rank].growth_tracker = int(tracker)

    def pieces(self, rank: int) -> Arrays:
        """The rank's own pieces of the parameters, flat, in the workload's dtype."""
        return self._master[rank]

    def update(
        self, gradients: Sequence[Arrays], progress: Progress, active: Sequence[bool]
    ) -> list[UpdateResult | None]:
        """Run the optimizer of every active rank; unscaling and clipping change the gradients."""
        num_elements = self.workload.model.num_parameters()
        if self.look is not None:
            self.look(gradients)

        def measure(rank: int) -> tuple[float, bool]:
            return self._measured(rank, gradients[rank]) if active[rank] else (0.0, False)

        measured = each_rank(measure, len(self._taken), num_elements)
        whole: dict[int, tuple[float, bool]] = {}
        for ranks in self._groups:
            norm = self._norm_of([measured[rank][0] for rank in ranks])
            bad = any(measured[rank][1] for rank in ranks)
            whole |= dict.fromkeys(ranks, (norm, bad))

        def clip(rank: int) -> None:
            if active[rank]:
                self._clip(gradients[rank], whole[rank][0])

        each_rank(clip, len(self._taken), num_elements)
        moves = [there and not whole[rank][1] for rank, there in enumerate(active)]
        halves = self._first_halves(gradients, moves, num_elements)

        def work(rank: int) -> UpdateResult | None:
            if not active[rank]:
                return None
            if moves[rank]:
                self._taken[rank] += 1
                self._step_of(rank, gradients[rank], progress, halves[rank])
            if self._scalers:
                self._scalers[rank].update(whole[rank][1])
            return UpdateResult(*whole[rank])

        return each_rank(work, len(self._taken), num_elements)

    def _measured(self, rank: int, gradients: Arrays) -> tuple[float, bool]:
        """Unscale; return the norm's sum (of squares), and whether inf or nan prevents the step."""
        scaler = self._scalers[rank] if self._scalers else None
        if scaler:
            for gradient in gradients.values():
                gradient *= gradient.dtype.type(scaler.inverse())
        parts = [self._summed(gradient) for gradient in gradients.values()]
        total = max(parts, default=0.0) if self.workload.norm_type == "inf" else sum(parts)
        if any(isnan(part) for part in parts):  # max ignores nan
            total = nan
        return total, scaler is not None and not _all_finite(total, gradients)

    def _summed(self, gradient: Array) -> float:
        """A tensor's contribution to the norm: the sum of powers, or the largest magnitude."""
        order = self.workload.norm_type
        if order == 2.0:
            return float(np.vdot(gradient, gradient))
        if order == "inf":
            return float(np.abs(gradient).max(initial=0.0))
        return float((np.abs(gradient) ** order).sum())

    def _norm_of(self, parts: Sequence[float]) -> float:
        """The norm of a gradient from several ranks' contributions."""
        order = self.workload.norm_type
        if order == 2.0:
            return sqrt(sum(parts))
        if order == "inf":
            return nan if any(isnan(part) for part in parts) else max(parts)
        return float(sum(parts) ** (1 / order))

    def _clip(self, gradients: Arrays, norm: float) -> None:
        largest, value = self.workload.clip_grad_norm, self.workload.clip_grad_value
        if value is not None:
            for gradient in gradients.values():
                np.clip(gradient, -value, value, out=gradient)
        if largest is not None:
            factor = largest / (norm + CLIP_EPS)
            for gradient in gradients.values() if factor < 1 else ():
                gradient *= gradient.dtype.type(factor)

    def _first_halves(
        self, gradients: Sequence[Arrays], moves: Sequence[bool], num_elements: int
    ) -> list[dict[str, Half]]:
        """Begin the updates that need norms of tensors of which each rank has only a piece."""
        trusting = {
            name: chosen
            for name, chosen in self._optimizers.items()
            if self.is_sharded and isinstance(chosen, TrustRatio)
        }

        def begin(rank: int) -> dict[str, tuple[Array, float, float]]:
            own, halves = self._master[rank], {}
            for name in trusting if moves[rank] else ():
                if name in gradients[rank] and name in own:
                    state, t = self._state[rank][name], self._taken[rank] + 1
                    kept = {part: tensor.reshape(-1) for part, tensor in state.items()}
                    weight, gradient = own[name].reshape(-1), gradients[rank][name].reshape(-1)
                    made = trusting[name].measured(weight, gradient, kept, t)
                    halves[name] = made, squares(weight), squares(made)
            return halves

        if not trusting:
            return [{} for _ in moves]
        begun = each_rank(begin, len(self._taken), num_elements)
        halves: list[dict[str, Half]] = [{} for _ in moves]
        for ranks in self._groups:
            for name, chosen in trusting.items():
                pieces = {rank: begun[rank][name] for rank in ranks if name in begun[rank]}
                sums = np.sum([[w, u] for _, w, u in pieces.values()], axis=0).tolist()
                ratio = chosen.ratio_of(*sums) if pieces else 1.0
                for rank, (made, _, _) in pieces.items():
                    halves[rank][name] = Half(made, ratio)
        return halves

    def _step_of(
        self, rank: int, gradients: Arrays, progress: Progress, halves: Mapping[str, Half]
    ) -> None:
        state, t, workload = self._state[rank], self._taken[rank], self.workload
        momentum = workload.lr_schedule.momentum(workload.lr_schedule.number(progress))
        for name, weight in self._master[rank].items():
            if name not in gradients:  # never used: torch's optimizers skip it too
                continue
            optimizer = self._optimizers[name].with_momentum(momentum)
            lr = workload.learning_rate(optimizer.lr, progress, self.world_size)
            if name in halves and isinstance(optimizer, TrustRatio):
                kept = {part: tensor.reshape(-1) for part, tensor in state[name].items()}
                optimizer.finish(
                    weight.reshape(-1), halves[name].made, kept, lr, t, halves[name].ratio
                )
            else:
                whole, gradient = self._shaped(name, weight), self._shaped(name, gradients[name])
                optimizer.step(whole, gradient, state[name], lr, t)
            if self.workload.precision.has_master and name in self.weights[rank]:
                stored = self.weights[rank][name].reshape(-1)
                place = self._places[rank].get(name, slice(None))
                stored[place] = rounded(weight, self.stored).reshape(-1)


def _all_finite(squares: float, gradients: Arrays) -> bool:
    """Whether no gradient is inf or nan; the sum of squares of finite ones may overflow."""
    return isfinite(squares) or all(bool(np.isfinite(g).all()) for g in gradients.values())


STATE = "plateau/seen"
"""Best loss, bad values, cooldown, reductions; then the sum and number of an epoch's losses."""


class Plateau:
    """Counts the plateaus of the loss for `ReduceLROnPlateau`."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule if isinstance(schedule, ReduceLROnPlateau) else None
        self._seen = Seen()
        self._sum, self._count = 0.0, 0

    @property
    def reductions(self) -> int:
        """Number of reductions of the learning rate."""
        return self._seen.reductions

    def look(self, loss: float | None, closes_epoch: bool) -> None:
        """Record the loss of a step, and the epoch's mean at its end."""
        if self._schedule is None:
            return
        if loss is not None:
            self._sum, self._count = self._sum + loss, self._count + 1
        if self._count and (closes_epoch or self._schedule.per == "step"):
            self._seen = self._schedule.seen(self._seen, self._sum / self._count)
            self._sum, self._count = 0.0, 0

    def state_dict(self) -> dict[str, Array]:
        """State that is kept from step to step."""
        if self._schedule is None:
            return {}
        best, *counts = self._seen
        first = np.nan if best is None else best
        return {STATE: np.array([first, *counts, self._sum, self._count])}

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Load the state of a stopped run.

        Raises
        ------
        ScenarioError
            If it is missing.
        """
        if self._schedule is None:
            return
        if STATE not in arrays:
            raise ScenarioError([f"the state has no {STATE}, which this run keeps."])
        best, num_bad, cooldown, reductions, total, count = arrays[STATE].tolist()
        best_loss = None if np.isnan(best) else best
        self._seen = Seen(best_loss, int(num_bad), int(cooldown), int(reductions))
        self._sum, self._count = total, int(count)
