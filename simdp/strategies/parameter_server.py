"""A parameter server: workers push gradients and pull the newest weights."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Int, problem
from simdp.steps.facts import Facts, Ops, StepContext
from simdp.strategies.base import (
    AVERAGED,
    Departure,
    ServerOptions,
    Strategy,
    of_weights,
    own_gradients,
    uneven,
)
from simdp.workload import Workload


class ParameterServer(Strategy):
    """A server holds the weights and the optimizer; every rank is a worker.

    A worker pulls the weights, computes a gradient, and pushes it; each direction is one message,
    of all weights or of all gradients, over the route between its device and the server's.
    Concurrent messages share the server's links. The initial weights are rank 0's, wherever the
    server runs, so that its place changes no number.

    References
    ----------
    Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014. Backup
    workers: Chen et al., "Revisiting distributed synchronous SGD", arXiv 1604.00981, 2016. Bounded
    staleness: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter
    server", NIPS 2013.
    """

    has_server: ClassVar[bool] = True

    kind: Literal["parameter_server"] = "parameter_server"
    updates: Literal["synchronous", "asynchronous"] = "synchronous"
    """Synchronous: the server waits for the gradients of the step, averages them and updates, and
    every worker pulls. Asynchronous: each gradient is applied when it arrives, to weights that
    other updates may have changed since its worker pulled them; its staleness is the number of
    these updates. lr(k) is then that of the k-th update; a step has as many updates as ranks."""
    server: Int = Field(0, ge=0)
    """Rank on the server's device; messages to the worker there use no link."""
    backup: Int = Field(0, ge=0)
    """Number of slowest gradients of a step that are dropped: the server updates after the first
    ``world_size - backup`` to arrive (ties: the lower rank). A late worker pulls the newest weights
    and joins that step; it skips the steps in between. A rank without samples in a step sends
    nothing, and is not among the first."""
    max_staleness: Int | None = Field(None, ge=0)
    """Asynchronous: a worker more than this many steps ahead of the slowest one waits for it before
    it pulls. 0 begins every step together; None never waits."""

    @model_validator(mode="after")
    def _options_suit_the_updates(self) -> Self:
        if self.updates == "asynchronous" and self.backup:
            raise problem(
                "backup drops the slowest gradients of a step, but updates: asynchronous applies "
                "each one when it arrives; leave backup out, or write updates: synchronous."
            )
        if self.updates == "synchronous" and self.max_staleness is not None:
            raise problem(
                "max_staleness delays workers that are ahead, but under updates: synchronous "
                "none is; leave it out, or write updates: asynchronous."
            )
        return self

    def problem_with(self, world_size: int, workload: Workload) -> str | None:
        if self.server >= world_size:
            return (
                f"server: rank {self.server} does not exist; the ranks are 0 ... {world_size - 1}."
            )
        if self.backup >= world_size:
            return (
                f"backup: {self.backup} dropped gradients of {world_size} leave none; use at most "
                f"{world_size - 1}."
            )
        if workload.graph.is_synchronised:
            return (
                "kind: the workers of a parameter_server exchange no messages, but "
                "sync_batchnorm needs the statistics of all of them; use ddp, or a batch norm "
                "that is not synchronised."
            )
        if workload.precision.scaler() is not None:
            return (
                "kind: parameter_server keeps no loss scale, which "
                f"precision {workload.precision.kind} needs with {workload.precision.low}; use "
                "bfloat16 without init_scale, or precision: full, or ddp."
            )
        return uneven(workload)

    def problem_with_frozen(self) -> str | None:
        return (
            f"strategy.kind: {self.kind} sends every weight and receives a gradient of each; use "
            "ddp or another strategy without a server."
        )

    @property
    def server_options(self) -> ServerOptions:
        return ServerOptions(self.server, self.updates, self.backup, self.max_staleness)

    def departures(self, workload: Workload) -> list[Departure]:
        departures = list[Departure]()
        if self.updates == "asynchronous":
            text = "a gradient is applied when it arrives, to weights that others have changed"
            key = "strategy.updates"
            without = {key: "synchronous", "strategy.max_staleness": None}
            departures.append(Departure("stale_gradients", key, text, without))
        if self.backup:
            key, text = "strategy.backup", f"the {self.backup} slowest gradients are dropped"
            departures.append(Departure("dropped_ranks", key, text, {key: 0}))
        return departures or [of_weights(workload, AVERAGED)]

    def averaging(self) -> str:
        if self.updates == "asynchronous":
            bound = self.max_staleness
            stale = "" if bound is None else f", at most {bound} steps apart"
            return f"none: each rank's gradients update the server's weights{stale}"
        if self.backup:
            return f"gradients in every step, without the {self.backup} slowest ranks"
        return super().averaging()

    def num_updates(self, world_size: int, num_steps: int) -> int:
        return num_steps * (world_size if self.updates == "asynchronous" else 1)

    def setup(self, facts: Facts) -> Ops:
        """Do nothing; the engine lets workers pull the first weights."""
        yield from ()

    def train_step(self, facts: Facts, step: StepContext) -> Ops:
        """Run a worker's forward and backward, between a pull and a push."""
        yield from own_gradients(facts, step)
