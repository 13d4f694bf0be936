"""Fluid: calls that are under way at the same time share the links that they have in common.

A whole call is one job. Alone it runs at full speed, which is what its nominal ends tell. While k
calls use a link, each of them has 1/k of it, and a call is as fast as its smallest share lets it
be; shares are settled anew whenever a call begins or ends. This is coarse in two ways: latency
slows down as bytes do, and a call holds all of its links from its begin to its end. Sharing
*inside* a call is the business of its plan.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.engine.programs.baton import Baton

Reached = Callable[[Ints, float], None]
"""Told of the places that are done, and when [s]."""


class Job:
    """A call on its way.

    Parameters
    ----------
    ends : ndarray, shape `(num_places,)`
        When each place would be done, if nothing else were under way [s].
    links : ndarray, int64
        Which links it uses, each once.
    reached : callable
        Told of the places that are done, in groups of the same instant.
    over : callable
        Called after the last of them.
    """

    def __init__(
        self, ends: Floats, links: Ints, reached: Reached, over: Callable[[], None]
    ) -> None:
        self.links, self.reached, self.over = links, reached, over
        if (ends == ends[0]).all():  # as of messages, and of calls that a formula times
            self.milestones, self.places = ends[:1], [np.arange(len(ends))]
        else:
            self.milestones, which = np.unique(ends, return_inverse=True)
            order = np.argsort(which, kind="stable")
            self.places = np.split(order, np.cumsum(np.bincount(which))[:-1])
        self.next = 0
        self.speed = 1.0
        self.since = self.progress = 0.0  # at which instant it had come to which nominal one
        self.version = 0

    def due(self) -> float:
        """When the next milestone is reached at this speed [s]."""
        nominal = float(self.milestones[self.next])
        if self.since == self.progress and self.speed == 1.0:
            return nominal
        return self.since + (nominal - self.progress) / self.speed


class Fluid:
    """All calls that are under way.

    Parameters
    ----------
    baton : Baton
        The clock.
    num_links : int
        Of the cluster.
    """

    def __init__(self, baton: Baton, num_links: int) -> None:
        self._baton = baton
        self._users = np.zeros(num_links, dtype=np.int64)
        self._jobs: list[Job] = []

    @property
    def now(self) -> float:
        """The instant that it is [s]."""
        return self._baton.now

    def begin(self, job: Job) -> None:
        """Start a call at this instant."""
        job.since = job.progress = self._baton.now
        self._users[job.links] += 1
        self._jobs.append(job)
        if (self._users[job.links] > 1).any():
            self._settle(job)
        self._schedule(job)

    def _settle(self, new: Job | None = None) -> None:
        """Give every call its share from this instant on."""
        now = self._baton.now
        for job in self._jobs:
            speed = 1.0 / int(self._users[job.links].max(initial=1))
            if speed == job.speed:
                continue
            job.progress += (now - job.since) * job.speed
            job.since, job.speed = now, speed
            if job is not new:
                self._schedule(job)

    def _schedule(self, job: Job) -> None:
        job.version += 1
        version, instant = job.version, max(job.due(), self._baton.now)

        def act() -> None:
            if job.version == version:  # else its speed has changed since
                self._reach(job, instant)

        self._baton.at(instant, act)

    def _reach(self, job: Job, instant: float) -> None:
        places = job.places[job.next]
        job.next += 1
        if job.next < len(job.milestones):
            self._schedule(job)
            job.reached(places, instant)
            return
        shared = bool((self._users[job.links] > 1).any())
        self._users[job.links] -= 1
        self._jobs.remove(job)
        if shared:
            self._settle()
        job.reached(places, instant)
        job.over()
