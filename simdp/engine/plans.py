"""The plans that a run may launch, known before it runs."""

from __future__ import annotations

from simdp.collectives import Plan
from simdp.engine.choice import Planner
from simdp.engine.cohort import Cohort
from simdp.engine.ops import Launch
from simdp.engine.slowdown import Slowdown
from simdp.scenario import Scenario


def plans_of(scenario: Scenario, planner: Planner) -> list[Plan]:
    """Every plan whose connections a run of the scenario may use.

    An algorithm's connections do not depend on the size, so that one plan stands for all. Where
    sizes decide on the algorithm, the script tells them.
    """
    asked = [(getattr(scenario.collectives, name), root) for name, root in scenario.calls()]
    if any(algorithm.kind == "auto" for algorithm, _ in asked):
        timed = scenario.model_copy(update={"numerics": False})
        timed._base = scenario.base
        script = Cohort(timed, Slowdown(scenario.cluster, scenario.seed), planner).run()
        return list(dict.fromkeys(op.plan for op in script if isinstance(op, Launch)))
    return [planner.plan(algorithm, 0.0, root) for algorithm, root in asked]


def most_transfers(scenario: Scenario, planner: Planner) -> int:
    """Count the transfers of a collective of all gradients at once, the longest that there is."""
    workload = scenario.workload
    nbytes = float(workload.model.num_parameters() * workload.itemsize)
    called = [(getattr(scenario.collectives, name), root) for name, root in scenario.calls()]
    plans = [planner.plan(algorithm, nbytes, root) for algorithm, root in called]
    return max((plan.num_transfers for plan in plans), default=0)
