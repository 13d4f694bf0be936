"""Compares variants of a scenario, such as strategies, side by side.

Strategies distribute samples in different ways. So the points are made comparable first: samples
per rank become a batch of all ranks, and `Single` trains it on one device. A point that cannot run
keeps its errors; the others still run.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from simdp.arrays import Array
from simdp.cluster import Cluster
from simdp.engine.outcome import NOT_REACHED
from simdp.errors import LedBy, ScenarioError
from simdp.keys import PLAIN_KEYS, written
from simdp.results.comparison import ComparedPoint, Comparison
from simdp.results.metrics import num_warm_up
from simdp.results.result import Result
from simdp.scenario import checked
from simdp.scenario.measured import world_size
from simdp.scenario.overrides import MACHINE, Raw, as_written, grid, set_key, sweep_problems
from simdp.scenario.remarks import HARDWARE
from simdp.scenario.root import Scenario
from simdp.scenario.shipped import find
from simdp.spec import one_of, problems
from simdp.strategies import STRATEGIES, AnyStrategy, strategy_class
from simdp.studies.executor import Failed, executor_for, in_order
from simdp.studies.many import PointRequest, shared_first, simulated
from simdp.studies.store import Store
from simdp.version import __version__
from simdp.workload.models import MODEL

# Making points comparable -------------------------------------------------------------------------

STRATEGY = one_of("strategy", STRATEGIES, default="ddp")  # expands a strategy's name or mapping

_LISTS = ("cluster.device", "cluster.topology", "cluster.link", "cluster.inter_node.link")
"""Keys that may list a value per rank or node; one device takes the first."""


def kind_of(raw: Raw) -> str | None:
    """Strategy of a scenario as plain data; None if it is invalid."""
    try:
        return str(STRATEGY.expand(raw.get("strategy", "ddp"))["kind"])
    except PydanticCustomError:
        return None


def keep_options(raw: Raw, points: Sequence[tuple[Raw, Raw]]) -> tuple[list[int], list[str]]:
    """Give the file's strategy options to points that name its strategy and nothing else.

    ``points`` have settings and scenarios, which may be changed. Returns the numbers of the changed
    points, and a note.
    """
    own, kind = raw.get("strategy"), kind_of(raw)
    named = [chosen.get("strategy") for chosen, _ in points]
    if not isinstance(own, dict) or set(own) <= {"kind"} or not any(named):
        return [], []
    kept = [place for place, value in enumerate(named) if isinstance(value, str) and value == kind]
    for place in kept:
        points[place][1]["strategy"] = copy.deepcopy(own)
    options = ", ".join(f"{key}: {written(value)}" for key, value in own.items() if key != "kind")
    if kept:
        reason = f"{kind} has the options that the file gives it, {options}; write {{kind: {kind}}}"
        return kept, [f"{reason} for its defaults. Other strategies have theirs."]
    left_out = "are left out: every value names its own."
    return [], [f"the file's options of {kind}, {options}, {left_out}"]


def make_comparable(raw: Raw, several: bool) -> tuple[Raw, list[str]]:
    """Change a point so that a step trains the same samples as in the other points.

    ``several``: points differ in their strategy. Returns the changed settings by dotted key, and
    notes; a ScenarioError if one device cannot train the same samples.
    """
    changes: Raw = {}
    notes: list[str] = []
    n = world_size(raw)
    if several and n > 0:
        changes, notes = _one_batch(raw, n)
        notes += _remainder(raw, changes, n) + _summed_loss(raw, n)
    if n > 1 and strategy_class(kind_of(raw)).max_ranks == 1:
        device_changes, device_notes = _one_device(raw, n)
        changes, notes = {**changes, **device_changes}, [*notes, *device_notes]
    for key, value in changes.items():
        set_key(raw, key, value)
    return changes, notes


def _one_batch(raw: Raw, n: int) -> tuple[Raw, list[str]]:
    """Turn samples per rank into a batch of all ranks, which every strategy can distribute."""
    workload = raw.get("workload")
    if not isinstance(workload, dict) or workload.get("global_batch") is not None:
        return {}, []
    microbatch, accumulate = workload.get("microbatch"), workload.get("grad_accum", 1)
    for key in ("samples_per_rank", "grad_accum"):
        if isinstance(workload.get(key), list):
            return {}, [
                f"the batches are the scenario's own, since workload.{key} sets them by rank; "
                "strategies with a global_batch cannot use them."
            ]
    if type(microbatch) is not int or type(accumulate) is not int:
        return {}, []  # validation reports it
    batch = microbatch * accumulate * n
    note = (
        f"every point trains on the same {batch} samples in a step: workload.global_batch: {batch} "
        f"in place of microbatch: {microbatch} on {n} ranks."
    )
    return {"workload.microbatch": None, "workload.global_batch": batch}, [note]


def _remainder(raw: Raw, changes: Raw, n: int) -> list[str]:
    """Note that ranks get different numbers of samples, which not all strategies weight."""
    workload = raw.get("workload")
    written = workload.get("global_batch") if isinstance(workload, dict) else None
    batch = changes.get("workload.global_batch", written)
    if not isinstance(batch, int) or batch % n == 0:
        return []
    return [
        f"{batch} samples do not divide among {n} ranks: weights differ from one device's where "
        "every rank counts the same; weight_by_shard: true counts samples."
    ]


def _summed_loss(raw: Raw, n: int) -> list[str]:
    """Note that a loss that is a sum is divided where gradients are averaged."""
    workload = raw.get("workload")
    loss = workload.get("loss") if isinstance(workload, dict) else None
    if n == 1 or not isinstance(loss, dict) or loss.get("reduction") != "sum":
        return []
    return [
        f"the loss is a sum, and averaged gradients are those of a {n}th of it: weights differ "
        "from one device's, unless weight_by_shard: true adds the sums up."
    ]


def _one_device(raw: Raw, n: int) -> tuple[Raw, list[str]]:
    """Reduce the cluster to one device and its node, for `Single`."""
    cluster, workload = raw["cluster"], raw.get("workload")
    workload = workload if isinstance(workload, dict) else {}
    micro_steps = workload.get("grad_accum", 1)
    if isinstance(micro_steps, list) and workload.get("global_batch") is None:
        raise ScenarioError(
            f"workload.grad_accum: gives each of {n} ranks its samples, so that one device "
            "would train on fewer; give global_batch and a number of micro-steps instead."
        )
    changes: Raw = {"cluster.world_size": 1}
    if cluster.get("devices_per_node") is None:
        k = cluster.get("ranks_per_device", 1)
        changes["cluster.devices_per_node"] = -(-n // k) if type(k) is int and k > 0 else n
    for key in _LISTS:
        value: Any = raw
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, list) and value:
            changes[key] = value[0]
    notes = ["single runs on one device, cluster.world_size: 1."]
    is_timed = getattr(MODEL.member(workload.get("model")), "timed", False)
    if is_timed and isinstance(micro_steps, int):
        changes["workload.grad_accum"] = micro_steps * n
        notes.append(
            f"single takes {micro_steps * n} micro-batches in turn, workload.grad_accum, since the "
            "model's times are of one."
        )
    if workload.get("lr_scaling", "none") != "none":
        scaling = workload["lr_scaling"]
        notes.append(
            f"single learns at another rate, since lr_scaling: {scaling} counts 1 device, not {n}."
        )
    return changes, notes


Weights = dict[str, Array]
Progress = Callable[[int, int], None]
Outcomes = Iterator[tuple[int, Result | Failed]]


def compare(
    path: str | os.PathLike[str],
    over: Mapping[str, Sequence[object]],
    overrides: Mapping[str, object] | None = None,
    *,
    workers: int = 1,
    scheduler: str | None = None,
    progress: Progress | None = None,
    store: Store | None = None,
) -> Comparison:
    """Simulate a scenario at every point of a grid, and compare the points.

    Where strategies are compared and the scenario gives ``microbatch``, every point gets the
    equivalent ``global_batch``, and ``single`` gets it on one device. Stragglers and faults of
    missing ranks are ignored.

    Parameters
    ----------
    path : path-like
        A YAML file, a saved result.json, or the name of a shipped scenario.
    over : mapping of str to sequence
        Dotted keys and their values, for example ``{"strategy": ["single", "ddp"]}``; several keys
        make a grid, in which the last key varies fastest.
    overrides : mapping of str to value, optional
        Keys that are set at every point, as for `simdp.load_scenario`.
    workers, scheduler, progress, store
        As for `simdp.studies.sweep.sweep`.

    Returns
    -------
    Comparison
        With at least one point that ran.

    Raises
    ------
    ScenarioError
        If there is nothing to compare, a strategy does not exist, the scenario has a sweep, or no
        point can run.
    """
    file, values = find(Path(path)), {key: list(given) for key, given in over.items()}
    _check_grid(values)
    raw = as_written(file, overrides, values)
    if raw.get("sweep"):
        raise ScenarioError(
            f"{file}: sweep: compare has points of its own; leave it out, or --set sweep=null."
        )
    raw = {key: value for key, value in raw.items() if key not in ("sweep", "measured")}
    with executor_for(workers, scheduler) as executor:
        play = partial(simulated, executor=executor, store=store, progress=progress)
        with LedBy(f"{file}: "):
            points = list(grid({**raw, "sweep": values}, file.parent))
            kept, option_notes = keep_options(raw, points)
            compared, notes = _simulate_points(points, file.parent, play)
    for number in kept:
        compared[number].changed["strategy"] = raw["strategy"]
    notes = option_notes + notes + _different_costs(compared) + _hidden_by_the_file(raw, values)
    return Comparison(__version__, raw, values, compared, notes)


def _hidden_by_the_file(raw: Raw, over: Mapping[str, object]) -> list[str]:
    """Note the keys of the file that override those of the compared machines."""
    cluster = raw.get("cluster")
    if MACHINE not in over or not isinstance(cluster, dict):
        return []
    own = [key for key in HARDWARE if key in cluster]
    if not own:
        return []
    return [
        f"cluster.{', cluster.'.join(own)}: the file's own at every point; leave them out of it, "
        "to compare what the machines have."
    ]


def _different_costs(compared: Sequence[ComparedPoint]) -> list[str]:
    """Note that points use different costs of collectives, though none was set."""
    labels: dict[str | None, str] = {}
    for point in compared:
        if point.metrics is not None:
            before = f"{labels[point.cost]}; " if point.cost in labels else ""
            labels[point.cost] = before + point.label
    if len(labels) < 2 or any(key.startswith("collectives") for key in compared[0].set):
        return []
    ways = ", ".join(f"{cost} for {label}" for cost, label in labels.items())
    return [f"collectives are timed by {ways}; give collectives.cost, for one way."]


def _check_grid(over: dict[str, list[object]]) -> None:
    """Raise if there is nothing to compare, or a value is not a strategy."""
    wrong = [
        "--over " + line.removeprefix("sweep.").removeprefix("sweep: ")
        for line in sweep_problems({"sweep": over})
    ]
    if not wrong and math.prod(map(len, over.values())) < 2:
        settings = " ".join(f"{key}={values[0]}" for key, values in over.items())
        wrong.append(
            f"--over {settings or 'nothing'}: is one point, with nothing to compare it with; give "
            "two values or more, as in strategy=single,ddp."
        )
    for key in PLAIN_KEYS:
        for value in over.get(key, ()):
            wrong += [f"--over {key}: {line}" for line in _strategy_problems(key, value)]
    if wrong:
        raise ScenarioError(wrong)


def _strategy_problems(key: str, value: object) -> list[str]:
    """Problems of a strategy; options are checked only for the key ``strategy``."""
    try:
        STRATEGY.expand(value)
        if key == "strategy":
            TypeAdapter(AnyStrategy).validate_python(value)
    except PydanticCustomError as error:
        return [error.message()]
    except ValidationError as error:
        return [problem.line for problem in problems(error, value)]
    return []


def _simulate_points(
    points: Sequence[tuple[Raw, Raw]], base: Path, play: Callable[[list[PointRequest]], Outcomes]
) -> tuple[list[ComparedPoint], list[str]]:
    """Simulate every valid point; raise the problems of all if none is."""
    compared, scenarios, notes = _scenarios_of(points, base)
    requests = [PointRequest(made, "auto", None, True, "any") for made in scenarios.values()]
    notes += _play([compared[number] for number in scenarios], requests, play(requests))
    if not any(point.metrics for point in compared):
        raise ScenarioError(shared_first([(point.label, point.problems) for point in compared]))
    return compared, notes


def _scenarios_of(
    points: Sequence[tuple[Raw, Raw]], base: Path
) -> tuple[list[ComparedPoint], dict[int, Scenario], list[str]]:
    """Make the scenario of every valid point, by number, and collect notes."""
    largest = max(world_size(raw) for _, raw in points)
    several = len({kind_of(raw) for _, raw in points}) > 1
    compared, scenarios = list[ComparedPoint](), dict[int, Scenario]()
    notes: dict[str, None] = {}  # in order, without repeats
    for number, (chosen, raw) in enumerate(points):
        point = ComparedPoint(chosen)
        try:
            point.changed, remarks = make_comparable(raw, several)
            scenarios[number] = scenario = checked(raw, base, largest)
            notes.update(dict.fromkeys(remarks + _parts_of_periods(scenario)))
        except ScenarioError as error:
            point.problems = error.problems
        compared.append(point)
    return compared, scenarios, list(notes)


def _parts_of_periods(scenario: Scenario) -> list[str]:
    """Note that the counted steps are not a whole number of a strategy's periods."""
    strategy, n = scenario.strategy, scenario.cluster.world_size
    if not strategy.averages_parameters:
        return []
    num_steps, every = scenario.workload.num_steps(n, scenario.base), strategy.steps_together
    first = max(num_warm_up(num_steps), strategy.first_alike)
    local = range(first + 1, num_steps + 1)
    averages = sum((step - strategy.first_alike) % every == 0 for step in local)
    if averages * every == len(local):
        return []
    whole = first + every * max(1, round(len(local) / every))
    return [
        f"{strategy.kind} averages weights every {every} steps; steps counted here: {len(local)}, "
        f"averages among them: {averages}; set workload.steps: {whole}, for whole periods."
    ]


