"""Machines: what a scenario takes in, and what its own keys win over."""

from pathlib import Path

import pytest
import yaml
from for_each import for_each, for_some

import simdp
from simdp.cluster.hardware import MACHINES, describe_machine, read_machine
from simdp.errors import ScenarioError
from simdp.files import read_yaml
from simdp.scenario import load_scenario
from simdp.scenario.overrides import with_machine
from simdp.scenario.placement import wiring_of

POOL = read_yaml(Path(simdp.__file__).parent / "collectives/costs/pool.yaml")

WORKLOAD = {"model": {"kind": "parameters", "num_params": 1_000_000}, "microbatch": 8}


def write(folder, file="x.yaml", /, **raw):
    path = folder / file
    path.write_text(yaml.safe_dump(raw))
    return path


def scenario(folder, overrides=None, cluster=None, **more):
    cluster = {"machine": "dgx-1", "world_size": 8, **(cluster or {})}
    return load_scenario(write(folder, cluster=cluster, workload=WORKLOAD, **more), overrides)


@pytest.mark.slow
@for_some("name", MACHINES.names(), 2)
def test_every_machine_runs_on_one_rank_one_node_and_two_nodes(name, tmp_path):
    per_node = read_machine(name, Path()).cluster.get("devices_per_node", 1)
    has_network = "inter_node" in read_machine(name, Path()).cluster
    for world_size in {1, per_node, per_node * (1 + has_network)}:
        one = scenario(tmp_path, cluster={"machine": name, "world_size": world_size})
        assert simdp.simulate(one).metrics["step_time_s"] > 0


def test_a_job_may_use_64_of_the_72_devices_of_several_racks(tmp_path):
    """A card for each device of a rack of 18 trays; two racks are two nodes."""
    sizes = {"machine": "gb200-nvl72", "devices_per_node": 64, "world_size": 128}
    found = wiring_of(scenario(tmp_path, cluster=sizes).cluster)
    assert (found.num_nodes, found.local_size, found.cards) == (2, 64, 64)
    assert (found.intra_bandwidth, found.inter_bandwidth) == (900e9, 64 * 50e9)


@for_each("name", MACHINES.names())
def test_every_figure_of_a_machine_has_a_source_and_every_interval_holds_its_constant(name):
    machine = read_machine(name, Path())
    assert machine.source
    brought = {"cluster": machine.cluster, "collectives": machine.collectives}
    calibration = machine.calibration
    for key in calibration.intervals if calibration else ():
        here = brought
        for part in key.split("."):
            here = here[int(part) if isinstance(here, list) else part]  # the constant is there
    assert "device" in describe_machine(name) or " x " in describe_machine(name)


@for_each("place", ["peer", "network"])
def test_a_site_lies_in_the_class_of_its_machines(place, tmp_path):
    for name, constants in POOL[place].items():
        for site in [*constants["share"].values(), *constants.get("flow", {}).values()]:
            for machine in site:
                per_node = read_machine(machine, Path()).cluster["devices_per_node"]
                nodes = 2 if place == "network" else 1
                size = {"machine": machine, "world_size": per_node * nodes}
                one = scenario(tmp_path, cluster=size)
                said = getattr(one.collectives.cost, place, None)
                assert (said or getattr(wiring_of(one.cluster), place)) == name, machine


def test_a_machine_brings_what_the_scenario_does_not_say(tmp_path):
    cluster = scenario(tmp_path).cluster
    assert cluster.machine == "dgx-1"
    assert cluster.devices_per_node == 8
    assert cluster.inter_node.links_per_node == 4


def test_keys_of_the_scenario_win(tmp_path):
    own = {"link": "nvlink3", "inter_node": {"links_per_node": 2}}
    cluster = scenario(tmp_path, cluster=own).cluster
    assert cluster.link.name == "nvlink3"
    assert (cluster.inter_node.links_per_node, cluster.inter_node.link.name) == (2, "ib-edr")


def test_settings_act_on_what_the_machine_brings(tmp_path):
    settings = {"cluster.link.alpha": "9 us", "cluster.machine": "dgx-2"}
    cluster = scenario(tmp_path, settings, cluster={"machine": "dgx-1"}).cluster
    assert cluster.machine == "dgx-2"
    assert cluster.link.alpha == 9e-6
    assert cluster.devices_per_node == 16


