"""Length: how many steps a job takes."""

from __future__ import annotations

from typing import NamedTuple

from simdp.engine.outlook import need_of
from simdp.engine.simulate import simulate
from simdp.errors import ScenarioError
from simdp.job.target import Need
from simdp.rng import stream
from simdp.scenario import Scenario


class Length(NamedTuple):
    """How long a job is.

    Attributes
    ----------
    num_steps : float
        Steps on all nodes; of a target that luck has a part in, of a mean run.
    counts_samples : bool
        Whether a step of fewer samples is less of one, as in a job of epochs.
    need : Need or None
        Samples that a target takes.
    global_batch : float
        Samples of a step.
    """

    num_steps: float
    counts_samples: bool
    need: Need | None = None
    global_batch: float = 1.0

    def drawn(self, seed: int, run: int) -> float:
        """Steps of one run of an ensemble."""
        if self.need is None or not self.need.sd:
            return self.num_steps
        samples = float(self.need.draw(stream(seed, "target", run), 1)[0])
        return max(samples / self.global_batch, 1.0)


def length_of(scenario: Scenario) -> Length:
    """How many steps a job takes: to its target, or else ``workload.steps`` or its epochs.

    Raises
    ------
    ScenarioError
        If nothing says where it ends, or the target is a loss that is not reached.
    """
    workload, world_size = scenario.workload, scenario.cluster.world_size
    if scenario.target is not None:
        return _to_target(scenario)
    if scenario.is_shortened:  # one epoch, which a run of times alone does not play
        workload = workload.model_copy(update={"steps": None})
    if workload.steps is not None:
        return Length(workload.steps, False)
    if workload.dataset.kind == "none":
        raise ScenarioError(
            [
                "workload.steps: the job has no end, as there is no data set and no number of "
                "steps; add steps: 100000, or a target."
            ]
        )
    return Length(workload.num_steps(world_size, scenario.base), True)


def _to_target(scenario: Scenario) -> Length:
    batch = float(scenario.workload.samples_per_step(scenario.cluster.world_size))
    need = need_of(scenario, batch)
    if need is not None:
        return Length(max(need.mean / batch, 1.0), True, need, batch)
    found = simulate(scenario).target or {}
    if not found.get("reached"):
        raise ScenarioError(
            [
                "target: the job has no end, since the loss is not reached in all steps of a run; "
                "train longer, or ask for a larger loss."
            ]
        )
    return Length(float(found["steps"]), False)