# Filling in points --------------------------------------------------------------------------------


def _play(
    points: Sequence[ComparedPoint], requests: Sequence[PointRequest], outcomes: Outcomes
) -> list[str]:
    """Fill in the points in order, so that few weights are kept at a time; return notes on them."""
    first: Weights | None = None
    notes: dict[str, None] = {}
    in_turn = in_order(outcomes, len(points))
    for point, request, outcome in zip(points, requests, in_turn, strict=True):
        if isinstance(outcome, Failed):
            point.problems = outcome.problems
        else:
            first = _fill(point, request.point, outcome, first)
            for topic in (NOT_REACHED, "job"):
                if topic in outcome.remarks:
                    notes[f"{outcome.remarks[topic]}."] = None
    return [*notes]


def _fill(
    point: ComparedPoint, scenario: Scenario, result: Result, first: Weights | None
) -> Weights | None:
    """Fill in a point; return the reference weights of later points: ``first``, or this point's."""
    cluster, workload = scenario.cluster, scenario.workload
    point.world_size, point.metrics = cluster.world_size, result.metrics
    point.cost, point.step_error_s = scenario.collectives.cost.kind, _step_error(scenario, result)
    if cluster.price is not None or cluster.power is not None or scenario.target is not None:
        point.bill, point.target = result.cost, result.target
    peaks = result.metrics.peak_memory_bytes
    point.device_bytes, point.capacity_bytes = _fullest_device(cluster, peaks)
    if result.replicas is None:
        return first
    names = {parameter.name for parameter in workload.graph.parameters}  # buffers are not learned
    weights = {name: array for name, array in result.replicas[0].items() if name in names}
    reference = weights if first is None else first
    if _same_shapes(reference, weights):
        differences = _differences(reference, weights)
        largest = max(differences.values(), default=0.0)
        # Rounding may change half of the digits; a wrong or missing gradient changes more.
        rounding = float(np.sqrt(np.finfo(workload.dtype).eps))
        point.weights_difference = largest if math.isfinite(largest) else None
        point.differing = [name for name, apart in differences.items() if apart > rounding]
        point.same_weights, point.num_parameters = not point.differing, len(differences)
    return reference


