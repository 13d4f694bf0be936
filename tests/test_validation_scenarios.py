"""What we hold against real machines: where it comes from, how it is split, and what we predict.

``python -m simdp validate scenarios/validation`` compares all of it with what was measured. After a
change that is meant to change predictions: ``pytest tests/test_validation_scenarios.py
--update-golden``.
"""

import json
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from for_each import for_each

from simdp.cluster.hardware import MACHINES, read_machine
from simdp.engine.simulate import simulate
from simdp.reports.captions import model_name
from simdp.scenario import load_scenario
from simdp.studies.intervals import precision_of
from simdp.studies.validate.jobs import cluster_name, shortened

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "scenarios" / "validation"
FILES = sorted(FOLDER.rglob("*.yaml"))
GOLDEN = Path(__file__).parent / "golden" / "validation.json"


@cache
def loaded(path):
    return load_scenario(path)


@cache
def measured_of(path):
    return loaded(path).measured_scenarios()


@cache
def golden():
    return json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


def points_have_a_source_and_misses_a_reason():
    for path in FILES:
        measured = loaded(path).measured
        assert measured.source.strip(), path
        assert all(point.reason.strip() for point in measured.excluded), path


def a_point_on_one_device_is_what_compute_was_measured_at():
    """No prediction is counted where the scenario contains the answer."""
    for path in FILES:
        for point, one in zip(loaded(path).measured.points, measured_of(path)[0], strict=True):
            if one.cluster.world_size == 1 and one.workload.compute.kind == "measured":
                wrapped = one.strategy.kind != "single" and one.cluster.overheads.hook > 0
                calibrates = point.role == "calibration" or one.workload.grad_accum != 1
                assert calibrates or wrapped, path


def every_calibrated_machine_is_validated():
    clusters = set()
    for path in FILES:
        for several in measured_of(path):
            clusters |= {cluster_name(loaded(path).name, one) for one in several}
    calibrated = {name for name in MACHINES.names() if read_machine(name, Path()).calibration}
    assert calibrated - clusters == set()


SOLVED = ("mlperf", "mosaic", "torchtitan")
"""Folders whose files hold a compute that is solved from their smallest run."""


def fitted():
    """Models with their numbers of nodes, and precisions, of all calibration points, by machine.

    Where compute is solved from a file's smallest run, that tells nothing of the network.
    """
    found = defaultdict(lambda: defaultdict(set))
    precisions = defaultdict(set)
    for path in FILES:
        scenario, (points, _) = loaded(path), measured_of(path)
        fewest = 1
        if path.parent.name in SOLVED:
            fewest = min(point.cluster.world_size for point in points)
        for said, point in zip(scenario.measured.points, points, strict=True):
            cluster = point.cluster
            if said.role == "calibration" and cluster.world_size > fewest and cluster.machine:
                model = model_name({"model": point.workload.model.model_dump(mode="json")})
                found[cluster.machine][model].add(cluster.num_nodes)
                precisions[cluster.machine].add(precision_of(point))
    return found, precisions


def machines_declare_the_steps_that_they_were_fitted_to():
    steps, precisions = fitted()
    for name in MACHINES.names():
        calibration = read_machine(name, Path()).calibration
        declared = {} if calibration is None else calibration.steps
        assert declared == {m: sorted(nodes) for m, nodes in steps[name].items()}, name
        if declared:
            assert calibration.precisions == sorted(precisions[name]), name


@pytest.mark.long
def test_files_and_machines_agree():
    """All that needs every file is checked in one place: reading them takes half a minute."""
    points_have_a_source_and_misses_a_reason()
    a_point_on_one_device_is_what_compute_was_measured_at()
    every_calibrated_machine_is_validated()
    machines_declare_the_steps_that_they_were_fitted_to()


ONE_OF_EACH = list({path.parent: path for path in FILES}.values())[::6]
"""One file of every sixth folder; the others are looked at under ``--long``."""


@for_each("path", ONE_OF_EACH, ids=lambda path: path.stem)
def test_predictions_stay_as_they_are(path, request):
    assert_predictions_stay(path, request)


@pytest.mark.long
@for_each("path", [path for path in FILES if path not in ONE_OF_EACH], ids=lambda path: path.stem)
def test_predictions_of_all_other_files_stay_as_they_are(path, request):
    assert_predictions_stay(path, request)


def assert_predictions_stay(path, request):
    scenario = loaded(path)
    points, tables = measured_of(path)
    several = [one for one in points if one.cluster.world_size > 1][-1:]
    found = {"step_time": [simulate(shortened(one)).metrics["step_time_s"] for one in several]}
    if tables:
        from simdp.scenario.placement import wiring_of

        cost, table = tables[-1].collectives.cost, scenario.measured.collectives[-1]
        nbytes = table.times[len(table.times) // 2][0]
        found["collective"] = cost.seconds(table.collective, nbytes, wiring_of(tables[-1].cluster))
    key = path.relative_to(FOLDER).as_posix()
    if request.config.getoption("--update-golden"):
        kept = {**golden(), key: found}
        golden.cache_clear()
        kept = {name: kept[name] for name in sorted(kept) if (FOLDER / name).exists()}
        GOLDEN.write_text(json.dumps(kept, indent=1) + "\n")
    else:
        kept = golden()[key]
        assert list(found) == list(kept)
        for name, value in kept.items():
            assert found[name] == pytest.approx(value, rel=1e-9), name
