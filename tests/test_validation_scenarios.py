"""What we hold against real machines: where it comes from, how it is split, and what we predict.

``python -m simdp validate scenarios/validation`` compares all of it with what was measured. After a
change that is meant to change predictions: ``pytest tests/test_validation_scenarios.py
--update-golden``.
"""

import json
from functools import cache
from pathlib import Path

import pytest
from for_each import for_each

from simdp.cluster.hardware import MACHINES, read_machine
from simdp.engine.simulate import simulate
from simdp.scenario import load_scenario
from simdp.studies.validate.jobs import cluster_name, shortened

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "scenarios" / "validation"
FILES = sorted(FOLDER.rglob("*.yaml"))
GOLDEN = Path(__file__).parent / "golden" / "validation.json"

every_file = for_each("path", FILES, ids=lambda path: path.stem)


@cache
def loaded(path):
    return load_scenario(path)


@cache
def golden():
    return json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


@pytest.mark.long
@every_file
def test_points_have_a_source_and_misses_a_reason(path):
    measured = loaded(path).measured
    assert measured.source.strip()
    assert all(point.reason.strip() for point in measured.excluded)


@pytest.mark.long
@every_file
def test_a_point_on_one_device_is_what_compute_was_measured_at(path):
    """No prediction is counted where the scenario was told the answer."""
    scenario = loaded(path)
    points, _ = scenario.measured_scenarios()
    for point, one in zip(scenario.measured.points, points, strict=True):
        if one.cluster.world_size == 1 and one.workload.compute.kind == "measured":
            wrapped = one.strategy.kind != "single" and one.cluster.overheads.hook > 0
            assert point.role == "calibration" or one.workload.grad_accum != 1 or wrapped


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
    points, tables = scenario.measured_scenarios()
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


@pytest.mark.long
def test_every_calibrated_machine_is_validated():
    clusters = set()
    for path in FILES:
        scenario = loaded(path)
        for several in scenario.measured_scenarios():
            clusters |= {cluster_name(scenario.name, one) for one in several}
    calibrated = {name for name in MACHINES.names() if read_machine(name, Path()).calibration}
    assert calibrated - clusters == set()
