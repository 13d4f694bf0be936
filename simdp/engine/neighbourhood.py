"""Neighbourhood: the other jobs on a cluster, each with a script that never ends."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simdp.engine.choice import Planner
from simdp.engine.clocks.clock import OtherJob
from simdp.engine.network import Network
from simdp.engine.network.traffic import Traffic
from simdp.engine.ops import Feed, Launch, Op, Wait, Work
from simdp.engine.plans import plans_of
from simdp.engine.run import Run
from simdp.engine.slowdown import Slowdown
from simdp.scenario import Scenario
from simdp.scenario.neighbours import with_neighbours
from simdp.scenario.placement import deal_nodes, vertices


class Neighbourhood:
    """The jobs beside a scenario's own.

    Parameters
    ----------
    scenario : Scenario
        With neighbours.

    Attributes
    ----------
    network : Network
        Routes of the scenario's own ranks in the whole cluster.
    jobs : list of OtherJob
        The neighbours.
    """

    def __init__(self, scenario: Scenario) -> None:
        others = [scenario.neighbour(number) for number in range(len(scenario.neighbours))]
        jobs = [scenario, *others]
        sizes = [job.cluster.world_size for job in others]
        whole = with_neighbours(scenario.cluster, sizes)
        nodes = deal_nodes(scenario.placement, [job.cluster.num_nodes for job in jobs])
        networks = [Network(whole, vertices(whole, mine)) for mine in nodes]
        self.network = networks[0]
        self.jobs = [_ready(job, net) for job, net in zip(others, networks[1:], strict=True)]


def _ready(job: Scenario, network: Network) -> OtherJob:
    planner, slowdown = Planner(job.cluster, network), Slowdown(job.cluster, job.seed)
    traffic = Traffic()
    script = traffic.watch(_endless(job, planner, slowdown))
    return OtherJob(
        network, plans_of(job, planner), slowdown, script, traffic, job.cluster.overheads
    )


def _endless(job: Scenario, planner: Planner, slowdown: Slowdown) -> Iterator[Op]:
    """A job's run, begun anew whenever it is over; collectives are numbered on and on."""
    first, busy = 0, True
    while busy:  # what takes no time would go on for ever at one instant
        launched, busy = 0, False
        for op in Run(job, slowdown, planner).script():
            match op:
                case Launch():
                    launched, busy = launched + 1, busy or op.nbytes > 0
                    after = tuple(first + call for call in op.after)
                    yield op._replace(call=first + op.call, record=False, after=after)
                case Wait():
                    yield Wait(tuple((first + np.array(op.calls)).tolist()))
                case Feed():
                    busy = True
                    yield op
                case _:
                    busy = busy or (isinstance(op, Work) and bool(op.seconds.any()))
                    yield op
        first += launched