def _step_error(scenario: Scenario, result: Result) -> float:
    """Standard error of the time of a steady step, where stragglers make steps differ [s]."""
    if not scenario.cluster.stragglers or result.step_ends is None:
        return 0.0
    steps = np.diff(result.step_ends, axis=1).mean(axis=0)
    steps, period = steps[num_warm_up(len(steps)) :], scenario.strategy.steps_together
    whole = len(steps) // period
    if whole < 2:
        return 0.0
    means = steps[: whole * period].reshape(whole, period).mean(axis=1)
    return float(means.std(ddof=1) / np.sqrt(whole))


def _fullest_device(cluster: Cluster, peaks: Sequence[float]) -> tuple[float, float]:
    """Memory in use and capacity of the fullest device, relative to its capacity [bytes]."""
    k, devices = cluster.ranks_per_device, cluster.devices()
    held = [
        (float(sum(peaks[first : first + k])), devices[first].memory)
        for first in range(0, len(peaks), k)
    ]
    return max(held, key=lambda pair: pair[0] / pair[1])


def _same_shapes(first: Weights, second: Weights) -> bool:
    return {name: array.shape for name, array in first.items()} == {
        name: array.shape for name, array in second.items()
    }


def _differences(first: Weights, second: Weights) -> dict[str, float]:
    """Largest difference over the largest weight, by parameter; infinite for non-finite weights."""
    distances = {}
    for name, array in first.items():
        if second[name].tobytes() == array.tobytes():
            distances[name] = 0.0
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            apart = float(np.abs(second[name].astype(np.float64) - array).max())
            scale = float(np.abs(array).max()) or 1.0
        share = apart / scale
        distances[name] = share if math.isfinite(share) else math.inf
    return distances