@for_each("key", ["cluster", "cluster.machine"])
def test_what_names_another_machine_leaves_nothing_of_the_first(key, tmp_path):
    """Settings, sweeps and measured points take the other machine in, whole."""
    other = {"machine": "hkbu-10gbe", "world_size": 8}
    wanted = scenario(tmp_path, cluster=other)
    value = other if key == "cluster" else other["machine"]
    points = [{"set": {key: value}, "step_time": "1 s"}]
    (measured,), _ = scenario(
        tmp_path, measured={"source": "x", "points": points}
    ).measured_scenarios()
    ((_, swept),) = scenario(tmp_path, sweep={key: [value]}).points()
    ((_, late),) = scenario(tmp_path, {f"sweep.{key}": [value], "seed": 0}).points()
    for found in (scenario(tmp_path, {key: value, "seed": 0}), measured, swept, late):
        assert found.cluster == wanted.cluster
        assert found.collectives == wanted.collectives


def test_a_key_that_says_null_stays_null(tmp_path):
    whole = {"machine": "hkbu-10gbe", "devices_per_node": None}
    one = scenario(tmp_path, cluster={**whole, "world_size": 16})
    assert one.cluster.num_nodes == 1
    assert load_scenario(write(tmp_path, "again.yaml", **one.resolved())) == one
    swept = scenario(tmp_path, cluster=whole, sweep={"cluster.world_size": [8, 16]})
    assert [point.cluster.num_nodes for _, point in swept.points()] == [1, 1]


def test_a_resolved_scenario_loads_again(tmp_path):
    first = scenario(tmp_path)
    again = load_scenario(write(tmp_path, "again.yaml", **first.resolved()))
    assert again == first


def test_machines_can_be_swept(tmp_path):
    swept = scenario(tmp_path, sweep={"cluster.machine": ["dgx-1", "dgx-a100"]})
    names = [point.cluster.link.name for _, point in swept.points()]
    assert names == ["nvlink2", "nvlink3"]
    again = load_scenario(write(tmp_path, "again.yaml", **swept.resolved()))
    assert [point for _, point in again.points()] == [point for _, point in swept.points()]


def test_a_machine_can_be_a_file_beside_the_scenario(tmp_path):
    write(
        tmp_path,
        "mine.yaml",
        cluster={"devices_per_node": 2, "device": "t4-16gb", "link": "pcie3-x16"},
        source="ours",
    )
    one = scenario(tmp_path, cluster={"machine": "mine.yaml", "world_size": 2})
    assert one.cluster.device.name == "t4-16gb"
    moved = one.resolved(tmp_path / "runs")
    assert moved["cluster"]["machine"] == "../mine.yaml"


ALL_CARDS = {"link": "efa-100g", "links_per_node": 32}


@pytest.mark.slow
@for_each(
    "collectives",
    [{"cost": {"kind": "nccl", "algorithms": ["ring", "tree", "nvls"]}}]
    + [{"cost": "links", "all_reduce": name} for name in ("ring", "hierarchical")],
)
def test_32_cards_of_a_node_are_as_fast_as_the_eight_that_stand_for_them(collectives, tmp_path):
    """Of AWS p5: a GPU sends over four cards of 100 Gbit/s, which aws-p5 has as one of 400."""
    own = {"device": "h100-sxm5-80gb", "link": "nvlink4", "devices_per_node": 8}
    times, used = [], []
    for cluster in (
        {"machine": "aws-p5"},
        {"machine": "aws-p5", "inter_node": ALL_CARDS},
        {"machine": None, **own, "inter_node": ALL_CARDS},
    ):
        run = scenario(tmp_path, None, cluster | {"world_size": 16}, collectives=collectives)
        result = simdp.simulate(run)
        times.append(result.metrics["comm_s"])
        used.append(result.network["bottleneck"]["utilization"])
    assert times == pytest.approx([times[0]] * 3, rel=1e-9)
    assert used == pytest.approx([used[0]] * 3, rel=1e-9)


