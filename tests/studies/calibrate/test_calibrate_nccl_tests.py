"""Logs in, a machine out: real tables, made ones, and what cannot be calibrated."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

from simdp.collectives.costs.nccl import NcclCost
from simdp.errors import ScenarioError
from simdp.files import format_yaml, parse_yaml
from simdp.studies.calibrate.logs import read_measurements
from simdp.studies.calibrate.nccl_tests import calibrate_nccl_tests
from simdp.studies.validate import validate
from simdp.units import parse

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[2] / "golden"
TABLES = GOLDEN / "nccl"
NODES = {
    "a100-sxm4-80-nvswitch-mpi_1x8_all_reduce": 1,
    "h100-sxm-400g_2x1_all_reduce": 2,
    "h100-sxm-400g_10x1_all_reduce": 10,
    "polaris-a100-ss11-ofi_2x4_all_reduce": 2,
    "polaris-a100-ss11-ofi_8x4_all_reduce": 8,
    "rtx2080ti-pcie3-nop2p_1x2_all_gather": 1,
}


def file(name):
    return TABLES / f"{name}.csv"


def halves(name, folder):
    """A table's sizes with even and with odd numbers, as two files."""
    lines = file(name).read_text().splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("size_bytes")) + 1
    paths = []
    for half in (0, 1):
        paths.append(folder / f"{half}_{name}.csv")
        paths[-1].write_text("\n".join(lines[:head] + lines[head + half :: 2]) + "\n")
    return paths


def errors(study, path, nodes):
    """Relative errors of the machine's entry on another file, and its sizes."""
    entry = parse_yaml(study.entry, "entry")
    cost = NcclCost.model_validate(entry["collectives"]["cost"])
    cluster = entry["cluster"]
    link = cluster.get("link", {}).get("bandwidth")
    inter = cluster.get("inter_node", {}).get("link", {}).get("bandwidth")
    held = read_measurements([path], [nodes], link, inter, 1)
    times = np.array([cost.seconds(*point) for point in held.points])
    sizes = np.array([point.nbytes for point in held.points])
    return np.abs(times / np.array(held.seconds) - 1), sizes


@pytest.fixture(scope="module")
def held_back(tmp_path_factory):
    """Mean error on every second size, of constants fitted to the others, by table."""
    found = {}
    for name, nodes in NODES.items():
        fitted, held = halves(name, tmp_path_factory.mktemp("halves"))
        study = calibrate_nccl_tests([fitted], nodes=[nodes])
        found[name] = errors(study, held, nodes)[0].mean()
    return found


@pytest.mark.long
def test_every_second_size_predicts_the_others(held_back):
    assert np.mean(list(held_back.values())) < 0.07
    assert max(held_back.values()) < 0.12


@pytest.mark.parametrize(
    ("small", "large"),
    [
        ("h100-sxm-400g_2x1_all_reduce", "h100-sxm-400g_10x1_all_reduce"),
        ("polaris-a100-ss11-ofi_2x4_all_reduce", "polaris-a100-ss11-ofi_8x4_all_reduce"),
    ],
)
def test_two_nodes_predict_large_buffers_on_many(small, large):
    study = calibrate_nccl_tests([file(small)], nodes=[2])
    misses, sizes = errors(study, file(large), NODES[large])
    assert misses[sizes >= 64 * 2**20].mean() < 0.10


def write(path, seconds, sizes=tuple(4.0**k for k in range(2, 17)), ranks=8, head=""):
    rows = [f"{size:.0f},{seconds(size) * 1e6:.8g}" for size in sizes]
    start = ["# collective: all_reduce", f"# nranks: {ranks}", head, "size_bytes,time_us"]
    path.write_text("\n".join(start + rows) + "\n")
    return path


@pytest.fixture
def made(tmp_path):
    """Times of a known cost on 8 GPUs behind NVSwitch."""
    cost = NcclCost(
        launch="20 us",
        ramp="6 us",
        efficiency={"intra": {"ll128": 0.6, "simple": 0.7}},
        hop={"intra": {"ll": "0.9 us"}},
    )
    measured = read_measurements(
        [write(tmp_path / "x.csv", lambda size: size)], [], "nvlink3", None, 1
    )
    wiring = measured.points[0].wiring
    return write(tmp_path / "made.csv", lambda size: cost.seconds("all_reduce", size, wiring))


def test_times_of_a_known_cost_give_it_back(made):
    study = calibrate_nccl_tests([made], link="nvlink3", name="box")
    assert study.residual < 0.02
    assert max(abs(point.error) for point in study.points) < 0.05
    values = {constant.key: constant for constant in study.constants}
    assert float(values["efficiency.intra.simple"].value) == pytest.approx(0.7, rel=0.02)
    assert values["efficiency.intra.simple"].is_determined


