"""Constants of a cluster from measured steps: found again where a simulation made the steps."""

from functools import cache
from pathlib import Path

import pytest
import yaml

import simdp
from simdp.errors import ScenarioError
from simdp.scenario import checked, load_scenario
from simdp.studies.calibrate.ddp import calibrate_ddp
from simdp.studies.calibrate.steps import fit_steps
from simdp.studies.variants import value_at, with_values
from simdp.units import parse

pytestmark = pytest.mark.slow

HOP, EFFICIENCY = "collectives.cost.hop.inter.simple", "collectives.cost.efficiency.inter.simple"
TRUTH = {HOP: "400 us", EFFICIENCY: 0.5, "cluster.overheads.message": "1 ms"}
FREE = [f"{HOP}=10us:10ms", f"{EFFICIENCY}=0.05:1.5", "cluster.overheads.message=10us:100ms"]

BASE = {
    "name": "box",
    "cluster": {
        "world_size": 8,
        "devices_per_node": 2,
        "device": "v100-sxm2-16gb",
        "link": "nvlink2",
        "inter_node": {"link": "10gbe"},
    },
    "workload": {
        "model": {"kind": "parameters", "num_params": 20_000_000, "num_layers": 8},
        "microbatch": 8,
        "compute": {"kind": "measured", "points": [{"microbatch": 8, "step_time": "50 ms"}]},
    },
    "strategy": {"kind": "ddp", "bucket_cap": "10 MB"},
    "collectives": {"cost": {"kind": "nccl", "protocols": ["simple"], "algorithms": ["ring"]}},
}
SETS = [
    {"cluster.world_size": n, "strategy.bucket_cap": cap}
    for n in (4, 8, 16)
    for cap in ("1 MB", "10 MB", "90 MB")
]


@cache
def seconds_of(values):
    one = checked(BASE, Path())
    one = with_values(one, one.resolved(), dict(values))
    return simdp.simulate(one).metrics["step_time_s"]


def measured(roles, truth=TRUTH):
    """Points as a machine with these constants would have measured them."""
    points = []
    for chosen, role in zip(SETS, roles, strict=True):
        step_time = f"{seconds_of(tuple({**chosen, **truth}.items()))!r} s"
        points.append({"set": chosen, "step_time": step_time, "role": role})
    return {"source": "made up", "points": points}


def write(folder, points, **more):
    path = folder / "box.yaml"
    path.write_text(yaml.safe_dump({**BASE, **more, "measured": points}))
    return path


ROLES = ["calibration"] * 7 + ["predicted"] * 2


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return calibrate_ddp([write(tmp_path_factory.mktemp("box"), measured(ROLES))], FREE)


def test_the_constants_that_made_the_steps_are_found_again(found):
    values = {constant.key: constant.value for constant in found.constants}
    entry = yaml.safe_load(found.entry)
    assert float(values[EFFICIENCY]) == pytest.approx(0.5, rel=0.02)
    one = load_scenario_with(entry)
    assert one.collectives.cost.hop.inter.simple == pytest.approx(400e-6, rel=0.05)
    assert one.cluster.overheads.message == pytest.approx(1e-3, rel=0.05)
    assert found.residual < 0.005
    assert found.undetermined == []


def load_scenario_with(entry):
    raw = {**BASE, "cluster": {**entry["cluster"], "world_size": 8}}
    return checked({**raw, "collectives": entry["collectives"]}, Path())


def test_the_entry_is_a_machine_that_a_scenario_can_name(found, tmp_path):
    (tmp_path / "mine.yaml").write_text(found.entry)
    raw = {key: value for key, value in BASE.items() if key != "collectives"}
    raw["cluster"] = {"machine": "mine.yaml", "world_size": 8}
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(raw))
    cluster = load_scenario(path).cluster
    assert cluster.device.name == "v100-sxm2-16gb"
    assert cluster.inter_node.link.name == "10gbe"
    entry = yaml.safe_load(found.entry)
    assert entry["cluster"]["device"] == "v100-sxm2-16gb"  # by its name, as it was written
    assert set(entry["calibration"]["intervals"]) == {constant.key for constant in found.constants}
    assert all(f"--fit {text}" in entry["calibration"]["data"] for text in FREE)
    errors = {point.title: f"{point.error:+.1%}" for point in found.points}
    assert entry["calibration"]["errors"] == errors


@pytest.mark.long
def test_a_constant_may_be_of_one_scenario_alone(tmp_path):
    """Two models on one cluster: what only one of them needs of its host is no machine's."""
    host = "workload.host.per_neighbour"
    one = write(tmp_path, measured(ROLES, {host: "20 ms", EFFICIENCY: 0.5}))
    (tmp_path / "other").mkdir()
    two = write(tmp_path / "other", measured(ROLES, {EFFICIENCY: 0.5}), name="other")
    found = calibrate_ddp([one, two], [f"box:{host}=1ms:99ms", FREE[1]])
    values = {constant.key: constant.value for constant in found.constants}
    assert parse(values[f"box:{host}"], "time") == pytest.approx(20e-3, rel=0.01)
    assert float(values[EFFICIENCY]) == pytest.approx(0.5, rel=0.01)
    entry = yaml.safe_load(found.entry)
    assert list(entry["source"]) == list(entry["calibration"]["intervals"]) == [EFFICIENCY]
    assert entry["calibration"]["notes"][0].startswith(f"fitted beside: box:{host} = ")


