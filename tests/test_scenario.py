"""Scenarios: files to values, overrides, sweeps, and everything that is refused."""

import copy
import json
from math import prod

import numpy as np
import pytest
import yaml

import simdp.scenario
from simdp.cluster.device import DEVICES
from simdp.errors import ScenarioError
from simdp.scenario import MAX_POINTS, checked, load_scenario, set_key
from simdp.strategies import STRATEGIES
from simdp.units import parse

CLUSTER = {
    "world_size": 4,
    "device": "a100-sxm4-80gb",
    "topology": "ring",
    "link": {"alpha": "5 us", "bandwidth": "25 GB/s"},
}
WORKLOAD = {
    "model": {"kind": "mlp", "widths": [4, 3]},
    "dataset": {"kind": "regression", "num_samples": 64},
    "microbatch": 8,
}
MINIMAL = {"cluster": CLUSTER, "workload": WORKLOAD}


@pytest.fixture
def load(tmp_path):
    """Write the minimal scenario with some top keys replaced, and load it with overrides."""

    def load(overrides=None, **top):
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump({**MINIMAL, **top}, sort_keys=False))
        return load_scenario(path, overrides)

    return load


@pytest.fixture
def refuse(load, tmp_path):
    """Load what must be refused; return the problems without the file that leads each line."""

    def refuse(overrides=None, **top):
        with pytest.raises(ScenarioError) as caught:
            load(overrides, **top)
        lead = f"{tmp_path / 'small.yaml'}: "
        assert all(line.startswith(lead) for line in caught.value.problems)
        return [line.removeprefix(lead) for line in caught.value.problems]

    return refuse


def sizes(scenario):
    return [point.cluster.world_size for _, point in scenario.points()]


# Loading -----------------------------------------------------------------------------------------


def test_a_minimal_scenario_gets_defaults(load):
    scenario = load()
    assert scenario.name == "small"
    assert scenario.seed == 0
    assert scenario.strategy == STRATEGIES["ddp"]()
    assert scenario.collectives.all_reduce.kind == "ring"
    assert scenario.numerics is True
    assert scenario.points() == [({}, scenario)]


def test_a_name_in_the_file_wins_over_the_files(load):
    assert load(name="other").name == "other"


@pytest.mark.parametrize("text", ["", "3", "[1, 2]", "word"])
def test_a_file_without_a_mapping_is_no_scenario(text, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    wanted = f"{path}: is not a scenario; it must be a mapping with cluster: ..."
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert str(caught.value) == wanted


def test_a_result_without_a_scenario_is_no_scenario(tmp_path):
    path = tmp_path / "result.json"
    path.write_text('{"points": []}')
    with pytest.raises(ScenarioError, match="is not a scenario"):
        load_scenario(path)


def test_the_scenario_of_a_result_loads_again(load, tmp_path):
    scenario = load(seed=3)
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"simdp": "0.1.0", "scenario": scenario.resolved(), "points": []}))
    assert load_scenario(path).resolved() == scenario.resolved()


def test_the_callers_overrides_are_left_as_they_are(load):
    overrides = {"cluster": copy.deepcopy(CLUSTER), "cluster.world_size": 2}
    load(overrides)
    assert overrides["cluster"] == CLUSTER


# Resolved ----------------------------------------------------------------------------------------

RICH = {
    "seed": 7,
    "cluster": {
        **CLUSTER,
        "devices_per_node": 2,
        "link": "nvlink3",
        "inter_node": {"link": "ib-hdr", "links_per_node": 2},
        "stragglers": [
            {"kind": "slow_rank", "rank": 3, "factor": 1.5},
            {"kind": "lognormal", "sigma": 0.1},
            {"kind": "pause", "rank": 0, "every": "1 s", "duration": "10 ms"},
            {"kind": "pause", "rank": 0, "every": 3, "duration": "10 ms"},
        ],
    },
    "workload": {
        **WORKLOAD,
        "optimizer": {"kind": "adam", "betas": [0.9, 0.98]},
        "grad_accum": 2,
        "epochs": 2,
        "shuffle": True,
    },
    "strategy": {"kind": "ddp", "bucket_cap": "25 MiB"},
    "collectives": {"all_reduce": "tree"},
    "sweep": {"cluster.world_size": [2, 4], "strategy.overlap": [True, False]},
}


