"""Stragglers: slow ranks, degraded links, noise and pauses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import log1p, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from simdp.arrays import Bools, Floats, Ints
from simdp.cluster.numbering import Numbering
from simdp.errors import ScenarioError
from simdp.family import Family
from simdp.spec import Float, Int, PositiveSeconds, Quantity, Spec, one_of, problem
from simdp.units import format_quantity


class Straggler(Spec):
    """A cause of slower compute or links. A member overrides the methods of its effects.

    Every effect is a pure function of the step, the instant and the rank, so that a run's times do
    not depend on how its ranks are simulated.
    """

    kind: str

    by_chance: ClassVar[bool] = False
    """Whether steps differ by random draws."""

    by_factors: ClassVar[bool] = True
    """Whether `lasting` and `slowdown` are its only effects."""

    def on_rank(self) -> int | None:
        """Return the only affected rank, or None."""
        return None

    def on_node(self) -> int | None:
        """Return the only affected node, or None."""
        return None

    def comes_and_goes(self) -> bool:
        """Return whether some steps are unaffected by design, so that a few represent not all."""
        return False

    def rare_event(self, step_time: float) -> tuple[int | float, str] | None:
        """Return the first step, or instant as a float [s], of what short runs miss; and its name.

        The name has its share of a long run, at a time of a step [s].
        """
        return None

    def lasting(self, nodes: Ints, random: np.random.Generator) -> Floats:
        """Return the factor on the compute time of each rank in every step.

        Parameters
        ----------
        nodes : ndarray, shape `(world_size,)`, int64
            The node of each rank.
        random : numpy.random.Generator
            The stream of this straggler, independent of the step.

        Returns
        -------
        ndarray, shape `(world_size,)`
            Each above 0; 1 without an effect.
        """
        return np.ones(len(nodes))

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        """Return the factor on the compute time of each rank in a step, counted from 0.

        Parameters
        ----------
        step : int
            Counted from 0.
        world_size : int
            Number of ranks.
        random : numpy.random.Generator
            The stream of this straggler and step.

        Returns
        -------
        ndarray, shape `(world_size,)`
            Each above 0; 1 without an effect.
        """
        return np.ones(world_size)

    def lost(self, step: int, world_size: int) -> Floats:
        """Return the time lost once in a step, shape `(world_size,)` [s]."""
        return np.zeros(world_size)


def rounded(factors: Floats) -> Floats:
    """Round to 40 bits.

    The last bits of an exponential differ between processors, while traces must not.
    """
    mantissa, exponent = np.frexp(factors)
    return np.ldexp(np.round(mantissa * 2.0**40) / 2.0**40, exponent)


STRAGGLERS: Family[Straggler] = Family(
    "stragglers",
    Straggler,
    __name__,
    {
        "degraded_link": "DegradedLink",
        "empirical": "EmpiricalStraggler",
        "gamma": "Gamma",
        "jitter": "Jitter",
        "lognormal": "LognormalStraggler",
        "pause": "Pause",
        "shared_host": "SharedHost",
        "slow_node": "SlowNode",
        "slow_rank": "SlowRank",
    },
)
AnyStraggler = Annotated[Straggler, one_of("straggler", STRAGGLERS)]


Place = Annotated[Int, Field(ge=0)]
Pair = Annotated[list[Place], Field(min_length=2, max_length=2)]
NumSteps = Annotated[Int, Field(ge=1)]


class DegradedLink(Straggler):
    """Links with reduced bandwidth or higher latency, permanently or temporarily.

    Exactly one of ``node``, ``rank`` and ``link`` selects the links. Only transfers over these
    links slow down, in both directions; compute does not.
    """

    by_factors: ClassVar[bool] = False

    kind: Literal["degraded_link"] = "degraded_link"
    node: Place | None = None
    """All links between nodes that end at this one; with ``card`` those of this network card."""
    card: Place | None = None
    """Network card of the node."""
    rank: Place | None = None
    """All links inside its node that end at this device."""
    link: Pair | None = None
    """Two ranks: the direct link between them, in both directions."""
    bandwidth: Float = Field(1.0, gt=0, le=1)
    """Factor of at most 1 on the bandwidth."""
    latency: Float = Field(1.0, ge=1, le=1e6)
    """Factor of at least 1 on the latency."""
    steps: Pair | None = None
    """First step (counted from 0), and first step after the last; default: always."""
    on: NumSteps | None = None
    """Flapping: degraded for ``on`` steps, sound for ``off``, repeatedly. The seed draws the phase
    at the start of the run."""
    off: NumSteps | None = None
    """Flapping: degraded for ``on`` steps, sound for ``off``, repeatedly. The seed draws the phase
    at the start of the run."""

    @model_validator(mode="after")
    def _says_where_and_when(self) -> DegradedLink:
        given = [key for key in ("node", "rank", "link") if getattr(self, key) is not None]
        if len(given) != 1:
            selectors = " and ".join(given) if given else "none of them"
            raise problem(
                f"one of node, rank and link selects the degraded links; given: {selectors}; keep "
                "one, such as node: 1."
            )
        if self.card is not None and self.node is None:
            raise problem(f"card {self.card} is a node's; add node, or leave card out.")
        if self.link is not None and self.link[0] == self.link[1]:
            raise problem(f"link: joins rank {self.link[0]} to itself; give two ranks.")
        if self.steps is not None and self.steps[0] >= self.steps[1]:
            raise problem(
                f"steps: {self.steps} contains no step; give the first, and the first after it, "
                "such as [10, 20]."
            )
        if (self.on is None) != (self.off is None):
            raise problem("on and off go together; give both in steps, such as on: 2, off: 8.")
        return self

    def on_rank(self) -> int | None:
        return self.rank if self.link is None else max(self.link)

    def on_node(self) -> int | None:
        return self.node

    def comes_and_goes(self) -> bool:
        return self.steps is not None or self.on is not None

    def rare_event(self, step_time: float) -> tuple[int | float, str] | None:
        if self.on is None or self.off is None:
            first = self.steps[0] if self.steps else 0
            return first, f"a degraded link from step {first} on"
        period = self.on + self.off
        share = f"in the long run degraded in {100 * self.on / period:.3g} % of the steps"
        return period - 1, f"a whole period of a flapping link, {period} steps ({share})"

    def is_on(self, step: int, phase: float) -> bool:
        """Return whether links are degraded in a step.

        ``step`` counts from 0; earlier, in the setup, only permanent effects apply. ``phase`` is
        the start of the run within the flapping period, 0 ... 1.
        """
        if not self.comes_and_goes():
            return True
        if step < 0 or (self.steps and not self.steps[0] <= step < self.steps[1]):
            return False
        if self.on is None or self.off is None:
            return True
        period = self.on + self.off
        return (step + int(phase * period)) % period < self.on

    def made_lasting(self) -> DegradedLink:
        """Return the same as a permanent straggler."""
        return self.model_copy(update={"steps": None, "on": None, "off": None})


# Empirical ----------------------------------------------------------------------------------------

COLUMNS = ("quantile", "factor")


class QuantilePoint(Spec):
    """A point of the distribution."""

    quantile: Float = Field(ge=0, le=1)
    """Fraction of the steps that are no slower."""
    factor: Float = Field(gt=0, le=1e6)
    """Quantile of the times, in multiples of the device's time."""


