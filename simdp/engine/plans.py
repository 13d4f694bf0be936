"""The plans that a run may launch, known before it runs."""

from __future__ import annotations

from simdp.collectives import Plan
from simdp.engine.choice import Planner
from simdp.engine.ops import Launch
from simdp.engine.run import Run
from simdp.engine.slowdown import Slowdown
from simdp.engine.state import WHOLE, Segment
from simdp.scenario import Scenario
from simdp.steps.program import Program


def plans_of(
    scenario: Scenario,
    planner: Planner,
    program: Program | None = None,
    segment: Segment = WHOLE,
) -> dict[int, list[Plan]]:
    """Every plan whose connections a run of the scenario may use, by communication stream.

    An algorithm's connections do not depend on the size, so that one plan stands for all. Where
    sizes decide on the algorithm, or batches on who takes part, the script tells them.
    """
    program = program or scenario.program
    asked = [(getattr(scenario.collectives, name), root) for name, root in program.calls]
    in_groups = [name for several in program.groups for name in several.collectives]
    kinds = [algorithm.kind for algorithm, _ in asked]
    kinds += [getattr(scenario.collectives, name).kind for name in in_groups]
    if "auto" in kinds or program.scatters:
        timed = scenario.model_copy(update={"numerics": False})
        slowdown = Slowdown(scenario.cluster, scenario.seed)
        script = Run(timed, slowdown, planner, segment=segment).script()
        found: dict[int, dict[Plan, None]] = {0: {}}
        for op in script:
            if isinstance(op, Launch):
                found.setdefault(op.stream, {})[op.plan] = None
        return {stream: list(plans) for stream, plans in found.items()}
    streams = {0: [planner.plan(algorithm, 0.0, root) for algorithm, root in asked]}
    for several in program.groups:
        of_groups = planner.of_groups(several.ranks)
        streams.setdefault(several.stream, []).extend(
            of_groups.plan(getattr(scenario.collectives, name), 0.0) for name in several.collectives
        )
    return streams


def most_transfers(scenario: Scenario, planner: Planner) -> int:
    """Count the transfers of a collective of all gradients at once, the longest that there is."""
    workload, collectives = scenario.workload, scenario.collectives
    nbytes = float(workload.model.num_parameters() * workload.itemsize)
    called = [
        (getattr(collectives, name), root)
        for name, root in scenario.calls()
        if not collectives.cost_of(name).timed
    ]
    plans = [planner.plan(algorithm, nbytes, root) for algorithm, root in called]
    for several in scenario.program.groups:
        of_groups = planner.of_groups(several.ranks)
        names = [name for name in several.collectives if not collectives.cost_of(name).timed]
        plans += [of_groups.plan(getattr(collectives, name), nbytes) for name in names]
    return max((plan.num_transfers for plan in plans), default=0)