def numbers_and_texts(value, path=""):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers_and_texts(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers_and_texts(inner, f"{path}.{index}")
    else:
        yield path, value


@pytest.mark.parametrize("raw", [MINIMAL, RICH], ids=["minimal", "rich"])
def test_what_is_resolved_loads_again_and_is_equal(raw, load):
    scenario = load(**raw)
    resolved = scenario.resolved()
    again = checked(copy.deepcopy(resolved), scenario.base)
    assert again.resolved() == resolved
    assert again == scenario


def test_what_is_resolved_survives_json_and_yaml(load):
    resolved = load(**RICH).resolved()
    assert json.loads(json.dumps(resolved)) == resolved
    assert yaml.safe_load(yaml.safe_dump(resolved)) == resolved


def test_quantities_are_resolved_with_their_units(load):
    resolved = dict(numbers_and_texts(load(**RICH).resolved()))
    assert resolved["cluster.device.memory"] == "80 GB"
    assert resolved["cluster.device.peak.float32"] == "19.5 TFLOP/s"
    assert parse(resolved["cluster.link.bandwidth"], "bandwidth") == 300e9
    assert resolved["cluster.inter_node.link.alpha"].endswith("s")
    assert resolved["cluster.stragglers.2.every"] == "1 s"
    assert resolved["cluster.stragglers.3.every"] == 3
    assert resolved["strategy.bucket_cap"] == "25 MiB"
    assert resolved["collectives.all_reduce.chunk_size"].endswith("iB")


@pytest.mark.parametrize("how", ["workload", "override", "sweep", "sweep of a part"])
def test_no_absolute_path_is_resolved(how, load, tmp_path):
    np.savez(tmp_path / "w.npz", **WEIGHTS)
    np.savez(tmp_path / "data.npz", x=np.zeros((8, 4)), y=np.zeros((8, 3)))
    data = {"kind": "npz", "path": str(tmp_path / "data.npz")}
    weights = str(tmp_path / "w.npz")
    scenario = {
        "workload": lambda: load(workload={**WORKLOAD, "dataset": data, "weights": weights}),
        "override": lambda: load({"workload.dataset": data, "workload.weights": weights}),
        "sweep": lambda: load(sweep={"workload.dataset": [data]}),
        "sweep of a part": lambda: load(sweep={"workload.weights": [weights]}),
    }[how]()
    for _, value in numbers_and_texts(scenario.resolved()):
        assert not str(value).startswith("/")
    assert all(point.workload.problems(point.base) == [] for _, point in scenario.points())


# Overrides ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "key", "value", "expected"),
    [
        ({}, "a.b.c", 1, {"a": {"b": {"c": 1}}}),
        ({"a": {"b": 1, "c": 2}}, "a.b", 3, {"a": {"b": 3, "c": 2}}),
        ({"a": [{"b": 1}, {"b": 2}]}, "a.1.b", 3, {"a": [{"b": 1}, {"b": 3}]}),
        ({"a": [1, 2]}, "a.0", 3, {"a": [3, 2]}),
        ({"a": None}, "a.b", 1, {"a": {"b": 1}}),
        ({"a": False}, "a.b", 1, {"a": {"b": 1}}),
        ({"a": "ring"}, "a.chunking", "gloo", {"a": {"kind": "ring", "chunking": "gloo"}}),
        ({"a": "ring"}, "a.kind", "ring", {"a": {"kind": "ring"}}),
        ({"a": {"kind": "x", "o": 1}}, "a.kind", "y", {"a": {"kind": "y"}}),
        ({"a": {"kind": "x", "o": 1}}, "a.kind", "x", {"a": {"kind": "x", "o": 1}}),
        ({"a": {"kind": "x", "o": 1}}, "a", "y", {"a": "y"}),
    ],
)
def test_a_key_is_set_in_place(raw, key, value, expected):
    set_key(raw, key, value)
    assert raw == expected


def test_a_value_that_is_set_is_a_copy():
    value = [1]
    raw = {}
    set_key(raw, "a", value)
    value.append(2)
    assert raw == {"a": [1]}


