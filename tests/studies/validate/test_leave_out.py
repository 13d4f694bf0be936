"""What was left out is predicted by what remains: found again where a simulation made the times."""

import json
from functools import partial
from pathlib import Path

import pytest
import yaml

import simdp
from simdp.cluster.hardware import DEVICES, Device
from simdp.errors import ScenarioError
from simdp.scenario import checked, load_scenario
from simdp.scenario.placement import wiring_of
from simdp.studies.intervals import POOL, as_unmeasured
from simdp.studies.store import Store
from simdp.studies.validate import leave_out as module
from simdp.studies.validate.folds import folds_of, items_of
from simdp.studies.validate.jobs import load_measured
from simdp.studies.validate.leave_out import leave_out
from simdp.studies.variants import value_at, with_values

pytestmark = pytest.mark.slow

MPT = Path(__file__).parents[3] / "scenarios" / "validation" / "mosaic"

SIMPLE, LL = (f"collectives.cost.efficiency.inter.{name}" for name in ("simple", "ll"))
HOP = "collectives.cost.hop.inter.simple"

MACHINE = {
    "cluster": {
        "devices_per_node": 2,
        "device": "v100-sxm2-16gb",
        "link": "nvlink2",
        "inter_node": {"topology": "switch", "link": "10gbe"},
        "overheads": {"message": "1 ms"},
    },
    "collectives": {
        "cost": {
            "kind": "nccl",
            "protocols": ["ll", "simple"],
            "algorithms": ["ring"],
            "efficiency": {"inter": {"simple": 0.6, "ll": 0.3}},
            "hop": {"inter": {"simple": "300 us"}},
        }
    },
    "source": "made up",
    "calibration": {
        "data": "nothing",
        "residual": "1 %",
        "intervals": {SIMPLE: [0.3, 0.9], HOP: ["100 us", "1 ms"]},
    },
}
"""Its constants are wrong, so that whoever keeps them errs."""

TRUTH = {SIMPLE: 0.5, LL: 0.25, HOP: "400 us"}


def job(params):
    return {
        "cluster": {"machine": "mine.yaml", "world_size": 8},
        "workload": {
            "model": {"kind": "parameters", "num_params": params, "num_layers": 8},
            "microbatch": 8,
            "compute": {"kind": "measured", "points": [{"microbatch": 8, "step_time": "50 ms"}]},
        },
        "strategy": {"kind": "ddp", "bucket_cap": "10 MB"},
        "numerics": False,
    }


def made(raw, folder, chosen):
    scenario = checked(raw, folder)
    return with_values(scenario, scenario.resolved(), {**chosen, **TRUTH})


SECONDS = {}
"""Step time of each job that was simulated [s]."""


def point(params, folder, nodes, cap, times=1.0):
    chosen = {"cluster.world_size": 2 * nodes, "strategy.bucket_cap": cap}
    key = (params, nodes, cap)
    if key not in SECONDS:
        result = simdp.simulate(made(job(params), folder, chosen))
        SECONDS[key] = result.metrics["step_time_s"]
    step_time = f"{SECONDS[key] * times!r} s"
    return {"set": chosen, "step_time": step_time, "role": "calibration"}


@pytest.fixture(scope="module")
def by_model(tmp_path_factory):
    """Each of two models, predicted by the other."""
    return leave_out(write_lab(tmp_path_factory.mktemp("lab")), "model", workers=1)


@pytest.fixture
def lab(tmp_path):
    """Write two models' steps on a machine; ``slower`` multiplies those of the larger one."""
    return partial(write_lab, tmp_path)


def write_lab(folder, slower=1.0):
    (folder / "mine.yaml").write_text(yaml.safe_dump(MACHINE))
    for name, params, times in (("small", 20_000_000, 1.0), ("large", 60_000_000, slower)):
        raw = job(params)
        points = [
            point(params, folder, nodes, cap, times)
            for nodes in (2, 4, 8)
            for cap in ("2 MB", "90 MB")
        ]
        whole = {**raw, "measured": {"source": "made up", "points": points}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(whole))
    return [folder / "small.yaml", folder / "large.yaml"]


