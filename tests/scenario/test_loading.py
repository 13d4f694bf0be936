"""Scenarios: files to values, written out again, and everything that is refused."""

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from for_each import for_each
from small_scenario import CLUSTER, MINIMAL, RICH, WEIGHTS, WORKLOAD

import simdp.scenario
from simdp.cluster import Cluster
from simdp.cluster.hardware import DEVICES
from simdp.errors import ScenarioError
from simdp.scenario import checked, load_scenario
from simdp.spec import OTHER_NAMES
from simdp.strategies import STRATEGIES
from simdp.units import parse
from simdp.workload import Workload, workload_problems
from simdp.workload.layers.activations import ACTIVATIONS

pytestmark = pytest.mark.slow

# Loading -----------------------------------------------------------------------------------------


def test_a_minimal_scenario_gets_defaults(load):
    scenario = load()
    assert scenario.name == "small"
    assert scenario.seed == 0
    assert scenario.strategy == STRATEGIES["ddp"]()
    assert scenario.collectives.all_reduce.kind == "ring"
    assert scenario.numerics is True
    assert scenario.points() == [({}, scenario)]


def test_a_copy_with_other_parts_keeps_the_folder_that_paths_start_from(load):
    scenario = load()
    assert scenario.model_copy(update={"numerics": False}).base == scenario.base != Path()


def test_a_name_in_the_file_wins_over_the_files(load):
    assert load(name="other").name == "other"


@for_each("text", ["", "3", "[1, 2]", "word"])
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