@pytest.mark.parametrize(
    ("raw", "key", "message"),
    [
        ({"a": 3}, "a.b", "a.b: a is 3, which has no keys inside."),
        ({"a": {"b": 2.5}}, "a.b.c.d", "a.b.c.d: a.b is 2.5, which has no keys inside."),
        (
            {"a": [1, 2]},
            "a.2",
            "a.2: the list has 2 entries, so '2' is none; count from 0.",
        ),
        (
            {"a": [{}]},
            "a.first.b",
            "a.first.b: the list has 1 entries, so 'first' is none; count from 0.",
        ),
        ({"a": [1]}, "a.-1", "a.-1: the list has 1 entries, so '-1' is none; count from 0."),
        ({"a": [1]}, "a.²", "a.²: the list has 1 entries, so '²' is none; count from 0."),
    ],
)
def test_a_key_that_leads_nowhere_is_refused(raw, key, message):
    with pytest.raises(ScenarioError) as caught:
        set_key(raw, key, 1)
    assert str(caught.value) == message


def test_an_override_of_a_catalogue_part_keeps_its_other_figures(load):
    scenario = load({"cluster.device.memory": "1 GB", "cluster.link.alpha": "1 us"}, **RICH)
    device, link = scenario.cluster.device, scenario.cluster.link
    assert device.memory == 1e9
    assert device.peak["float32"] == 19.5e12
    assert (link.alpha, link.bandwidth) == (1e-6, 300e9)


def test_an_override_reaches_one_device_of_a_list(load):
    devices = ["t4-16gb", "a100-sxm4-80gb", "t4-16gb", "t4-16gb"]
    scenario = load({"cluster.device": devices, "cluster.device.1.memory": "1 GB"})
    assert [device.memory for device in scenario.cluster.devices()] == [16e9, 1e9, 16e9, 16e9]


def test_an_override_expands_a_short_form(load):
    scenario = load({"collectives.all_reduce": "ring", "collectives.all_reduce.chunking": "gloo"})
    assert scenario.collectives.all_reduce.chunking == "gloo"


def test_a_new_kind_drops_the_options_of_the_old_one(load):
    workload = {**WORKLOAD, "optimizer": {"kind": "sgd", "lr": 0.5, "momentum": 0.9}}
    scenario = load({"workload.optimizer.kind": "adam"}, workload=workload)
    assert scenario.workload.optimizer.kind == "adam"
    assert scenario.workload.optimizer.lr == 1e-3


def test_options_that_follow_a_new_kind_are_kept(load):
    overrides = {"workload.optimizer.kind": "adam", "workload.optimizer.lr": 0.25}
    assert load(overrides).workload.optimizer.lr == 0.25


def test_an_override_reaches_an_entry_of_a_list(load):
    assert load({"cluster.stragglers.0.factor": 2}, **RICH).cluster.stragglers[0].factor == 2


def test_an_override_that_leads_nowhere_names_the_file(refuse):
    assert refuse({"cluster.world_size.x": 1}) == [
        "cluster.world_size.x: cluster.world_size is 4, which has no keys inside."
    ]


# Sweeps ------------------------------------------------------------------------------------------


def test_a_sweep_is_a_grid_whose_last_key_runs_fastest(load):
    scenario = load(
        sweep={"cluster.world_size": [1, 2], "workload.microbatch": [8, 16], "seed": [0, 1, 2]}
    )
    points = scenario.points()
    assert len(points) == prod((2, 2, 3))
    assert [list(chosen.values()) for chosen, _ in points][:4] == [
        [1, 8, 0],
        [1, 8, 1],
        [1, 8, 2],
        [1, 16, 0],
    ]
    for chosen, point in points:
        assert point.cluster.world_size == chosen["cluster.world_size"]
        assert point.workload.microbatch == chosen["workload.microbatch"]
        assert point.seed == chosen["seed"]
        assert point.sweep == {}
        assert point.base == scenario.base


def test_a_sweep_may_give_a_key_that_the_file_lacks(load):
    cluster = {key: value for key, value in CLUSTER.items() if key != "world_size"}
    scenario = load(cluster=cluster, sweep={"cluster.world_size": [1, 2, 8]})
    assert sizes(scenario) == [1, 2, 8]