def test_a_model_is_predicted_by_the_other_one(by_model):
    found = by_model
    names = [fold.name for fold in found.folds]
    assert names == ["20M parameters on mine", "60M parameters on mine"]
    for fold in found.folds:
        assert fold.num_points == 6
        assert fold.mean_error < 0.01
        assert fold.fit_error > 0.05
        assert fold.inside == 1
        assert 1 < fold.width < 1.5  # a model is new
    assert found.means()[0].mean_error == pytest.approx(
        sum(fold.mean_error for fold in found.folds) / 2
    )


@pytest.mark.long
def test_a_number_of_nodes_is_predicted_by_the_others(lab):
    found = leave_out(lab(), "nodes", workers=1)
    assert [fold.name for fold in found.folds] == [f"{n} nodes on mine" for n in (2, 4, 8)]
    assert all(fold.mean_error < 0.01 for fold in found.folds)


@pytest.mark.parametrize(
    ("by", "folds"),
    [
        ("kind", ["convolutional models on mine", "models of attention on mine"]),
        ("precision", ["float32 on mine", "float64 on mine"]),
        ("scale", ["more than 10 nodes on mine"]),
    ],
)
def test_folds_are_of_a_kind_of_model_a_precision_or_a_scale(by, folds, tmp_path):
    models = {"resnet18": "float32", "bert-base": "float64"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(MACHINE))
    points = [
        {"set": {"cluster.world_size": 2 * nodes}, "step_time": "90 ms"} for nodes in (10, 11)
    ]
    for model, dtype in models.items():
        raw = job(1)
        raw["workload"] |= {"model": model, "dtype": dtype}
        raw |= {"measured": {"source": "made up", "points": points}}
        (tmp_path / f"{model}.yaml").write_text(yaml.safe_dump(raw))
    items = items_of(load_measured([tmp_path / f"{model}.yaml" for model in models]))
    found = folds_of(items, by)
    assert [fold.name for fold in found] == folds
    for fold in found:
        assert len(fold.left_out) == len(fold.remaining) == 2
        assert {one.key for one in (*fold.left_out, *fold.remaining)} == {one.key for one in items}
    if by == "scale":
        assert {one.made.cluster.num_nodes for one in found[0].left_out} == {11}


def test_folds_that_leave_the_same_steps_share_a_fit(lab, monkeypatch):
    paths = lab()
    for path in paths:
        raw = yaml.safe_load(path.read_text())
        for one in raw["measured"]["points"][2:]:  # of 4 and 8 nodes
            one["role"] = "predicted"
        path.write_text(yaml.safe_dump(raw))
    fits, refit = [], module.refit_steps
    monkeypatch.setattr(module, "refit_steps", lambda *a: fits.append(len(a[0])) or refit(*a))
    found = leave_out(paths, "nodes", workers=1)
    assert [fold.name for fold in found.folds] == [f"{n} nodes on mine" for n in (2, 4, 8)]
    assert sorted(fits) == [0, 4]


def test_a_fold_does_not_see_what_is_left_out(lab, by_model):
    before = by_model.whole.points
    after = leave_out(lab(slower=10.0), "model", workers=1).whole.points
    for one, other in zip(before, after, strict=True):
        if one.scenario == "large":
            assert other.measured == pytest.approx(10 * one.measured)
            assert (other.simulated, other.low, other.high) == (one.simulated, one.low, one.high)
        else:
            assert other.simulated != one.simulated  # fitted to the slower ones


def test_a_fold_that_is_done_is_taken_from_the_store(lab, tmp_path):
    paths = lab()[:1]
    with Store(tmp_path / "points") as store:
        whole = leave_out(paths, "nodes", workers=1, store=store).to_json()
    with Store(tmp_path / "points", go_on=True) as store:
        assert leave_out(paths, "nodes", workers=1, store=store).to_json() == whole
        assert store.num_found > 0
    with Store(tmp_path / "points", go_on=True) as store:
        leave_out(lab(slower=2.0)[1:], "nodes", workers=1, store=store)
        assert store.num_found == 0


@pytest.mark.long
def test_the_results_are_the_same_for_any_number_of_processes(lab):
    paths, done = lab(), []
    here = leave_out(paths, "nodes", workers=1, progress=lambda *parts: done.append(parts))
    assert leave_out(paths, "nodes", workers=2).to_json() == here.to_json()
    assert done[-1] == (12, 12)


