"""Validation of scenarios: simulated points beside measured ones."""

import pytest

import simdp
from simdp.collectives import Collectives
from simdp.engine.simulate import simulate
from simdp.errors import ScenarioError
from simdp.scenario import load_scenario
from simdp.scenario.placement import wiring_of
from simdp.studies import intervals
from simdp.studies.intervals import Interval, collective_novelty_spread, widened
from simdp.studies.store import Store
from simdp.studies.validate import clock_of, validate
from simdp.studies.validate.jobs import shortened

KNOWN = {
    "data": "a bench",
    "residual": "1 %",
    "intervals": {
        "cluster.link.alpha": ["4 us", "8 us"],
        "cluster.overheads.hook": ["0 s", "1 us"],
    },
}
TABLE = {
    "collective": "all_reduce",
    "set": {"cluster.world_size": 2},
    "times": {"1 KiB": "12 us", "1 MiB": "60 us", "64 MiB": "3 ms"},
    "calibration": "every_second",
}


def test_points_are_what_simulate_says_of_them(write):
    path = write("box.yaml")
    found = validate([path])
    played = [
        simdp.simulate(load_scenario(path, {"cluster.world_size": n, "numerics": False}))
        for n in (1, 2, 4)
    ]
    times = [result.metrics["step_time_s"] for result in played]
    assert [point.simulated for point in found.points] == pytest.approx(times)
    assert [p.measured for p in found.points] == pytest.approx([30e-6, 64e-6, 90e-6])
    assert [p.samples for p in found.points] == pytest.approx([8.0, 16.0, 32.0])
    assert [p.role for p in found.points] == ["calibration", "predicted", "predicted"]
    assert [p.linear for p in found.points] == pytest.approx([None, 30e-6, 30e-6])
    assert [p.note for p in found.points] == [None, None, "a slow switch"]
    assert found.sources == {"box": "a bench"}


def test_what_a_step_waits_for_gradients_stands_beside_what_was_measured(write):
    points = [
        {"set": {"cluster.world_size": 2}, "step_time": "90 us", "exposed_sync": "40 us"},
        {"step_time": "90 us"},
    ]
    path = write("box.yaml", measured={"points": points})
    two, four = validate([path]).points
    played = simdp.simulate(load_scenario(path, {"cluster.world_size": 2, "numerics": False}))
    said = played.metrics["exposed_comm_s"] + played.metrics["wait_s"]
    assert (two.exposed_measured, two.exposed_simulated) == pytest.approx((40e-6, said))
    assert four.exposed_measured is None
    assert two.plain()["exposed_measured_s"] == two.exposed_measured


def test_without_a_calibration_an_interval_is_a_point(write):
    for point in validate([write("box.yaml")]).points:
        assert point.low == point.simulated == point.high


def test_intervals_are_simulated_with_either_end_of_each_constant(write, monkeypatch):
    monkeypatch.setattr(intervals, "BY_DATA_SHEET", 0.0)
    path = write("box.yaml", measured={"calibration": KNOWN})
    last = validate([path]).points[-1]

    def time(**settings):
        dotted = {f"cluster.{key.replace('__', '.')}": value for key, value in settings.items()}
        scenario = load_scenario(path, {**dotted, "numerics": False})
        return simulate(scenario).metrics["step_time_s"]

    rest = 1.645 * 0.01 * last.simulated
    down = last.simulated - time(link__alpha="4 us")
    up = time(link__alpha="8 us") - last.simulated, time(overheads__hook="1 us") - last.simulated
    assert min(down, *up) > 0
    assert last.low == pytest.approx(last.simulated - (down**2 + rest**2) ** 0.5)
    assert last.high == pytest.approx(last.simulated + (up[0] ** 2 + up[1] ** 2 + rest**2) ** 0.5)


def test_points_that_nobody_asks_for_have_no_interval(write, tmp_path):
    path = write("box.yaml", measured={"calibration": KNOWN})
    with Store(tmp_path / "points") as store:
        whole = validate([path], store=store)
    with Store(tmp_path / "points", go_on=True) as store:
        some, none = (validate([path], intervals=of, store=store) for of in ("predicted", "none"))
    calibrated, *predicted = some.points
    assert tuple(predicted) == whole.points[1:]
    assert calibrated.low == calibrated.simulated == calibrated.high > whole.points[0].low
    assert all(point.low == point.simulated == point.high for point in none.points)


def test_tables_are_what_the_collective_takes_by_itself(write):
    found = validate([write("box.yaml", measured={"points": [], "collectives": [TABLE]})])
    assert [row.role for row in found.rows] == ["calibration", "predicted", "calibration"]
    # Both ways of the one link between two ranks: 2 (n - 1) (alpha + beta S / n).
    expected = [2 * (5e-6 + row.nbytes / 2 / 25e9) for row in found.rows]
    assert [row.simulated for row in found.rows] == pytest.approx(expected)
    assert {row.world_size for row in found.rows} == {2}