def test_the_next_measurement_is_one_of_those_predicted_and_helps(found):
    assert found.next_point.title.startswith("box: world_size=16")
    assert found.next_point.after < found.next_point.before


def test_a_constant_that_nothing_depends_on_is_said_to_be_open(tmp_path):
    path = write(tmp_path, measured(ROLES))
    free = [FREE[1], "collectives.cost.hop.intra.simple=1ns:2ns"]
    assert calibrate_ddp([path], free).undetermined == ["collectives.cost.hop.intra.simple"]


@pytest.mark.long
def test_without_asking_the_network_is_fitted_as_far_as_points_go(tmp_path):
    found = fit_steps([write(tmp_path, measured(ROLES))])
    keys = [constant.key for constant in found.fit.constants]
    assert keys == [
        "collectives.cost.efficiency.inter",
        "collectives.cost.hop.inter",
        "collectives.cost.efficiency.intra",
    ]
    few = measured(["calibration"] * 2 + ["predicted"] * 7)
    assert len(fit_steps([write(tmp_path, few)]).fit.constants) == 1


def test_points_that_no_constant_bears_on_are_left_out_of_the_fit(tmp_path):
    points = measured(ROLES)
    alone = {"set": {"cluster.world_size": 1}, "step_time": "50 ms", "role": "calibration"}
    points["points"].append(alone)
    found = fit_steps([write(tmp_path, points)], [f"box:{FREE[1]}"])
    assert len(found.points) == 7
    (constant,) = found.fit.constants
    assert constant.key == f"box:{EFFICIENCY}"


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (["cluster.overheads.message"], "--fit cluster.overheads.message: starts from 0; give"),
        (["cluster.overheads.massage"], "--fit cluster.overheads.massage: has no value to start"),
        (["cluster.link"], "--fit cluster.link: has no value to start from; give its bounds"),
        ([f"{HOP}=1us"], f"--fit {HOP}=1us: has no bounds; write {HOP}=LOW:HIGH."),
        (
            [f"{HOP}=1us:1"],
            f"--fit {HOP}=1us:1: 1us and 1 are not bounds; give two, 0 < LOW < HIGH",
        ),
        ([f"{HOP}=2us:1us"], f"--fit {HOP}=2us:1us: 2us and 1us are not bounds"),
        ([f"{HOP}=1us:2us"] * 2, f"--fit {HOP}: is given twice; keep one."),
        ([f"{HOP}=a:b"], f"--fit {HOP}=a:b: 'a' is neither a quantity nor a number."),
        (["strategy.kind"], "--fit strategy.kind: 'ddp' is neither a quantity nor a number."),
        (["bax:seed=1:9"], "--fit bax:seed: no such scenario has calibration points; known: box."),
        (["seed=1:9"], "seed: has no constants; give a key of cluster, workload, ..."),
        (
            ["cluster.overheads.massage=1us:2us"],
            "cluster.overheads: unknown key 'massage'. Did you mean 'message'? Known: ",
        ),
    ],
)
def test_what_cannot_be_fitted_is_refused(tmp_path, asked, line):
    path = write(tmp_path, measured(ROLES))
    with pytest.raises(ScenarioError) as caught:
        fit_steps([path], asked)
    assert caught.value.problems[0].startswith(line)


def test_fewer_points_than_constants_are_refused(tmp_path):
    path = write(tmp_path, measured(["calibration"] * 2 + ["predicted"] * 7))
    line = "calibrate: 2 calibration points depend on the 3 constants that are to be fitted; fit"
    with pytest.raises(ScenarioError, match=line):
        fit_steps([path], FREE)


def test_without_calibration_points_there_is_nothing_to_fit(tmp_path):
    with pytest.raises(ScenarioError, match="calibrate: no point has role: calibration; set"):
        fit_steps([write(tmp_path, measured(["predicted"] * 9))])


def test_constants_must_be_named_where_there_is_no_formula(tmp_path):
    path = write(tmp_path, measured(ROLES), collectives={"cost": "links"})
    with pytest.raises(ScenarioError, match="calibrate: no constants are given; name some with"):
        fit_steps([path])


def test_one_rank_tells_nothing_of_a_network(tmp_path):
    points = {"source": "x", "points": [{"set": {}, "step_time": "9 ms", "role": "calibration"}]}
    cluster = {**BASE["cluster"], "world_size": 1}
    path = write(tmp_path, points, cluster=cluster)
    with pytest.raises(ScenarioError, match="calibrate: no calibration point has more than one"):
        fit_steps([path])


def test_a_value_is_found_at_its_key():
    raw = {"a": [{"b": 3}], "c": 1}
    assert [value_at(raw, key) for key in ("a.0.b", "a.1.b", "c.d", "c")] == [3, None, None, 1]
