"""A server and its workers: runs in which ranks do not go in step, and the clock decides.

Beside the cohort, which does the same on every rank and meets in collectives: here each rank plays
its own part (`workers`), messages share links (`messages`), and what becomes of a gradient depends
on when it comes (`updates`). The numbers follow the clock (`learning`), and so the same seed gives
the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

from simdp.engine.choice import Planner
from simdp.engine.clocks.clock import Clock, Fabric
from simdp.engine.cohort import Cohort
from simdp.engine.compute import Times
from simdp.engine.network.traffic import Traffic
from simdp.engine.played import Played
from simdp.engine.server.learning import Learning
from simdp.engine.server.run import ServerRun
from simdp.engine.slowdown import Slowdown
from simdp.errors import ScenarioError
from simdp.results.trace import TraceBuilder
from simdp.scenario import Scenario


def play_with_server(
    scenario: Scenario,
    trace: TraceBuilder,
    fabric: Fabric | None = None,
    progress: Callable[[int], None] | None = None,
    times: Times | None = None,
) -> Played:
    """Play a scenario whose strategy has a server; as `simdp.engine.simulate.play`.

    Raises
    ------
    ScenarioError
        If ``fabric="vector"``.
    """
    if fabric == "vector":
        raise ScenarioError(
            ["fabric 'vector' plays no messages to a server; use 'event' or 'auto'."]
        )
    cluster, traffic = scenario.cluster, Traffic()
    slowdown, planner = Slowdown(cluster, scenario.seed), Planner(cluster)
    timed = scenario.model_copy(update={"numerics": False})
    cohort = Cohort(timed, slowdown, planner, times)
    learning = Learning(scenario) if scenario.numerics else None
    run = ServerRun(cohort, learning, trace, traffic, progress)
    end = run.play()
    why = "messages to the server come when they come"
    clock = Clock("event", why, planner.network, [], slowdown, trace)
    server = run.deeds.summary(run.server, end)
    return Played(cohort, clock, traffic, server)