class EmpiricalStraggler(Straggler):
    """Factor drawn per rank and step from measured quantiles, with linear interpolation."""

    by_chance: ClassVar[bool] = True

    kind: Literal["empirical"] = "empirical"
    quantiles: Annotated[list[QuantilePoint], Field(min_length=2)] | None = None
    """In ascending order, from quantile 0, the smallest factor, to quantile 1, the largest."""
    path: str | None = None
    """The same as CSV with the columns ``quantile, factor``, relative to the scenario file; instead
    of ``quantiles``."""

    _read: tuple[Floats, Floats] = PrivateAttr(default=(np.empty(0), np.empty(0)))

    @model_validator(mode="after")
    def _is_a_distribution(self, info: ValidationInfo) -> EmpiricalStraggler:
        if (self.path is None) == (self.quantiles is None):
            raise problem(
                "give either quantiles, [{quantile: 0, factor: 0.9}, ..., "
                "{quantile: 1, factor: 2}], or path, a CSV file with these columns."
            )
        base = Path((info.context or {}).get("base", ""))
        where = "quantiles" if self.path is None else str(base / self.path)
        try:
            pairs = self._pairs(base)
        except ScenarioError as error:
            raise problem(str(error)) from None
        wrong = _problem_with(pairs)
        if wrong:
            raise problem(f"{where}: {wrong}")
        at, factors = np.array(pairs).T
        self._read = at, factors
        return self

    def _pairs(self, base: Path) -> list[tuple[float, float]]:
        if self.path is None:
            return [(point.quantile, point.factor) for point in self.quantiles or ()]
        from simdp.tables import read_csv  # few stragglers are measured

        path, pairs = base / self.path, list[tuple[float, float]]()
        for row in read_csv(path, COLUMNS):
            try:
                pairs.append((float(row.name), row.numbers["factor"]))
            except ValueError:
                raise ScenarioError(
                    [f"{path}:{row.line}: quantile {row.name!r} is not a number; give 0 ... 1."]
                ) from None
        return pairs

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        return rounded(np.interp(random.random(world_size), *self._read))