def test_the_entry_is_a_machine_with_sources_and_intervals(made):
    study = calibrate_nccl_tests([made], link="nvlink3", name="box")
    assert study.entry.startswith("# box: ")
    entry = parse_yaml(study.entry, "entry")
    assert entry["cluster"] == {"devices_per_node": 8, "topology": "switch", "link": "nvlink3"}
    assert entry["collectives"]["cost"]["kind"] == "nccl"
    assert "made.csv" in entry["source"]["collectives.cost"]
    assert entry["calibration"]["residual"].endswith(" %")
    assert entry["calibration"]["tables"] == {
        collective: sorted({p.num_nodes for p in study.points if p.collective == collective})
        for collective in {p.collective for p in study.points}
    }
    assert len(entry["calibration"]["errors"]) == len(study.points)
    intervals = entry["calibration"]["intervals"]
    low, high = intervals["collectives.cost.efficiency.intra.simple"]
    assert low <= entry["collectives"]["cost"]["efficiency"]["intra"]["simple"] <= high
    assert {key.removeprefix("collectives.cost.") for key in intervals} == {
        constant.key for constant in study.constants
    }


def test_with_a_device_the_entry_stands_alone_and_can_be_validated(made, tmp_path):
    study = calibrate_nccl_tests([made], device="a100-sxm4-80gb", link="nvlink3", name="box")
    assert parse_yaml(study.entry, "entry")["cluster"]["device"] == "a100-sxm4-80gb"
    (tmp_path / "box.yaml").write_text(study.entry)
    times = {f"{p.nbytes:.0f} B": f"{p.measured * 1e6} us" for p in study.points}
    table = {"collective": "all_reduce", "times": times, "calibration": "all"}
    scenario = {
        "cluster": {"machine": "box.yaml", "world_size": 8},
        "workload": {
            "model": {"kind": "parameters", "num_params": 1000},
            "microbatch": 1,
            "steps": 1,
        },
        "numerics": False,
        "measured": {"source": "made", "collectives": [table]},
    }
    (tmp_path / "measured.yaml").write_text(format_yaml(scenario))
    rows = validate([tmp_path / "measured.yaml"]).rows
    assert [row.error for row in rows] == pytest.approx([p.error for p in study.points])


def test_a_cluster_without_datasheets_gets_the_bandwidth_that_it_reached():
    study = calibrate_nccl_tests([file("h100-sxm-400g_2x1_all_reduce")], nodes=[2])
    cluster = parse_yaml(study.entry, "entry")["cluster"]
    assert cluster["devices_per_node"] == 1
    assert "link" not in cluster
    assert parse(cluster["inter_node"]["link"]["bandwidth"], "bandwidth") == 46.32e9


def test_the_ranks_of_a_log_tell_its_nodes():
    study = calibrate_nccl_tests([GOLDEN / "nccl_all_reduce_2x4.log"])
    assert {point.num_nodes for point in study.points} == {2}


@pytest.mark.long
def test_several_node_counts_are_fitted_together():
    names = ["polaris-a100-ss11-ofi_2x4_all_reduce", "polaris-a100-ss11-ofi_8x4_all_reduce"]
    study = calibrate_nccl_tests([file(name) for name in names], nodes=[2, 8])
    assert {point.world_size for point in study.points} == {8, 32}
    assert len({point.source for point in study.points}) == 2
    assert np.median([abs(point.error) for point in study.points]) < 0.08


def test_the_next_measurement_narrows_the_prediction(made):
    study = calibrate_nccl_tests([made], link="nvlink3", target=25 * 2.0**20)
    following = study.next_point
    assert following.after < following.before
    assert following.target == "all_reduce of 25 MiB between 8 ranks on 1 nodes"
    far = calibrate_nccl_tests([file("h100-sxm-400g_2x1_all_reduce")], nodes=[2]).next_point
    assert far.num_nodes > 2
    assert far.after < far.before


def test_large_sizes_alone_leave_the_constants_of_small_ones_open():
    study = calibrate_nccl_tests([file("h100-sxm-400g_2x1_all_reduce")], nodes=[2])
    assert "hop.inter.ll" in study.undetermined
    assert "efficiency.inter.simple" not in study.undetermined
    assert "not determined by the data: " in study.entry


def test_only_the_constants_that_are_asked_for_are_fitted(made):
    only = ["launch", "efficiency.intra.simple"]
    study = calibrate_nccl_tests([made], link="nvlink3", only=only)
    assert {constant.key for constant in study.constants} == {*only}


def test_known_keys_of_the_cost_are_kept(made):
    study = calibrate_nccl_tests([made], link="nvlink3", cost={"protocols": ["simple"]})
    assert parse_yaml(study.entry, "entry")["collectives"]["cost"]["protocols"] == ["simple"]
    assert {point.protocol for point in study.points} == {"simple"}


def test_constants_that_are_given_as_zero_stay_off(made):
    off = {"launch": "0 s", "ramp": "0 s"}
    study = calibrate_nccl_tests([made], link="nvlink3", cost=off)
    assert not {constant.key for constant in study.constants} & {*off}
    kept = parse_yaml(study.entry, "entry")["collectives"]["cost"]
    assert (kept["launch"], kept["ramp"]) == ("0 s", "0 s")