def test_tables_have_intervals_too(write):
    path = write("box.yaml", measured={"collectives": [TABLE], "calibration": KNOWN})
    row = validate([path]).rows[0]
    rest, time = 1.645 * 0.01 * row.simulated, row.simulated
    fitted = Interval(time - (2e-6**2 + rest**2) ** 0.5, time + (6e-6**2 + rest**2) ** 0.5)
    wanted = widened(
        time, fitted, collective_novelty_spread((), row.nbytes)
    )  # a size of its own is always new
    assert (row.low, row.high) == pytest.approx(wanted)


def test_a_timed_cost_tells_the_times_of_tables(write):
    costs = {"cost": {"kind": "nccl"}}
    path = write("box.yaml", measured={"collectives": [TABLE]}, collectives=costs)
    scenario = load_scenario(path)
    _, (table,) = scenario.measured_scenarios()
    wiring = wiring_of(table.cluster)
    for row in validate([path]).rows:
        seconds = table.collectives.cost.seconds("all_reduce", row.nbytes, wiring)
        assert row.simulated == seconds


@pytest.mark.long
@pytest.mark.slow
def test_the_results_are_the_same_for_any_number_of_processes(write, tmp_path):
    for number in range(3):
        write(f"box{number}.yaml", measured={"collectives": [TABLE], "calibration": KNOWN})
    done = []
    here = validate([tmp_path], workers=1, progress=lambda *parts: done.append(parts))
    assert validate([tmp_path], workers=2).to_json() == here.to_json()
    assert done[-1] == (12, 12)
    assert [done for done, _ in done] == sorted(done for done, _ in done)


@pytest.mark.slow
def test_what_was_validated_is_taken_from_the_store(write, tmp_path):
    measured = {"collectives": [TABLE], "calibration": KNOWN}
    write("box.yaml", measured=measured)
    with Store(tmp_path / "points") as store:
        whole = validate([tmp_path / "box.yaml"], store=store).to_json()
    with Store(tmp_path / "points", go_on=True) as store:
        assert validate([tmp_path / "box.yaml"], store=store).to_json() == whole
        found = store.num_found
        assert found > 0
        write("box.yaml", measured=measured, seed=3)
        validate([tmp_path / "box.yaml"], store=store)
        assert store.num_found == found


def test_noise_is_the_largest_of_a_clusters_scenarios(write, tmp_path):
    cluster = {"machine": "dgx-1", "world_size": 4}
    write("a.yaml", measured={"noise": "1 %"}, cluster=cluster)
    write("b.yaml", measured={"noise": "3 %"}, cluster=cluster)
    write("c.yaml")
    assert validate([tmp_path]).noise == {"dgx-1": 0.03, "c": 0.0}


def test_several_machines_may_be_one_cluster(write, tmp_path):
    cluster = {"machine": "dgx-1", "world_size": 4}
    write("a.yaml", measured={"cluster": "Lab", "collectives": [TABLE]}, cluster=cluster)
    write("b.yaml", measured={"cluster": "Lab"})
    found = validate([tmp_path])
    assert found.clusters == ["Lab"]
    assert {one.cluster for one in (*found.points, *found.rows)} == {"Lab"}


def test_what_is_left_out_is_passed_on(write):
    left_out = [{"set": {"cluster.world_size": 3}, "reason": "a shared machine"}]
    (found,) = validate([write("box.yaml", measured={"excluded": left_out})]).excluded
    assert (found.scenario, found.cluster, found.reason) == ("box", "box", "a shared machine")


def test_a_point_takes_two_steps_unless_the_scenario_says_how_many(load):
    assert shortened(load()).workload.steps == 2
    assert shortened(load({"workload.epochs": 3})).workload.epochs is None
    assert shortened(load({"workload.steps": 7})).workload.steps == 7


def test_a_table_that_the_links_have_no_algorithm_for_is_refused(write):
    table = {**TABLE, "collective": "sendrecv"}
    path = write("box.yaml", measured={"points": [], "collectives": [table]})
    with pytest.raises(ScenarioError) as caught:
        validate([path])
    assert caught.value.problems == [
        f"{path}: measured.collectives.0: collectives.cost: links has no algorithm for "
        "sendrecv; use nccl or table."
    ]


def test_a_table_that_the_cost_does_not_know_is_refused(load):
    trees = Collectives.model_validate({"cost": {"kind": "nccl", "algorithms": ["tree"]}})
    scenario = load().model_copy(update={"collectives": trees})
    with pytest.raises(
        ScenarioError, match=r"collectives\.cost: cost nccl has no algorithm for red"
    ):
        clock_of(scenario, "reduce_scatter")


def test_an_interval_that_cannot_be_says_at_which_point(write):
    wrong = {**KNOWN, "intervals": {"cluster.link.alpha": ["6 us", "8 us"]}}
    path = write("box.yaml", measured={"calibration": wrong})
    found = validate([path])
    assert len(found.points) == 1
    line = found.not_compared[0].line
    assert line.startswith(f"{path}: measured.points.1: measured.calibration.intervals.cluster")