def test_a_sweep_goes_over_kinds_and_catalogue_names(load):
    sweep = {
        "collectives.all_reduce.kind": ["ring", "tree"],
        "cluster.device": ["t4-16gb", "a100-sxm4-80gb"],
    }
    found = [
        (point.collectives.all_reduce.kind, point.cluster.device.name)
        for _, point in load(sweep=sweep, collectives={"all_reduce": "ring"}).points()
    ]
    assert found == [
        (kind, name) for kind in ("ring", "tree") for name in ("t4-16gb", "a100-sxm4-80gb")
    ]


def test_a_straggler_is_idle_where_its_rank_does_not_exist(load):
    slow = [{"kind": "slow_rank", "rank": rank, "factor": 2} for rank in (0, 3)]
    scenario = load(
        cluster={**CLUSTER, "stragglers": slow}, sweep={"cluster.world_size": [1, 2, 4]}
    )
    assert [len(point.cluster.stragglers) for _, point in scenario.points()] == [1, 1, 2]


@pytest.mark.parametrize(
    ("sweep", "largest"), [({}, 4), ({"cluster.world_size": [1, 2]}, 2), ({"seed": [1]}, 4)]
)
def test_a_straggler_exists_at_the_largest_world_size(sweep, largest, refuse):
    slow = {"kind": "slow_rank", "rank": 4, "factor": 2}
    cluster = {**CLUSTER, "stragglers": [{"kind": "lognormal", "sigma": 0.1}, slow]}
    assert refuse(cluster=cluster, sweep=sweep) == [
        f"cluster.stragglers.1.rank: rank 4 does not exist; the largest world_size is {largest}, "
        f"so ranks are 0 ... {largest - 1}."
    ]


def test_a_wrong_point_is_named(refuse):
    assert refuse(sweep={"cluster.world_size": [2, 0], "seed": [1, 2]}) == [
        f"with cluster.world_size=0, seed={seed}: "
        "cluster.world_size: 0 is out of range; it must be >= 1."
        for seed in (1, 2)
    ]


def test_a_point_whose_parts_do_not_fit_is_named(refuse):
    cluster = {**CLUSTER, "devices_per_node": 4}
    (line,) = refuse(cluster=cluster, sweep={"cluster.world_size": [2, 4, 8]})
    assert line == (
        "with cluster.world_size=8: cluster: world_size 8 needs 2 nodes, but there is no "
        "inter_node network; add inter_node: {topology: switch, link: ib-hdr}."
    )


@pytest.mark.parametrize(
    ("sweep", "line"),
    [
        (
            [1],
            "sweep: [1] is not a mapping; write sweep: {cluster.world_size: [1, 2]}.",
        ),
        ({"seed": 1}, "sweep.seed: 1 is not a list of values; write for example [1]."),
        ({"seed": []}, "sweep.seed: [] is not a list of values; write for example [1]."),
        (
            {"name": ["a"]},
            "sweep.name: cannot be swept; sweep a key of cluster, workload, ...",
        ),
        (
            {"sweep.seed": [1]},
            "sweep.sweep.seed: cannot be swept; sweep a key of cluster, workload, ...",
        ),
        (
            {"seed": list(range(101)), "cluster.world_size": list(range(100))},
            f"sweep: makes 10100 points; at most {MAX_POINTS} are allowed.",
        ),
        ({"sede": [1]}, None),
        ({"cluster.stragglers.0.factor": [1]}, None),
    ],
)
def test_a_wrong_sweep_is_refused(sweep, line, refuse):
    found = refuse(sweep=sweep)
    assert line is None or found == [line]


@pytest.mark.parametrize("values", [["four"], [None], [[1]]])
def test_a_sweep_over_what_is_no_world_size_is_refused(values, refuse):
    (line,) = refuse(sweep={"cluster.world_size": values})
    assert line.endswith(f"cluster.world_size: {values[0]!r} is not a whole number.")


def test_a_sweep_over_a_key_that_is_no_word_is_refused(refuse):
    assert refuse(sweep={3: [1]})


# Refusals ----------------------------------------------------------------------------------------