def test_sixteen_cards_of_eight_a100_take_as_long_as_measured(tmp_path):
    """OCI BM.GPU.B4.8, 16 cards of 100 Gbit/s RoCE: 1 GiB on two nodes took 10.89 ms.

    Source: github.com/oracle-quickstart/oci-hpc-oke, nccl-tests with NCCL 2.29.3.
    """
    cluster = {"machine": None, "world_size": 16, "devices_per_node": 8}
    cluster |= {"device": "a100-sxm4-40gb", "link": "nvlink3"}
    cluster["inter_node"] = {"link": "roce-100g", "links_per_node": 16}
    made = scenario(tmp_path, None, cluster)
    found = made.collectives.cost.seconds("all_reduce", 2.0**30, wiring_of(made.cluster))
    assert found == pytest.approx(10.8874e-3, rel=0.1)


@for_each("way", ["file", "setting", "sweep"])
def test_a_job_on_some_devices_of_a_machines_nodes_has_the_cards_of_these(way, tmp_path):
    """DGX H100 has a card per device: two of them do not get its eight."""
    few, machine = {"cluster.devices_per_node": 2}, {"machine": "dgx-h100", "world_size": 4}
    if way == "file":
        made = scenario(tmp_path, None, machine | {"devices_per_node": 2})
    elif way == "setting":
        made = scenario(tmp_path, few, machine)
    else:
        sweep = {key: [value] for key, value in few.items()}
        ((_, made),) = scenario(tmp_path, None, machine, sweep=sweep).points()
    wiring = wiring_of(made.cluster)
    assert (wiring.num_nodes, wiring.cards, wiring.inter_bandwidth) == (2, 2, 2 * 50e9)
    both = scenario(tmp_path, few | {"cluster.inter_node.links_per_node": 4}, machine)
    assert wiring_of(both.cluster).inter_bandwidth == 4 * 50e9


def test_devices_of_a_machine_in_a_file_keep_their_share_of_its_cards(tmp_path):
    node = {"devices_per_node": 4, "device": "a100-sxm4-40gb", "link": "nvlink3"}
    node["inter_node"] = {"link": "roce-100g", "links_per_node": 8}
    write(tmp_path, "mine.yaml", cluster=node, source="ours")
    for devices in (4, 2, 1):
        few = {"machine": "mine.yaml", "world_size": 2 * devices, "devices_per_node": devices}
        assert wiring_of(scenario(tmp_path, None, few).cluster).inter_bandwidth == devices * 25e9


def test_a_cost_of_another_kind_replaces_that_of_the_machine():
    raw = {"cluster": {"machine": "dgx-1"}, "collectives": {"cost": {"kind": "links"}}}
    assert with_machine(raw, Path())["collectives"]["cost"] == {"kind": "links"}


def test_an_unknown_machine_is_named_with_those_that_there_are(tmp_path):
    with pytest.raises(
        ScenarioError, match=r"cluster\.machine: unknown machine 'dgx1'. Did you mean "
    ):
        scenario(tmp_path, cluster={"machine": "dgx1"})


def test_a_file_that_is_no_machine_is_refused(tmp_path):
    write(tmp_path, "mine.yaml", cluster={}, sauce="?")
    with pytest.raises(ScenarioError, match=r"mine\.yaml: .*unknown key 'sauce'"):
        scenario(tmp_path, cluster={"machine": "mine.yaml"})
    write(tmp_path, "mine.yaml", cluster={"machine": "dgx-1"}, source="?")
    with pytest.raises(ScenarioError, match=r"mine\.yaml: cluster: a machine cannot include anoth"):
        scenario(tmp_path, cluster={"machine": "mine.yaml"})
    (tmp_path / "mine.yaml").write_text("[1]")
    with pytest.raises(ScenarioError, match=r"mine\.yaml: is not a machine; it must be a mapping"):
        scenario(tmp_path, cluster={"machine": "mine.yaml"})
    with pytest.raises(ScenarioError, match=r"cluster\.machine: .*absent\.yaml: there is no such"):
        scenario(tmp_path, cluster={"machine": "absent.yaml"})
