"""The result of a run or a study, and its files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from simdp.arrays import Array, Floats
from simdp.errors import ScenarioError, joined, one_line
from simdp.files import put_text, read_json, write_whole
from simdp.keys import with_current_keys
from simdp.results.memory import LaunchedKernels
from simdp.results.metrics import LABELS, Metrics, SlowestRank
from simdp.results.trace import Trace
from simdp.version import __version__


class Inline:
    """Base of objects that display as text in a terminal, and as a page in a notebook."""

    def summary(self) -> str:
        """Return the output of the command line, in 80 columns."""
        import simdp  # its functions import the reports, which lie above

        return simdp.as_text(self)

    def _repr_html_(self) -> str:
        import simdp  # as above

        return simdp.as_html(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return both; a notebook shows the richest supported one."""
        return {"text/plain": self.summary(), "text/html": self._repr_html_()}


# Columns ------------------------------------------------------------------------------------------

Columns = dict[str, list[Any]]  # values by column, of equal length; None if one does not apply

FAILED = "failed"  # the column of the reason why a point has no result


def columns_of(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """Convert rows to columns, each of one type, in order of first use; ``failed`` comes last.

    Rows have a point's settings, by dotted key, and its figures, as from `figures_of`.
    """
    listed = list(rows)
    names = dict.fromkeys(name for row in listed for name in row if name != FAILED)
    columns = {name: _of_one_type([row.get(name) for row in listed]) for name in names}
    return columns | {FAILED: [row.get(FAILED) for row in listed]}


def figures_of(
    metrics: Metrics, cost: Mapping[str, Any] | None, target: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return figures of a point, of the fields of a `Result`, by name.

    Nested ones have a dotted name. Lists have their largest value, or the last, as ``last_loss``,
    if their declaration gives one.
    """
    row: dict[str, Any] = {}
    for name, label in LABELS.items():
        value = metrics[name]
        if isinstance(value, list):
            if label.reduced == "largest":
                row[name] = max(value, default=None)
            elif label.reduced == "last":
                row[f"last_{name}"] = value[-1] if value else None
        elif value is not None and value == value:  # NaN: it was not timed
            row |= dict(_flat(name, value))
    return row | dict(_flat("cost", cost or {})) | dict(_flat("target", target or {}))


def as_dataframe(columns: Columns) -> Any:
    """Return columns as a pandas DataFrame.

    Raises
    ------
    ScenarioError
        If pandas is missing.
    """
    try:
        import pandas  # an extra
    except ImportError:
        raise ScenarioError(
            "to_dataframe: needs pandas; pip install 'simdp[table]', or use columns()."
        ) from None
    return pandas.DataFrame(columns)


def _flat(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif not isinstance(value, list):
        yield name, value


def _of_one_type(values: Sequence[Any]) -> list[Any]:
    """Return values unchanged if they have one type; else as text in JSON."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) == 1 and kinds <= {bool, int, float, str}:
        return list(values)
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [value if isinstance(value, str | None) else json.dumps(value) for value in values]


# Result -------------------------------------------------------------------------------------------


class Advice(NamedTuple):
    """Single changes that clearly shorten a run's steps."""

    lines: list[str]  # one per change, the best first
    num_tried: int  # how many were simulated
    # the changes in words, and the factor of samples per second of each
    changes: Sequence[tuple[str, float]] = ()


class StragglerCost(NamedTuple):
    """Cost of one straggler."""

    cause: str  # its kind
    # ranks, nodes: the affected ones; None for all
    ranks: list[int] | None
    nodes: list[int] | None
    # of a steady step, that the run would save without this one; None if too slow to find or not
    # reached in these steps
    seconds: float | None


class ComputePart(NamedTuple):
    """One part of a steady step's compute."""

    part: str  # of `simdp.engine.compute.call_times.PARTS`
    seconds: float  # mean over ranks
    # FLOPs of its kernels over the devices' peak in this time; None if unknown, or without
    # arithmetic
    of_peak: float | None


@dataclass(repr=False)
class Result(Inline):
    """Result of one simulation."""

    scenario: dict[str, Any]
    """As resolved; loads again."""
    set: dict[str, Any]
    """Settings of this point of a sweep; empty without a sweep."""
    metrics: Metrics
    """Also a mapping: ``metrics["step_time_s"]``."""
    trace: Trace | None = None
    """Every span; None for a result that was loaded."""
    replicas: list[dict[str, Array]] | None = None
    """Each rank's weights by torch name; None without numerics, or when loaded. If one process has
    one model, as under ``data_parallel``, it is given for every rank."""
    outputs: list[list[Array]] | None = None
    """In ``mode: inference``, the model's output for each step's samples: one array if gathered,
    else one of each rank that had samples. None without numerics, or when loaded."""
    network: dict[str, Any] = field(default_factory=dict)
    """Traffic of the links, and the clock of the plans: ``fabric`` and ``why``; the number of used
    links; the busiest of them, with each one's bytes per steady step and share of its bandwidth,
    the bottleneck first; the choices of ``auto`` for each size; and how many of a node's network
    cards send anything. If NCCL's model times collectives, its ``links`` are those of a device
    inside its node and the cards of a node. Empty for a result of an older version."""
    server: dict[str, Any] | None = None
    """Statistics of a parameter server, which runs on ``rank``: its ``updates``, and their share of
    the time (``utilization``); how many gradients were ``applied``, ``dropped``, or still
    ``under_way`` at the end; and the ``staleness`` of those applied, the number of updates between
    a worker's pull and its gradient: ``mean``, ``max``, and a ``histogram`` that counts the
    gradients of staleness 0, 1, ... None without a server."""
    participation: dict[str, Any] | None = None
    """Where not every gradient counts: ``counted``, the samples of those that did, and ``dropped``,
    a list of how many each rank lost. None where all count."""
    cost: dict[str, Any] = field(default_factory=dict)
    """Cost and energy of a steady step: ``step``, ``exposed``, ``million_samples`` and
    ``million_tokens`` as of `simdp.results.metrics.step_bill`; and ``price_usd_per_h``, mean over
    devices, with ``price_date`` if it is a list price. Empty if prices are unknown."""
    target: dict[str, Any] | None = None
    """Cost of reaching the target: ``samples`` (mean, sd) and ``steps``; ``time_s``, ``cost_usd``
    and ``energy_kwh``, each with its ``mean`` and, if random, ``p5``, ``p50``, ``p90`` and ``p95``,
    without failures. For a loss, ``reached``; steps and times are None if it was not. None without
    a target."""
    gradient_noise: dict[str, Any] | None = None
    """As of `simdp.results.metrics.noise_scale`; None if not requested."""
    remarks: dict[str, str] = field(default_factory=dict)
    """How far the hardware's figures can be relied on; see `simdp.scenario.remarks`."""
    lost: list[dict[str, Any]] = field(default_factory=list)
    """The fields of a `StragglerCost` for each straggler. Their total cost is `metrics`' step time
    less ``without_stragglers_s``."""
    slowest: list[dict[str, Any]] = field(default_factory=list)
    """The fields of a `simdp.results.metrics.SlowestRank` each, if there are stragglers."""
    compute_parts: list[dict[str, Any]] = field(default_factory=list)
    """The fields of a `ComputePart` each, as of `simdp.engine.compute.call_times.compute_parts`.
    Empty for points of a sweep, and if compute has no kernels."""
    state: Any = None
    """State at the end of the run, if requested; see `simdp.engine.state`."""
    step_ends: Floats | None = None
    """When each rank is done with the setup, and with each step [s]; None when loaded; shape
    `(world_size, num_steps + 1)`."""
    launched: Callable[[], LaunchedKernels] | None = None
    """Kernels of its spans, and traffic; see `simdp.results.memory`. None when loaded."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return int(self.scenario["cluster"]["world_size"])

    @property
    def straggler_costs(self) -> list[StragglerCost]:
        """Cost of each straggler."""
        return [StragglerCost(**straggler) for straggler in self.lost]

    @property
    def slowest_ranks(self) -> list[SlowestRank]:
        """How often each rank was the slowest, if there are stragglers."""
        return [SlowestRank(**rank) for rank in self.slowest]

    def __repr__(self) -> str:
        n, metrics = self.world_size, self.metrics
        rate = metrics.throughput_samples_per_s
        parts = [f"{n} rank{'s' if n > 1 else ''}"]
        parts += [f"{1e3 * metrics.step_time_s:.4g} ms per step"] if metrics.has_times else []
        parts += [f"{rate:,.0f} samples/s"] if rate is not None else []
        return f"<Result {self.scenario.get('name', 'scenario')}: {', '.join(parts)}>"

    def summary(self) -> str:
        """Return the output of ``python -m simdp run``, in 80 columns."""
        return self._alone().summary()

    def _repr_html_(self) -> str:
        return self._alone()._repr_html_()

    def _alone(self) -> Study:
        """Return a study with this point only."""
        return Study(__version__, {**self.scenario, "sweep": {}}, [self])

    def save_traces(self, folder: Path | str, ranks: Sequence[int] | None = None) -> list[Path]:
        """Write a trace per rank as torch's profiler does; see `simdp.reports.rank_traces`."""
        import simdp  # as above

        return simdp.save_traces(self, Path(folder), ranks)

    def weights(self) -> dict[str, Array]:
        """Return arrays of ``--save-weights``: rank 0's parameters, and others that differ.

        A parameter of another rank that differs is called ``rank1/name``.
        """
        if self.replicas is None:
            return {}
        first = self.replicas[0]
        kept = dict(first)
        for rank, weights in enumerate(self.replicas[1:], 1):
            for name, array in weights.items():
                if array.tobytes() != first[name].tobytes():
                    kept[f"rank{rank}/{name}"] = array
        return kept


WRITTEN = (
    "network",
    "server",
    "participation",
    "cost",
    "target",
    "gradient_noise",
    "lost",
    "slowest",
    "compute_parts",
    "remarks",
)
"""Fields of a `Result` that result.json has where they are not empty."""


class FailedPoint(NamedTuple):
    """A point of a sweep that could not be simulated."""

    number: int  # its place in the grid, from 0
    set: dict[str, Any]
    problems: list[str]  # reasons, one line each
    exit_status: int = 2  # as on the command line for a single point


@dataclass(repr=False)
class Study(Inline):
    """The results of all points of a scenario."""

    version: str
    """Of simdp."""
    scenario: dict[str, Any]
    """As resolved, with its sweep."""
    points: list[Result] = field(default_factory=list)
    """In the order of the grid; one point without a sweep."""
    failed: list[FailedPoint] = field(default_factory=list)
    """Points of the sweep that have no result, in that order, too."""

    def __repr__(self) -> str:
        count = f"{len(self.points)} point{'s' if len(self.points) != 1 else ''}"
        count += f" and {len(self.failed)} that failed" if self.failed else ""
        over = ", ".join(self.scenario.get("sweep") or ())
        name = self.scenario.get("name", "scenario")
        return f"<Study {name}: {count}{f' over {over}' if over else ''}>"

    def in_order(self) -> list[Result | FailedPoint]:
        """Return all points of the grid in its order, with or without a result."""
        points: list[Result | FailedPoint] = list(self.points)
        for failure in self.failed:  # in rising order, so that each comes to its place
            points.insert(failure.number, failure)
        return points

    def to_json(self) -> str:
        """Write result.json, one value per line; non-finite numbers become null."""
        points = [
            {"set": point.set, "metrics": None, "problems": point.problems}
            if isinstance(point, FailedPoint)
            else {"set": point.set, "metrics": dict(point.metrics)}
            | {name: figures for name in WRITTEN if (figures := getattr(point, name))}
            for point in self.in_order()
        ]
        return as_json({"simdp": self.version, "scenario": self.scenario, "points": points}) + "\n"

    def columns(self) -> Columns:
        """Return a row for each point: settings, figures, and ``failed``, the reason for none."""
        return columns_of(
            point.set | {FAILED: one_line(joined(point.problems))}
            if isinstance(point, FailedPoint)
            else point.set | figures_of(point.metrics, point.cost, point.target)
            for point in self.in_order()
        )

    def to_dataframe(self) -> Any:
        """Return the columns as a pandas DataFrame.

        Raises
        ------
        ScenarioError
            If pandas is missing.
        """
        return as_dataframe(self.columns())

    def save(self, path: Path) -> None:
        """Write result.json atomically."""
        write_whole(path, partial(put_text, self.to_json()))

    @classmethod
    def load(cls, path: Path) -> Study:
        """Read a result.json.

        Raises
        ------
        ScenarioError
            If the file is invalid.
        """
        content = read_json(path)
        try:
            content = _with_current_keys(content)
            scenario = content["scenario"]
            points = [
                Result(
                    _set_in(scenario, point["set"]),
                    point["set"],
                    Metrics.of(point["metrics"]),
                    **{name: point[name] for name in WRITTEN if name in point},
                )
                for point in content["points"]
                if "problems" not in point
            ]
            failed = [
                FailedPoint(number, point["set"], point["problems"])
                for number, point in enumerate(content["points"])
                if "problems" in point
            ]
            return cls(content["simdp"], scenario, points, failed)
        except (KeyError, TypeError, AttributeError, ValueError):
            raise ScenarioError(f"{path}: is not a result.json of simdp.") from None


def _with_current_keys(content: dict[str, Any]) -> dict[str, Any]:
    """Return a saved result with current names of all keys in its scenario and settings."""
    points = [
        {**point, "set": with_current_keys(point["set"], advises=False)}
        for point in content["points"]
    ]
    scenario = with_current_keys(content["scenario"], advises=False)
    return {**content, "scenario": scenario, "points": points}


def _set_in(scenario: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """Set a point's world_size in its scenario, which drawing needs; the rest is the sweep's."""
    size = chosen.get("cluster.world_size", scenario["cluster"].get("world_size"))
    return {**scenario, "cluster": {**scenario["cluster"], "world_size": size}}


PLAIN = frozenset({int, float, bool, str, type(None)})
"""Types of which the encoder's fast half can write a whole list in one call."""


def as_json(value: Any, indent: str = "\n") -> str:
    """Write plain data as JSON, with an indent of 1, as ``json.dumps`` does, but faster.

    Lists over ranks are written in one call without an indent, with a separator that begins a new
    line. Values without a JSON form, such as the loss of a diverged run, are null.
    """
    inner = f"{indent} "
    if isinstance(value, dict) and value:
        items = [f"{json.dumps(str(key))}: {as_json(of, inner)}" for key, of in value.items()]
        return f"{{{inner}{f',{inner}'.join(items)}{indent}}}"
    if isinstance(value, list | tuple) and value:
        if set(map(type, value)) <= PLAIN:
            with suppress(ValueError):  # which is a number that is not finite
                listed = json.dumps(value, separators=(f",{inner}", ": "), allow_nan=False)
                return f"[{inner}{listed[1:-1]}{indent}]"
        return f"[{inner}{f',{inner}'.join([as_json(of, inner) for of in value])}{indent}]"
    if isinstance(value, float) and not math.isfinite(value):
        return "null"
    return json.dumps(value)


class MicrobatchPiece(NamedTuple):
    """A device's part of a micro-step, and its output."""

    step: int  # from 1
    micro_step: int  # from 0
    rank: int  # rank of the device
    # shapes of the model's inputs, samples first; empty without samples
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]  # shape of the output, samples first