def test_all_problems_are_reported_together(refuse):
    cluster = {**CLUSTER, "link": {"alpha": 5, "bandwith": "25 GB/s"}, "topology": "rign"}
    workload = {**WORKLOAD, "weights": "none.npz", "optimiser": "adam"}
    lines = refuse(cluster=cluster, workload=workload, seed=-1, strategie="ddp")
    starts = [
        "unknown key 'strategie'; known: name, seed, ",
        "seed: -1 is out of range; it must be >= 0.",
        "cluster.topology: unknown topology 'rign'; known: full_mesh, ring, switch. Did you mean ",
        "cluster.link: unknown key 'bandwith'; known: name, alpha, bandwidth, ",
        "cluster.link.alpha: 5 has no unit; ",
        "cluster.link.bandwidth: is required ",
        "workload: unknown key 'optimiser'; known: ",
    ]
    assert len(lines) == len(starts)
    for start in starts:
        assert sum(line.startswith(start) for line in lines) == 1, start


def test_wrong_files_are_reported_beside_wrong_keys(refuse):
    lines = refuse({"workload.weights": "none.npz", "cluster.world_size": 0})
    assert len(lines) == 2
    assert "world_size: 0 is out of range" in lines[0]
    assert "none.npz: there is no such file." in lines[1]


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({"seed": 2**63}, f"seed: {2**63} is out of range; it must be < {2**63}."),
        ({"seed": 1.5}, "seed: 1.5 is not a whole number."),
        ({"name": 3}, "name: 3 is not a text."),
        ({"numerics": "perhaps"}, "numerics: 'perhaps' is not true or false."),
        ({"cluster": None}, "cluster: None is not a mapping of keys to values."),
        ({"cluster": [1]}, "cluster: [1] is not a mapping of keys to values."),
        ({"strategy": "dpd"}, "strategy: unknown strategy 'dpd'; known: "),
        ({"strategy": 3}, "strategy: 3 is not a strategy; known: "),
        (
            {"strategy": "single"},
            "strategy.kind: single trains on one device, but cluster.world_size is 4; "
            "set it to 1, or use strategy: ddp.",
        ),
        (
            {"strategy": {"kind": "ddp", "bucket_cap": 25}},
            'strategy.bucket_cap: 25 has no unit; write for example "25 MiB".',
        ),
        (
            {"collectives": {"all_reduce": "rign"}},
            "collectives.all_reduce: unknown all_reduce 'rign'; known: naive, ring, tree. "
            "Did you mean 'ring'?",
        ),
        (
            {"cluster.device.peak": {"float64": "1 TFLOP/s"}},
            "cluster.device.peak: has no float32, the workload's dtype; known: float64.",
        ),
        (
            {
                "cluster.device": ["t4-16gb", "a100-sxm4-80gb", "t4-16gb", "t4-16gb"],
                "workload.dtype": "float64",
                "cluster.device.2": {
                    "peak": {"float32": "1 TFLOP/s"},
                    "memory": "1 GB",
                    "memory_bandwidth": "1 GB/s",
                },
                "cluster.device.0": "a100-sxm4-80gb",
                "cluster.device.3": "a100-sxm4-80gb",
            },
            "cluster.device.2.peak: has no float64, the workload's dtype; known: float32.",
        ),
        (
            {"workload.microbatch": None, "workload.global_batch": 3},
            "workload.global_batch: 3 samples cannot feed 4 ranks; use 4 or more.",
        ),
        (
            {"workload.global_batch": 8},
            "workload: microbatch and global_batch are both given; keep one of them.",
        ),
        (
            {"workload.microbatch": None},
            "workload: microbatch is required but was not given; add microbatch: 32, samples per "
            "rank and micro-step, or global_batch: 256, cut over the ranks.",
        ),
        (
            {"workload.grad_accum": [4, 4]},
            "workload: microbatch and a list of grad_accum both give the sizes of micro-steps; "
            "leave microbatch out.",
        ),
        (
            {"workload.epochs": 1, "workload.steps": 1},
            "workload: epochs and steps are both given; keep one of them.",
        ),
        (
            {
                "workload.microbatch": None,
                "workload.global_batch": 32,
                "workload.grad_accum": [4, 5],
            },
            "workload.grad_accum: [4, 5] sums to 9, but each rank gets 8 of the 32 samples; "
            "make the sums equal.",
        ),
        (
            {"workload.drop_last": True, "workload.microbatch": 17},
            "workload.drop_last: leaves nothing, since one step takes 68 samples and the dataset "
            "has 64.",
        ),
        (
            {"workload.microbatch": 0},
            "workload.microbatch: 0 is out of range; it must be >= 1.",
        ),
        ({"workload.grad_accum": 0}, "workload.grad_accum: 0 is out of range; it must be >= 1."),
        (
            {"workload.microbatch": None, "workload.grad_accum": []},
            "workload.grad_accum: [] has too few entries; it needs at least 1.",
        ),
        (
            {"workload.microbatch": None, "workload.grad_accum": [2, 0]},
            "workload.grad_accum.1: 0 is out of range; it must be >= 1.",
        ),
        ({"workload.grad_accum": "2"}, "workload.grad_accum: '2' is not a whole number."),
        ({"workload.shuffle": "perhaps"}, "workload.shuffle: "),
        (
            {"workload.shuffle": {"file": "a", "path": "b"}},
            "workload.shuffle: unknown key 'file'; known: path.",
        ),
        ({"workload.dtype": "float16"}, "workload.dtype: 'float16' is not allowed; known: "),
        ({"workload.mode": "inference"}, "workload.mode: 'inference' is not allowed; known: "),
        ({"workload.model": None}, "workload.model: unknown model 'none'; known: "),
        (
            {"workload.model.widths": [4]},
            "workload.model.widths: [4] has too few entries; it needs at least 2.",
        ),
        (
            {"workload.model.widths": [4, 0]},
            "workload.model.widths.1: 0 is out of range; it must be >= 1.",
        ),
        (
            {"workload.model.activation": "rellu"},
            "workload.model.activation: unknown activation 'rellu'; known: gelu, relu, tanh. "
            "Did you mean 'relu'?",
        ),
        (
            {"workload.optimizer": {"kind": "sgd", "nesterov": True}},
            "workload.optimizer: nesterov needs a momentum above 0 and no dampening; "
            "set momentum: 0.9.",
        ),
        (
            {"workload.optimizer": {"kind": "adam", "betas": [0.9, 1.0]}},
            "workload.optimizer.betas.1: 1.0 is out of range; it must be < 1.0.",
        ),
        (
            {"workload.optimizer": {"kind": "adamw", "lr": "1e-3 x"}},
            "workload.optimizer.lr: '1e-3 x' is not a number.",
        ),
        (
            {"workload.dataset": {"kind": "blobs", "num_samples": 0}},
            "workload.dataset.num_samples: 0 is out of range; it must be >= 1.",
        ),
        (
            {"workload.dataset": "blobs"},
            "workload.dataset: blobs does not suit the loss mse: y has shape (1,), "
            "but the model makes (3,) of each sample; give y the shape (1, 3).",
        ),
        (
            {"workload.loss": "cross_entropy"},
            "workload.dataset: regression does not suit the loss cross_entropy: y has shape "
            "(1, 3), but cross_entropy needs class indices (1,).",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(overrides, line, refuse):
    found = refuse(overrides)
    assert len(found) == 1
    assert found[0] == line or (line[-1] not in ".?" and found[0].startswith(line))


@pytest.mark.parametrize("name", ["a/b", "", "..", "-x", "a b"])
def test_a_name_must_do_for_a_file(name, refuse):
    (line,) = refuse(name=name)
    assert line.startswith(f"name: {name!r}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("workload.shuffle", 3),
        ("workload.shuffle", [1]),
        ("workload.shuffle", "yes"),
        ("workload.grad_accum", True),
        ("workload.grad_accum", {"path": "a.npz"}),
    ],
)
def test_a_value_of_another_keys_form_is_refused(key, value, refuse):
    (line,) = refuse({key: value})
    assert line.startswith(key)