def _problem_with(pairs: list[tuple[float, float]]) -> str | None:
    """Explain why points are not a distribution of factors, or None."""
    first, last = pairs[0][0], pairs[-1][0]
    if first != 0 or last != 1:
        return (
            f"goes from quantile {first:g} to {last:g}; begin with 0, the smallest factor, and "
            "end with 1, the largest."
        )
    for (before, low), (at, high) in pairwise(pairs):
        if not at > before or high < low:
            return (
                f"quantile {at:g} with factor {high:g} comes after quantile {before:g} with "
                f"factor {low:g}; put them in rising order."
            )
    if pairs[0][1] <= 0:
        return f"factor {pairs[0][1]:g} is out of range; it must be > 0."
    return None


class Gamma(Straggler):
    """Factor of a gamma distribution per rank and step: mean 1, shape ``1 / cv^2``."""

    by_chance: ClassVar[bool] = True

    kind: Literal["gamma"] = "gamma"
    cv: Float = Field(ge=0, le=3)
    """Coefficient of variation: standard deviation over mean. With 1 it is exponential."""

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        if not self.cv:
            return np.ones(world_size)
        drawn = random.standard_gamma(self.cv**-2, world_size) * self.cv**2
        return rounded(np.maximum(drawn, np.finfo(float).tiny))


class Jitter(Straggler):
    """Factor ``exp(sigma z)``, where the z of a step's ranks are normal scores in random order.

    Deterministic counterpart of `lognormal`: the score of the i-th of n ranks is the expected i-th
    smallest of n normal numbers, ``Phi^-1((i - 3/8) / (n + 1/4))``. A single step shows the average
    of many random ones, independent of the seed; a single rank has no jitter. The slowest rank
    changes from step to step.

    References
    ----------
    Blom, "Statistical estimates and transformed beta-variables", 1958.
    """

    kind: Literal["jitter"] = "jitter"
    sigma: Float = Field(ge=0, le=10)
    """Standard deviation of the factor's logarithm."""

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        return rounded(np.exp(self.sigma * random.permutation(normal_scores(world_size))))


@lru_cache(maxsize=64)
def normal_scores(n: int) -> Floats:
    """Return expected values of n normal numbers in ascending order, shape `(n,)`."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((i - 0.375) / (n + 0.25)) for i in range(1, n + 1)])


class LognormalStraggler(Straggler):
    """Factor ``exp(sigma z)`` with a standard normal z per rank and step: median 1."""

    by_chance: ClassVar[bool] = True

    kind: Literal["lognormal"] = "lognormal"
    sigma: Float = Field(ge=0, le=10)
    """Standard deviation of the factor's logarithm."""
    draws: Int = Field(1, ge=1, le=10**4)
    """The factor is the mean of this many draws: the micro-batches of a step, if these vary
    independently with the same mean."""

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        drawn = np.exp(self.sigma * random.standard_normal((self.draws, world_size)))
        return rounded(drawn.mean(axis=0))


_time = Quantity("time", exclusive=True)
Steps = Annotated[Int, Field(ge=1)]


def _every(value: object) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise problem(f"{value} is out of range; write a time or a number of steps >= 1.")
        return value
    return _time.validate(value)