def refusal(files, **options):
    with pytest.raises(ScenarioError) as caught:
        calibrate_nccl_tests(files, **options)
    return "\n".join(caught.value.problems)


def test_fewer_points_than_constants_are_refused(tmp_path):
    short = write(tmp_path / "short.csv", lambda size: 1e-5, sizes=(1024.0,))
    assert (
        "1 measured points are fewer than the 2 constants that they must determine "
        "(efficiency.intra.simple, launch); measure more sizes." in refusal([short])
    )
    two = write(tmp_path / "two.csv", lambda size: size / 1e9, sizes=(1e6, 1e7))
    keys = ["launch", "ramp", "hop.intra.simple"]
    assert "2 measured points are fewer than the 3 constants" in refusal([two], only=keys)
    assert "or fit fewer." in refusal([two], only=keys)


def test_points_that_contradict_each_other_are_refused(tmp_path):
    one = write(tmp_path / "one.csv", lambda size: 1e-5)
    other = write(tmp_path / "other.csv", lambda size: 3e-5)
    said = refusal([one, other])
    assert "all_reduce of 16 bytes takes 3e-05 s, and 1e-05 s in" in said
    assert "they contradict each other. Keep one." in said
    twice = write(tmp_path / "twice.csv", lambda size: 1e-5)
    twice.write_text(twice.read_text() + "1024,30\n")
    assert "times of 1024 bytes differ 3 times within the log" in refusal([twice])


@for_each(
    ("options", "said"),
    [
        ({"nodes": [3]}, "8 ranks cannot lie on 3 nodes"),
        ({"nodes": [1, 2]}, "--nodes has 2 numbers for 1 files; give one, or one each."),
        ({"device": "a100"}, "--device: unknown device 'a100'. Did you mean 'a100-"),
        ({"link": "nvlink9"}, "--link: unknown link 'nvlink9'"),
        ({"link": "3 us"}, "--link: '3 us' is not a bandwidth"),
        ({"only": ["hop.inter.ll"]}, "--only: hop.inter.ll is not a constant of these points"),
        ({"cost": {"stages": "x"}}, "cost.stages: 'x' is not allowed"),
        ({"cost": [1]}, "cost: [1] is not a mapping; write for example {algorithms: [ring, nvls]}"),
        ({"nodes": [0]}, "--nodes 0: is not a number of 1 or more."),
        ({"links_per_node": 0}, "--links-per-node 0: is not a number of 1 or more."),
        (
            {"inter_link": "25 GB/s"},
            "--inter-link: all files are of transfers within a node; leave",
        ),
        ({"links_per_node": 2}, "--links-per-node: all files are of transfers within a node;"),
        ({"nodes": [8], "link": "9 GB/s"}, "--link: all files are of transfers between nodes;"),
        (
            {"links_per_node": 6, "nodes": [2]},
            "--links-per-node 6: is no multiple of the 4 ranks of a node; give 4 or 8.",
        ),
        ({"link": "0 GB/s"}, "--link 0 GB/s: is out of range; give for example 25 GB/s."),
        ({"link": "1e400 GB/s"}, "--link 1e400 GB/s: is out of range; give for example 25 GB/s."),
    ],
)
def test_options_that_do_not_fit_are_refused(made, options, said):
    assert said in refusal([made], **options)


def test_a_log_of_nodes_with_two_cards_per_device_counts_both(made):
    link, inter = "nvlink3", "25 GB/s"
    wirings = [
        read_measurements([made], [2], link, inter if cards == 8 else "50 GB/s", cards)
        .points[0]
        .wiring
        for cards in (8, 4)
    ]
    assert wirings[0] == wirings[1]
    assert (wirings[0].cards, wirings[0].inter_bandwidth) == (4, 4 * 50e9)


def test_a_log_that_no_known_algorithm_serves_is_refused():
    said = refusal([file("rtx2080ti-pcie3-nop2p_1x2_all_gather")], cost={"algorithms": ["tree"]})
    assert said == "cost nccl has no algorithm for all_gather; add ring to its algorithms."


def test_files_that_are_no_logs_are_all_named(tmp_path):
    for name, text in (("a.txt", "hello\n"), ("b.txt", "1,2\n")):
        (tmp_path / name).write_text(text)
    said = refusal([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert said.count("has no table of nccl-tests") == 2
    assert "calibrate nccl-tests needs a log" in refusal([])


def test_a_log_must_tell_its_ranks_and_a_collective_of_nccl(made):
    text = made.read_text()
    made.write_text(text.replace("# nranks: 8\n", ""))
    assert "lacks its number of ranks; add" in refusal([made])
    made.write_text(text.replace("all_reduce", "hypercube"))
    assert "hypercube is not one of NCCL's collectives: all_gather" in refusal([made])