@pytest.mark.parametrize("key", ["workload.microbatch", "workload.grad_accum"])
def test_an_absurdly_large_count_is_refused(key, refuse):
    assert refuse({key: 10**30})


def test_an_absurdly_large_model_is_refused(refuse):
    assert refuse({"workload.model.widths": [10**12, 10**12]})


# Memory ------------------------------------------------------------------------------------------


@pytest.fixture
def small_machine(monkeypatch):
    monkeypatch.setattr(simdp.scenario, "host_memory", lambda: 2e9)


def test_arrays_that_this_machine_cannot_hold_are_refused(small_machine, refuse):
    (line,) = refuse({"workload.model.widths": [4, *[1000] * 100, 3]})
    assert line.startswith("numerics: the arrays of 4 ranks need ")
    assert line.endswith(
        " GB, but this machine has 2 GB; set numerics: false to simulate the time alone."
    )


def test_time_alone_needs_no_arrays(small_machine, load):
    assert not load({"workload.model.widths": [4, *[1000] * 100, 3], "numerics": False}).numerics


def test_what_fits_this_machine_is_allowed(small_machine, load):
    load({"workload.model.widths": [1000, 1000]})


# Files -------------------------------------------------------------------------------------------

WEIGHTS = {"layers.0.weight": np.zeros((3, 4)), "layers.0.bias": np.zeros(3)}
NPZ = {"kind": "npz", "path": "data.npz"}