def test_a_cluster_is_predicted_by_what_is_published(lab):
    found = leave_out(lab()[:1], "cluster", workers=1)
    assert [fold.name for fold in found.folds] == ["mine"]
    bare = found.whole.points[0]
    raw = yaml.safe_load(Path(lab()[0]).read_text())
    del raw["measured"]
    raw["collectives"] = {
        "cost": {
            "efficiency": {"inter": {"simple": 0.96, "ll": 0.48}},
            "hop": {"inter": {"simple": None}},
        }
    }
    published = checked(raw, Path(lab()[0]).parent)
    alike = with_values(published, published.resolved(), bare.set)
    time = simdp.simulate(alike).metrics["step_time_s"]
    assert bare.simulated == pytest.approx(time, rel=1e-9)
    assert bare.low < bare.simulated < bare.high


def test_what_is_known_of_a_cluster_is_stripped_of_it(lab):
    scenario = checked(job(20_000_000), lab()[0].parent)
    bare, known = as_unmeasured(scenario)
    assert value_at(bare, SIMPLE) == 0.96
    assert bare.collectives.cost.algorithms == ("ring",)
    assert bare.cluster.overheads.message == 1e-3  # which nobody fitted
    assert bare.cluster.inter_node == scenario.cluster.inter_node
    assert [one.place for one in known] == [POOL]


@pytest.mark.long
def test_the_step_of_one_device_does_not_count(lab, tmp_path):
    paths = lab()
    raw = yaml.safe_load(paths[0].read_text())
    alone = {"set": {"cluster.world_size": 1}, "step_time": "50 ms", "role": "calibration"}
    raw["measured"]["points"].append(alone)
    paths[0].write_text(yaml.safe_dump(raw))
    found = leave_out(paths, "model", workers=1)
    assert [fold.num_points for fold in found.folds] == [6, 6]
    plain = json.loads(found.to_json())
    assert len(plain["points"]) == 13
    assert {one["fold"] for one in plain["points"]} == {fold.name for fold in found.folds}
    assert [one["role"] for one in plain["points"]].count("calibration") == 1


@pytest.mark.long
def test_constants_of_a_device_that_nothing_measures_are_the_catalogues(tmp_path):
    """One row of measured compute on two nodes says next to nothing of a device's products."""
    raw = yaml.safe_load((MPT / "mosaic-a100-40_mpt-125m.yaml").read_text())
    raw["measured"]["points"] = [{**raw["measured"]["points"][1], "role": "calibration"}]
    two_nodes = tmp_path / "two_nodes.yaml"
    two_nodes.write_text(yaml.safe_dump(raw))
    raw = yaml.safe_load((MPT / "mosaic-a100-40_mpt-125m_lengths.yaml").read_text())
    del raw["measured"]["points"][3:]
    lengths = tmp_path / "lengths.yaml"
    lengths.write_text(yaml.safe_dump(raw))
    found = leave_out([two_nodes, lengths], "nodes", workers=1)
    one_node = found.whole.points[1:]
    assert [abs(point.error) < 0.2 for point in one_node] == [True] * 3
    assert all(point.low < point.measured < point.high for point in one_node)
    assert all(1.3 < point.high / point.low < 4 for point in one_node)


def test_a_cluster_that_is_stripped_has_the_catalogues_device():
    scenario = load_scenario(MPT / "mosaic-a100-40_mpt-125m_lengths.yaml")
    listed = Device(**DEVICES.figures("a100-sxm4-40gb"))
    device = as_unmeasured(scenario)[0].cluster.device
    assert device.efficiency == listed.efficiency["bfloat16"] != scenario.cluster.device.efficiency
    assert device.memory_efficiency == listed.memory_efficiency
    assert 0.27 < device.flash_efficiency < 0.48  # of both passes, by their work
    assert device.launch == scenario.cluster.device.launch


# Tables ------------------------------------------------------------------------------------------


SIZES = [2**k for k in range(10, 29, 2)]
TABLES = [(name, nodes) for name in ("all_reduce", "all_gather") for nodes in (2, 4)]