class Pause(Straggler):
    """Rank ``rank`` stops for ``duration``, repeatedly."""

    by_factors: ClassVar[bool] = False

    kind: Literal["pause"] = "pause"
    rank: Int = Field(ge=0)
    """Rank, from 0."""
    every: Annotated[
        int | float,
        PlainValidator(_every, json_schema_input_type=Steps | PositiveSeconds),
        PlainSerializer(lambda v: v if isinstance(v, int) else format_quantity(v, "time")),
    ]
    """A time [s]: pauses begin at every multiple of it on the simulated clock, independent of the
    rank's activity; only compute is delayed. Or a number of steps: the pause is at the beginning of
    steps ``every``, ``2 every``, ... (counted from 0)."""
    duration: PositiveSeconds
    """Length of one pause [s]."""

    @model_validator(mode="after")
    def _leaves_time_to_work(self) -> Pause:
        if isinstance(self.every, float) and self.duration >= self.every:
            raise problem(
                f"duration {format_quantity(self.duration, 'time')} leaves no time for work "
                f"between pauses {format_quantity(self.every, 'time')} apart; make it shorter."
            )
        return self

    def on_rank(self) -> int | None:
        return self.rank

    def comes_and_goes(self) -> bool:
        return True

    def rare_event(self, step_time: float) -> tuple[int | float, str] | None:
        every, period, text = self.every, float(self.every), f"{self.every} steps"
        if isinstance(every, float):
            text = format_quantity(every, "time")
        else:
            period = every * step_time + self.duration
        share = f"in the long run about {100 * self.duration / period:.3g} % of the time"
        return every, f"the pause of rank {self.rank} every {text} ({share})"

    def lost(self, step: int, world_size: int) -> Floats:
        lost = np.zeros(world_size)
        if isinstance(self.every, int) and step > 0 and step % self.every == 0:
            lost[self.rank : self.rank + 1] = self.duration  # no effect without such a rank
        return lost

    def on_the_clock(self) -> bool:
        """Return whether pauses begin at instants instead of steps."""
        return isinstance(self.every, float)

    def window(self, instant: float) -> tuple[float, float]:
        """Return begin and end of the pause at an instant, or of the next one [s]."""
        number = max(int(instant // self.every), 1)
        if instant >= number * self.every + self.duration:
            number += 1
        return number * self.every, number * self.every + self.duration

    def finish(self, start: float, seconds: float) -> float:
        """Return when work that starts at ``start`` and needs ``seconds`` ends [s].

        Skips whole periods: between two pauses the device works ``every - duration``.
        """
        every, working = float(self.every), float(self.every) - self.duration
        period = int(start // every)
        # Time since the last pause ended; before the first there is none to wait for.
        since = start - period * every - (self.duration if period else 0.0)
        worked = max(since, 0.0)
        room = (working if period else every) - worked
        begin = max(start, period * every + self.duration) if period else start
        if seconds <= room:
            return begin + seconds
        periods, rest = divmod(seconds - room, working)
        if rest == 0.0:  # ends just as a pause begins
            periods, rest = periods - 1, working
        return float((period + 1 + periods) * every + self.duration + rest)


CV = {"p25": 0.0508, "p50": 0.0935, "p75": 0.5497, "p90": 1.0650}
"""Coefficients of variation over the ten workers of a job in an iteration: quantiles of 82,739."""


class SharedHost(Straggler):
    """Factor of mean 1 per rank: one part is persistent, the other is drawn each step.

    The spread of workers in an iteration follows measurements of Alibaba's PAI, where jobs share
    GPUs: 100 jobs of 10 workers, 2,000 iterations each. Its persistent part follows from the four
    jobs with known times of single workers: their means explain 0.53, 0.92, 0.41 and all of the
    logarithm's variance, with the measured ratio of largest to mean time in an iteration.

    References
    ----------
    github.com/alibaba/clusterdata, cluster-trace-gpu-v2020, mini-batch times.
    """

    by_chance: ClassVar[bool] = True

    kind: Literal["shared_host"] = "shared_host"
    load: Literal["p25", "p50", "p75", "p90"] = "p50"
    """The quantile of the measured coefficients of variation: 0.051, 0.094, 0.55 or 1.07."""
    persistent_variance: Float = Field(0.7, ge=0, le=1)
    """Fraction of the variance of the factor's logarithm that is persistent."""

    def _drawn(self, part: float, size: int, random: np.random.Generator) -> Floats:
        """Draw lognormal factors of mean 1 with a fraction of the logarithm's variance."""
        variance = part * log1p(CV[self.load] ** 2)
        return rounded(np.exp(sqrt(variance) * random.standard_normal(size) - variance / 2))

    def lasting(self, nodes: Ints, random: np.random.Generator) -> Floats:
        return self._drawn(self.persistent_variance, len(nodes), random)

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        return self._drawn(1 - self.persistent_variance, world_size, random)


class SlowNode(Straggler):
    """All ranks of node ``node`` take ``factor`` times as long for forward and backward."""

    kind: Literal["slow_node"] = "slow_node"
    node: Int = Field(ge=0)
    """Node, from 0."""
    factor: Float = Field(gt=0, le=1e6)
    """Above 1 it is slower than the others, below 1 faster."""

    def on_node(self) -> int | None:
        return self.node

    def lasting(self, nodes: Ints, random: np.random.Generator) -> Floats:
        return np.where(nodes == self.node, self.factor, 1.0)  # no effect without such a node


# Slow rank ----------------------------------------------------------------------------------------


class SlowRank(Straggler):
    """Rank ``rank`` takes ``factor`` times as long for forward and backward."""

    kind: Literal["slow_rank"] = "slow_rank"
    rank: Int = Field(ge=0)
    """Rank, from 0."""
    factor: Float = Field(gt=0, le=1e6)
    """Above 1 it is slower than the others, below 1 faster."""

    def on_rank(self) -> int | None:
        return self.rank

    def slowdown(self, step: int, world_size: int, random: np.random.Generator) -> Floats:
        factors = np.ones(world_size)
        factors[self.rank : self.rank + 1] = self.factor  # no effect without such a rank
        return factors


class LinkFactors(NamedTuple):
    """Remaining latency and bandwidth of degraded links, as factors."""

    # alpha, bandwidth: shape `(num_links,)`: factors on latency and bandwidth of every link; 1 if
    # not degraded
    alpha: Floats
    bandwidth: Floats


def factors(numbering: Numbering, stragglers: Sequence[Straggler]) -> LinkFactors | None:
    """Return factors of permanently degraded links; None without any."""
    lasting = [
        straggler
        for straggler in stragglers
        if isinstance(straggler, DegradedLink) and not straggler.comes_and_goes()
    ]
    if not lasting:
        return None
    link_factors = LinkFactors(np.ones(numbering.num_links), np.ones(numbering.num_links))
    for straggler in lasting:
        links = links_of(numbering, straggler)
        link_factors.alpha[links] *= straggler.latency
        link_factors.bandwidth[links] *= straggler.bandwidth
    return link_factors


def links_of(numbering: Numbering, degraded: DegradedLink) -> Ints:
    """Return the links of a straggler; none if its node, card or rank does not exist."""
    if degraded.node is not None:
        return _of_node(numbering, degraded.node, degraded.card)
    if degraded.rank is not None:
        return _of_rank(numbering, degraded.rank)
    assert degraded.link is not None
    if max(degraded.link) >= numbering.world_size:
        return np.empty(0, dtype=np.int64)
    both = numbering.routes(np.array(degraded.link), np.array(degraded.link[::-1]))
    return np.unique(both[both >= 0])


def problem_with(numbering: Numbering, degraded: DegradedLink) -> str | None:
    """Explain why a straggler of existing nodes and ranks selects no links, or None."""
    nodes, m = numbering.num_nodes, numbering.local_size
    if degraded.node is not None:
        if nodes == 1:
            return "node: there are no links between nodes where there is one; use rank or link."
        cards = numbering.cards * numbering.bond
        if degraded.card is not None and degraded.card >= cards:
            return (
                f"card: node {degraded.node} has cards 0 ... {cards - 1}, not "
                f"{degraded.card}; see inter_node.links_per_node."
            )
    if degraded.rank is not None and m == 1:
        return "rank: nodes of one device have no links inside; use node."
    if degraded.link is not None and max(degraded.link) < numbering.world_size:
        a, b = degraded.link
        length = int((numbering.routes(np.array([a]), np.array([b])) >= 0).sum())
        if length != 1:
            other = f"rank: {a}" if a // m == b // m else f"node: {a // m}"
            return (
                f"link: the way from rank {a} to rank {b} has {length} links; give one end of it, "
                f"such as {other}."
            )
    return None


def _of_node(numbering: Numbering, node: int, card: int | None) -> Ints:
    inter, cards, nodes = numbering.inter, numbering.cards, numbering.num_nodes
    if inter is None or node >= nodes or nodes == 1:
        return np.empty(0, dtype=np.int64)
    links = np.arange(numbering.num_links - numbering.between)
    card = None if card is None else card // numbering.bond  # equal parts: it slows all of a bond
    if inter.topology.of_ports:
        ends = inter.topology.ends(links, nodes * cards, cards)
        mine = [_among(end, node * cards, cards, card) for end in ends]
    else:
        local, of_card = np.divmod(links, cards)
        mine = [end == node for end in inter.topology.ends(local, nodes, 1)]
        if card is not None:
            mine = [end & (of_card == card) for end in mine]
    return numbering.between + links[mine[0] | mine[1]]


def _among(ends: Ints, first: int, count: int, member: int | None) -> Bools:
    if member is not None:
        return np.asarray(ends == first + member)
    return np.asarray((ends >= first) & (ends < first + count))


def _of_rank(numbering: Numbering, rank: int) -> Ints:
    if rank >= numbering.world_size:
        return np.empty(0, dtype=np.int64)
    node, place = divmod(rank, numbering.local_size)
    kind = numbering.inside[numbering.kind_of[node]]
    links = np.arange(kind.num_links)
    leaves, enters = kind.topology.ends(links, numbering.local_size, kind.cards)
    mine: Ints = links[(leaves == place) | (enters == place)]
    return mine + int(numbering.first[node])