@pytest.mark.parametrize(
    "overrides",
    [
        {"workload.dataset": {"kind": "npz", "path": "none.npz"}},
        {"workload.weights": "none.npz"},
        {"workload.shuffle": {"path": "none.npz"}},
    ],
    ids=str,
)
def test_a_missing_file_is_reported_once_at_its_key(overrides, refuse, tmp_path):
    (line,) = refuse(overrides)
    (key,) = overrides
    assert line.startswith(f"{key}")
    assert line.endswith(f"{tmp_path / 'none.npz'}: there is no such file.")


def test_a_file_that_is_no_npz_is_refused(refuse, tmp_path):
    (tmp_path / "data.npz").write_text("x, y")
    (line,) = refuse({"workload.dataset": NPZ})
    assert line.startswith("workload")
    assert line.endswith(f"{tmp_path / 'data.npz'}: is not an npz file of arrays.")


def test_paths_start_from_the_scenario_file(load, tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((8, 4)), y=np.zeros((8, 3)))
    np.savez(tmp_path / "w.npz", **WEIGHTS)
    np.savez(tmp_path / "order.npz", np.arange(8))
    scenario = load(
        {
            "workload.dataset": NPZ,
            "workload.weights": "w.npz",
            "workload.shuffle": {"path": "order.npz"},
        }
    )
    assert scenario.base == tmp_path
    assert scenario.workload.dataset.length(scenario.base) == 8


@pytest.mark.parametrize(
    ("arrays", "loss", "said"),
    [
        ({"x": np.zeros((8, 4))}, "mse", "has no array 'y'; it holds x; store x and y."),
        ({"y": np.zeros((8, 3))}, "mse", "has no array 'x'; it holds y; store x and y."),
        ({}, "mse", "has no array 'x'; it holds nothing; store x and y."),
        (
            {"x": np.zeros((8, 4)), "y": np.zeros((7, 3))},
            "mse",
            "x has shape (8, 4) and y (7, 3); give both as many samples.",
        ),
        (
            {"x": np.zeros((0, 4)), "y": np.zeros((0, 3))},
            "mse",
            "x has shape (0, 4) and y (0, 3); give both as many samples.",
        ),
        (
            {"x": np.float64(1), "y": np.float64(1)},
            "mse",
            "x has shape () and y (); give both as many samples.",
        ),
        (
            {"x": np.zeros((8, 5)), "y": np.zeros((8, 3))},
            "mse",
            "x has shape (8, 5), but the model takes samples of shape (4,).",
        ),
        (
            {"x": np.zeros((8, 4), int), "y": np.zeros((8, 3))},
            "mse",
            "x is int64 or has values that are not finite; give finite floats.",
        ),
        (
            {"x": np.full((8, 4), np.nan), "y": np.zeros((8, 3))},
            "mse",
            "x is float64 or has values that are not finite; give finite floats.",
        ),
        (
            {"x": np.zeros((8, 4)), "y": np.zeros((8, 2))},
            "mse",
            "y has shape (8, 2), but the model makes (3,) of each sample; give y the shape (8, 3).",
        ),
        (
            {"x": np.zeros((8, 4)), "y": np.full((8, 3), np.inf)},
            "mse",
            "y is float64 or has values that are not finite; give finite floats.",
        ),
        (
            {"x": np.zeros((8, 4)), "y": np.zeros((8, 1), int)},
            "cross_entropy",
            "y has shape (8, 1), but cross_entropy needs class indices (8,).",
        ),
        (
            {"x": np.zeros((8, 4)), "y": np.zeros(8)},
            "cross_entropy",
            "y is float64, but cross_entropy needs class indices: whole numbers.",
        ),
        (
            {"x": np.zeros((8, 4)), "y": np.arange(8)},
            "cross_entropy",
            "y holds labels 0 ... 7, but the model tells 3 classes apart; "
            "labels must be 0 ... 2 or ignore_index -100.",
        ),
        (
            {"x": np.zeros((8, 4)), "y": np.full(8, -1)},
            "cross_entropy",
            "y holds labels -1 ... -1, but the model tells 3 classes apart; "
            "labels must be 0 ... 2 or ignore_index -100.",
        ),
    ],
)
def test_wrong_data_is_refused(arrays, loss, said, refuse, tmp_path):
    np.savez(tmp_path / "data.npz", **arrays)
    (line,) = refuse({"workload.dataset": NPZ, "workload.loss": loss})
    assert line.startswith("workload")
    assert line.endswith(f"{tmp_path / 'data.npz'}: {said}")