@pytest.fixture
def tables(tmp_path):
    """Write tables of two collectives on two numbers of nodes."""

    def write(which=TABLES, slower=()):
        raw = job(1_000_000)
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(MACHINE))
        listed = []
        for name, nodes in which:
            chosen = {"cluster.world_size": 2 * nodes}
            one = made(raw, tmp_path, chosen)
            wiring, times = wiring_of(one.cluster), {}
            for size in SIZES:
                seconds = one.collectives.cost.seconds(name, size, wiring)
                times[f"{size} B"] = f"{seconds * (10 if name in slower else 1)!r} s"
            table = {"collective": name, "set": chosen, "times": times, "calibration": "all"}
            listed.append(table)
        path = tmp_path / "tables.yaml"
        measured = {"source": "made up", "points": [], "collectives": listed}
        path.write_text(yaml.safe_dump({**raw, "measured": measured}))
        return [path]

    return write


def test_a_collective_is_predicted_by_the_others(tables):
    found = leave_out(tables(), "collective", workers=1)
    assert [fold.name for fold in found.folds] == ["all_reduce on mine", "all_gather on mine"]
    assert all(fold.kind == "collectives" for fold in found.folds)
    assert all(fold.mean_error < 0.01 for fold in found.folds)
    assert all(fold.num_points == 20 for fold in found.folds)
    assert {row.new for row in found.whole.rows} == {("collective",)}


@pytest.mark.long
def test_tables_of_other_nodes_predict_one(tables):
    found = leave_out(tables(), "nodes", workers=1)
    assert [fold.name for fold in found.folds] == ["2 nodes on mine", "4 nodes on mine"]
    assert found.folds[1].mean_error < 0.01
    # On four nodes the least time of a ring's step hides the hops of middle sizes.
    seen = [row for row in found.whole.rows if not 2**14 <= row.nbytes < 2**22]
    assert all(abs(row.simulated / row.measured - 1) < 0.01 for row in seen)
    assert {row.new for row in found.whole.rows} == {("nodes",)}


@pytest.mark.long
def test_a_fold_of_tables_does_not_see_them(tables):
    before = leave_out(tables(), "collective", workers=1).whole.rows
    after = leave_out(tables(slower=["all_gather"]), "collective", workers=1).whole.rows
    for one, other in zip(before, after, strict=True):
        if one.collective == "all_gather":
            assert (one.simulated, one.low, one.high) == (other.simulated, other.low, other.high)


@pytest.mark.long
def test_where_no_table_remains_what_is_published_counts(lab, tables):
    paths = [*lab(), *tables(TABLES[:1])]  # tables of 2 nodes, steps of 2, 4 and 8
    found = leave_out(paths, "nodes", workers=1)
    (table,) = [fold for fold in found.folds if fold.kind == "collectives"]
    assert table.name == "2 nodes on mine"
    assert table.mean_error > 0.1
    of_steps = [fold for fold in found.folds if fold.kind == "steps"]
    assert [fold.name for fold in of_steps] == [f"{n} nodes on mine" for n in (2, 4, 8)]
    assert all(fold.mean_error < 0.05 for fold in of_steps)


# Nothing to leave out ----------------------------------------------------------------------------


@pytest.mark.long
def test_points_that_nothing_can_be_left_out_for_are_as_ever(lab, tables):
    paths = [*lab(), *tables(TABLES[:1])]
    plain = json.loads(leave_out(paths, "model", workers=1).to_json())
    assert {row["fold"] for row in plain["collective_points"]} == {None}
    assert {row["role"] for row in plain["collective_points"]} == {"calibration"}
    assert [fold["kind"] for fold in plain["folds"]] == ["steps", "steps"]


def test_where_nothing_can_be_left_out_the_error_says_what_can(lab, tables):
    with pytest.raises(ScenarioError) as caught:
        leave_out(lab()[:1], "model")
    assert caught.value.problems == [
        "--leave-out model: nothing can be left out: mine has only 20M parameters; give scenarios "
        "of one cluster with several, or leave out nodes or cluster."
    ]
    with pytest.raises(ScenarioError, match=r"mine has no tables; .* or leave out nodes or clus"):
        leave_out(lab()[:1], "collective")
    with pytest.raises(ScenarioError, match=r"mine has only all_reduce; .* leave out cluster\.$"):
        leave_out(tables(TABLES[:1]), "collective")