def numbers_and_texts(value, path=""):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers_and_texts(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers_and_texts(inner, f"{path}.{index}")
    else:
        yield path, value


@for_each("raw", [MINIMAL, RICH], ids=["minimal", "rich"])
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


def test_a_device_and_a_link_are_resolved_without_their_source(load):
    assert not [
        key for key, _ in numbers_and_texts(load(**RICH).resolved()) if "source" in key.split(".")
    ]


@for_each(
    ("key", "options", "kind"),
    [
        ("strategy", {"overlap": False}, "ddp"),
        ("workload.optimizer", {"lr": 0.5}, "sgd"),
        ("workload.loss", {}, "mse"),
        ("cluster.topology", {}, "switch"),
        ("collectives.all_reduce", {"chunking": "gloo"}, "ring"),
        ("collectives.broadcast", {}, "ring"),
    ],
)
def test_options_alone_are_those_of_the_default_kind(key, options, kind, load):
    found = load({key: options})
    for part in key.split("."):
        found = getattr(found, part)
    assert found.kind == kind
    for name, value in options.items():
        assert getattr(found, name) == value


@for_each("key", ["workload.model", "workload.dataset"])
def test_a_part_without_a_default_needs_its_kind(key, refuse):
    (line,) = refuse({key: {}})
    assert line.startswith(f"{key}: this {key.split('.')[1]} has no kind; known: ")


def test_quantities_are_resolved_with_their_units(load):
    resolved = dict(numbers_and_texts(load(**RICH).resolved()))
    assert resolved["cluster.device.memory"] == "79.15 GiB"
    assert resolved["cluster.device.peak.float32"] == "19.5 TFLOP/s"
    assert parse(resolved["cluster.link.bandwidth"], "bandwidth") == 300e9
    assert resolved["cluster.inter_node.link.alpha"].endswith("s")
    assert resolved["cluster.stragglers.2.every"] == "1 s"
    assert resolved["cluster.stragglers.3.every"] == 3
    assert resolved["strategy.bucket_cap"] == "25 MiB"
    assert resolved["collectives.all_reduce.chunk_size"].endswith("iB")


@for_each("how", ["workload", "override", "sweep", "sweep of a part"])
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
    assert all(workload_problems(p.workload, p.base) == [] for _, p in scenario.points())


# Refusals ----------------------------------------------------------------------------------------


def test_all_problems_are_reported_together(refuse):
    cluster = {**CLUSTER, "link": {"alpha": 5, "bandwith": "25 GB/s"}, "topology": "rign"}
    workload = {**WORKLOAD, "weights": "none.npz", "optimiser": "adam"}
    lines = refuse(cluster=cluster, workload=workload, seed=-1, strategie="ddp")
    starts = [
        "unknown key 'strategie'. Did you mean 'strategy'? Known: name, seed, ",
        "seed: -1 is out of range; it must be >= 0.",
        "cluster.topology: unknown topology 'rign'. Did you mean 'ring'? Known: cube_mesh, ",
        "cluster.link: unknown key 'bandwith'. Did you mean 'bandwidth'? Known: ",
        "cluster.link.alpha: 5 has no unit; ",
        "cluster.link.bandwidth: is required ",
        "workload: unknown key 'optimiser'. Did you mean 'optimizer'? ",
        "workload.weights: ",
    ]
    assert len(lines) == len(starts)
    for start in starts:
        assert sum(line.startswith(start) for line in lines) == 1, start


def test_the_loss_suits_the_dataset_where_none_is_named(load):
    assert load({"workload.dataset": "blobs"}).workload.loss.kind == "cross_entropy"
    assert load({"workload.dataset": "regression"}).workload.loss.kind == "mse"


def test_problems_behind_problems_are_reported_too(refuse):
    lines = refuse(
        {
            "workload.optimizer.lr": -1,
            "workload.microbatch": None,
            "workload.global_batch": 1,
            "workload.weights": "none.npz",
            "cluster.stragglers": [{"kind": "slow_rank", "rank": 30, "factor": 2}],
            "cluster.devices_per_node": 3,
        }
    )
    for part in ("lr: -1 is out", "none.npz: there is no such file", "nor a multiple of devices"):
        assert sum(part in line for line in lines) == 1, part


def test_what_was_taken_out_is_not_missed(refuse):
    assert refuse({"workload.microbatch": -1}) == [
        "workload.microbatch: -1 is out of range; it must be >= 1."
    ]
    assert refuse({"workload.shuffle": {"file": "a"}}) == [
        "workload.shuffle: unknown key 'file'; known: path.",
        "workload.shuffle.path: is required but was not given; add it.",
    ]


def test_wrong_files_are_reported_beside_wrong_keys(refuse):
    lines = refuse({"workload.weights": "none.npz", "cluster.world_size": 0})
    assert len(lines) == 2
    assert "world_size: 0 is out of range" in lines[0]
    assert "none.npz: there is no such file." in lines[1]


@for_each(
    ("overrides", "line"),
    [
        ({"seed": 2**63}, f"seed: {2**63} is out of range; it must be < {2**63}."),
        ({"seed": 1.5}, "seed: 1.5 is not a whole number."),
        ({"seed": True}, "seed: True is not a whole number."),
        ({"workload.microbatch": 64.0}, "workload.microbatch: 64.0 is not a whole number."),
        ({"numerics": 1}, "numerics: 1 is not true or false."),
        ({"strategy.overlap": "yes"}, "strategy.overlap: 'yes' is not true or false."),
        ({"name": 3}, "name: 3 is not a text."),
        ({"numerics": "perhaps"}, "numerics: 'perhaps' is not true or false."),
        ({"cluster": None}, "cluster: None is not a mapping of keys to values."),
        ({"cluster": [1]}, "cluster: [1] is not a mapping of keys to values."),
        ({"strategy": "dpd"}, "strategy: unknown strategy 'dpd'. Did you mean 'ddp'? Known: "),
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
            "collectives.all_reduce: unknown all_reduce 'rign'. Did you mean 'ring'? Known: auto, "
            "bidirectional_ring, binary_tree, direct, double_binary_tree, halving_doubling, "
            "hierarchical, msccl, multi_ring, naive, ... and 6 more: simdp list all_reduce.",
        ),
        (
            {"cluster.device.efficiency": 0.5, "cluster.device.peak": {"float64": "1 TFLOP/s"}},
            "cluster.device.peak: has no float32, which the workload computes in; known: float64.",
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
            "cluster.device.2.peak: has no float64, which the workload computes in; "
            "known: float32.",
        ),
        (
            {"workload.compute": {"kind": "roofline", "float8": {}}},
            "workload.compute.float8: no linear layer that it covers runs in 16 bits; set "
            "workload.precision: amp or a strategy's param_dtype: bfloat16, or leave it out.",
        ),
        (
            {
                "workload.precision": "amp",
                "workload.compute": {"kind": "roofline", "float8": {}},
                "cluster.device.efficiency": 0.5,
                "cluster.device.peak": {"float32": "1 TFLOP/s", "float16": "2 TFLOP/s"},
            },
            "cluster.device.peak: has no float8, which the workload computes in; known: float32, "
            "float16.",
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
            {"workload.samples_per_rank": [3, 2, 7, 1], "strategy.join": True}
            | {"workload.drop_last": True},
            "workload.drop_last: leaves nothing, since one step takes 8 samples of a rank and "
            "samples_per_rank is [3, 2, 7, 1].",
        ),
        (
            {"workload.samples_per_rank": [8, 8]},
            "workload.samples_per_rank: has 2 entries for 4 ranks; give one each.",
        ),
        (
            {"workload.samples_per_rank": [40, 8, 8, 16], "strategy.join": True},
            "workload.samples_per_rank: [40, 8, 8, 16] needs 72 samples, but the dataset has 64.",
        ),
        (
            {"workload.samples_per_rank": [8, 0, 8, 8]},
            "workload.samples_per_rank.1: 0 is out of range; it must be >= 1.",
        ),
        (
            {"workload.samples_per_rank": [8] * 4, "workload.global_batch": 8}
            | {"workload.microbatch": None},
            "workload: samples_per_rank deals samples to ranks, and so does global_batch; "
            "use microbatch instead.",
        ),
        (
            {"workload.inject": [{"kind": "inf", "rank": 4, "step": 1}]},
            "workload.inject.0.rank: rank 4 does not exist; the largest world_size is 4, so "
            "ranks are 0 ... 3.",
        ),
        (
            {"workload.precision": "amp", "workload.dtype": "float64"},
            "workload: dtype is float64, but precision amp joins float16 with float32; "
            "write dtype: float32, or precision: full.",
        ),
        (
            {
                "workload.precision": "amp",
                "cluster.device.efficiency": 0.5,
                "cluster.device.peak": {"float32": "1 TFLOP/s"},
            },
            "cluster.device.peak: has no float16, which the workload computes in; known: float32.",
        ),
        (
            {"workload.clip_grad_norm": 0},
            "workload.clip_grad_norm: 0 is out of range; it must be > ",
        ),
        (
            {"workload.optimizer": {"kind": "sgd", "param_groups": [{"params": ["nothing.*"]}]}},
            "workload.optimizer.param_groups: no parameter matches 'nothing.*'; "
            "--save-weights shows the names.",
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
            {"workload.dtype": "bf16"},
            "workload.dtype: 'bf16' is not allowed. Did you mean precision: {kind: amp, dtype: "
            "bfloat16}? Known: 'float32' or 'float64'.",
        ),
        ({"workload.mode": "serving"}, "workload.mode: 'serving' is not allowed; known: "),
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
            "workload.model.activation: unknown activation 'rellu'. Did you mean 'relu'? Known: "
            f"{', '.join([*ACTIVATIONS][:10])}, ... and 9 more: simdp list activations.",
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
            {"workload.dataset": "blobs", "workload.loss": "mse"},
            "workload.dataset: blobs does not suit the loss mse: y has shape (1,), "
            "but the model makes (3,) of each sample; give y the shape (1, 3).",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(overrides, line, refuse):
    found = refuse(overrides)
    assert len(found) == 1
    assert found[0] == line or (line[-1] not in ".?" and found[0].startswith(line))


@for_each("name", ["a/b", "", "..", "-x", "a b"])
def test_a_name_must_do_for_a_file(name, refuse):
    (line,) = refuse(name=name)
    assert line.startswith(f"name: {name!r}")


@for_each(
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


@for_each("key", ["workload.microbatch", "workload.grad_accum"])
def test_an_absurdly_large_count_is_refused(key, refuse):
    assert refuse({key: 10**30})


def test_an_absurdly_large_model_is_refused(refuse):
    assert refuse({"workload.model.widths": [10**12, 10**12]})


# Memory ------------------------------------------------------------------------------------------


@pytest.fixture
def small_machine(monkeypatch):
    monkeypatch.setattr(simdp.scenario.checks, "host_memory", lambda: 2e9)


def test_arrays_that_this_machine_cannot_hold_are_refused(small_machine, refuse):
    (line,) = refuse({"workload.model.widths": [4, *[1000] * 100, 3]})
    assert line.startswith("numerics: the arrays of 4 ranks need ")
    assert line.endswith(
        " GB, but this machine has 2 GB; set numerics: false to simulate the time alone."
    )


def test_time_alone_needs_no_arrays(small_machine, load):
    assert not load({"workload.model.widths": [4, *[1000] * 100, 3], "numerics": False}).numerics


def test_what_fits_this_machine_is_allowed(small_machine, load):
    assert load({"workload.model.widths": [1000, 1000]}).numerics


def test_every_catalogue_device_makes_a_scenario(load):
    for name in DEVICES.names():
        assert load({"cluster.device": name}).cluster.device.name == name


@for_each("key", ["device", "topology", "inter_node.link"])
def test_null_is_no_part_of_a_cluster(key, refuse):
    (line,) = refuse({f"cluster.{key}": None})
    assert line.startswith(f"cluster.{key}: ")


# Names from elsewhere ----------------------------------------------------------------------------


@for_each(
    ("under", "key", "hint"),
    [
        ("workload", "batch_size", "workload.microbatch: 32 (samples per rank and micro-step) or "),
        ("workload", "per_device_train_batch_size", "workload.microbatch: 32"),
        ("strategy", "bucket_cap_mb", 'strategy.bucket_cap: "25 MiB"?'),
        ("workload", "gradient_accumulation_steps", "workload.grad_accum: 4?"),
        ("cluster", "num_gpus", "cluster.world_size: 8"),
        ("cluster", "nproc_per_node", "cluster.devices_per_node: 8?"),
        (None, "learning_rate", "workload.optimizer: {kind: adamw, lr: 1e-3"),
        (None, "fp16", "workload.precision: {kind: amp, dtype: float16}?"),
    ],
)
def test_keys_of_other_libraries_have_a_hint(under, key, hint, tmp_path):
    raw = copy.deepcopy(MINIMAL)
    raw["strategy"] = {"kind": "ddp"}
    (raw[under] if under else raw)[key] = 3
    with pytest.raises(ScenarioError) as caught:
        checked(raw, tmp_path)
    (line,) = [line for line in caught.value.problems if f"unknown key {key!r}" in line]
    assert f". Did you mean {hint}" in line


@for_each("written", sorted(set(OTHER_NAMES.values())))
def test_hints_for_keys_of_other_libraries_name_keys_that_exist(written):
    keys = re.findall(r"\b(cluster|workload|strategy)\.(\w+)", written)
    homes = {"cluster": Cluster, "workload": Workload, "strategy": STRATEGIES["ddp"]}
    assert keys or written.startswith("strategy: ")
    for home, key in keys:
        assert key in homes[home].model_fields