@pytest.mark.parametrize(
    "x", [np.full((8, 4), "a"), np.ones((8, 4), complex)], ids=["text", "complex"]
)
def test_data_that_are_no_real_numbers_are_refused(x, refuse, tmp_path):
    np.savez(tmp_path / "data.npz", x=x, y=np.zeros((8, 3)))
    (line,) = refuse({"workload.dataset": NPZ})
    assert "x is " in line


def test_ignored_labels_are_allowed(load, tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((8, 4)), y=np.array([0, 1, 2, -100] * 2))
    load({"workload.dataset": NPZ, "workload.loss": "cross_entropy"})


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (
            {"layers.0.weight": np.zeros((3, 4))},
            "has no 'layers.0.bias' of shape (3,).",
        ),
        ({**WEIGHTS, "extra": np.zeros(1)}, "has 'extra', which the model lacks."),
        (
            {**WEIGHTS, "layers.0.weight": np.zeros((4, 3))},
            "has 'layers.0.weight' of shape (4, 3), the model needs (3, 4).",
        ),
        (
            {"a": np.zeros(1), "b": np.zeros(1)},
            "has no 'layers.0.weight' of shape (3, 4); has no 'layers.0.bias' of shape (3,); "
            "has 'a', which the model lacks (and 1 more).",
        ),
    ],
)
def test_wrong_weights_are_refused(arrays, said, refuse, tmp_path):
    np.savez(tmp_path / "w.npz", **arrays)
    assert refuse({"workload.weights": "w.npz"}) == [
        f"workload.weights: {tmp_path / 'w.npz'}: {said}"
    ]


@pytest.mark.parametrize("bad", [np.full(3, "a"), np.ones(3, complex)], ids=["text", "complex"])
def test_weights_that_are_no_real_numbers_are_refused(bad, refuse, tmp_path):
    np.savez(tmp_path / "w.npz", **{**WEIGHTS, "layers.0.bias": bad})
    (line,) = refuse({"workload.weights": "w.npz"})
    assert "layers.0.bias" in line


@pytest.mark.parametrize(
    "arrays",
    [
        {"a": np.arange(63)},
        {"a": np.zeros(64)},
        {"a": np.arange(64) + 1},
        {"a": np.stack([np.arange(64), np.zeros(64)])},
        {"a": np.arange(64).reshape(1, 1, 64)},
        {"a": np.full(64, "a")},
        {"a": np.zeros((0, 64))},
        {"a": np.arange(64), "b": np.arange(64)},
        {},
    ],
)
def test_what_is_no_permutation_is_refused(arrays, refuse, tmp_path):
    np.savez(tmp_path / "order.npz", **arrays)
    (line,) = refuse({"workload.shuffle": {"path": "order.npz"}})
    assert line.startswith("workload")
    assert line.endswith(
        f"{tmp_path / 'order.npz'}: is no order of the data set; store one array of shape (64,) "
        "or (epochs, 64), each row a permutation of 0 ... 63."
    )


def test_every_catalogue_device_makes_a_scenario(load):
    for name in DEVICES.names():
        assert load({"cluster.device": name}).cluster.device.name == name
