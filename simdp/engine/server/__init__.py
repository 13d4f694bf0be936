"""A server and its workers: runs in which ranks do not go in step, and the clock decides.

Other runs do the same on every rank, and meet in collectives; here each rank plays its own part
(`workers`), messages share links (`messages`), and what becomes of a gradient depends on when it
comes (`updates`). The numbers follow the clock (`learning`), and so the same seed gives the same
bits.
"""

from __future__ import annotations

from collections.abc import Callable

from simdp.engine.choice import Planner
from simdp.engine.clocks.clock import Clock, Fabric
from simdp.engine.compute import Times
from simdp.engine.network.traffic import Traffic
from simdp.engine.played import Played
from simdp.engine.run import Run
from simdp.engine.server.learning import Learning
from simdp.engine.server.run import ServerRun
from simdp.engine.slowdown import Slowdown
from simdp.engine.state import WHOLE, Segment
from simdp.errors import ScenarioError
from simdp.results.trace import TraceBuilder
from simdp.scenario import Scenario


def play_with_server(
    scenario: Scenario,
    trace: TraceBuilder,
    fabric: Fabric | None = None,
    progress: Callable[[int], None] | None = None,
    times: Times | None = None,
    segment: Segment = WHOLE,
) -> Played:
    """Play a scenario whose strategy has a server; as `simdp.engine.simulate.play`.

    Raises
    ------
    ScenarioError
        If ``fabric="vector"``; or it is to go on on another cluster, where the order of messages
        would be another one.
    """
    if fabric == "vector":
        raise ScenarioError(
            ["fabric 'vector' plays no messages to a server; use 'event' or 'auto'."]
        )
    if segment.past is not None and not segment.goes_on:
        raise ScenarioError(
            [
                "cluster: what workers have pulled and not yet sent belongs to the cluster on "
                "which a run with a server stopped; go on with the same one."
            ]
        )
    cluster, traffic = scenario.cluster, Traffic()
    slowdown, planner = Slowdown(cluster, scenario.seed), Planner(cluster)
    timed = scenario.model_copy(update={"numerics": False})
    ranks = Run(timed, slowdown, planner, times)
    learning = None
    if scenario.numerics:
        ranks.numbers = learning = Learning(scenario, ranks.program, segment.past)
    run = ServerRun(ranks, learning, trace, traffic, progress, segment.stop_after)
    end = run.play()
    why = "messages to the server come when they come"
    clock = Clock("event", why, planner.network, [], slowdown, trace)
    server = run.deeds.summary(run.server, end)
    return Played(ranks, clock, traffic, server)
