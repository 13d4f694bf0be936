"""The JSON Schema takes what `check` takes, refuses what it can, and is the one that is shipped."""

import copy
import json
import random
from pathlib import Path

import pytest
from for_each import for_some
from jsonschema import Draft7Validator
from small_scenario import CLUSTER, MINIMAL, RICH, WORKLOAD

from simdp.errors import ScenarioError, UnitError
from simdp.files import read_yaml
from simdp.scenario import checked
from simdp.studies.schema import json_schema, text
from simdp.units import DIMENSIONS, parse, quantity_pattern

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "scenarios" / "schema.json"
SCENARIOS = sorted((ROOT / "scenarios").rglob("*.yaml"))


@pytest.fixture(scope="module")
def schema():
    return json_schema()


@pytest.fixture(scope="module")
def valid(schema):
    return Draft7Validator(schema).is_valid


def passes(raw):
    """Whether `check` takes a scenario."""
    try:
        checked(copy.deepcopy(raw), ROOT / "scenarios")
    except ScenarioError:
        return False
    return True


def put(raw, key, value):
    """A copy with a dotted key set, made on its way."""
    raw = copy.deepcopy(raw)
    here = raw
    *parents, last = key.split(".")
    for part in parents:
        here = here.setdefault(part, {})
    here[last] = value
    return raw


# The file ----------------------------------------------------------------------------------------


def test_it_is_a_schema_of_draft_7(schema):
    Draft7Validator.check_schema(schema)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert json.loads(text()) == schema


def test_the_shipped_schema_is_that_of_the_specs():
    assert SHIPPED.read_text(encoding="utf-8") == text(), (
        "run python -m simdp schema --out scenarios/schema.json"
    )


@for_some("path", SCENARIOS, 4, ids=lambda path: path.stem)
def test_every_shipped_scenario_names_the_schema_and_is_valid(path, valid):
    first = path.read_text().split("\n", 1)[0]
    named = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / named).resolve() == SHIPPED
    assert valid(read_yaml(path))


def test_every_reference_leads_somewhere(schema):
    def references(value):
        if isinstance(value, dict):
            yield from [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            value = list(value.values())
        for inner in value if isinstance(value, list) else ():
            yield from references(inner)

    for reference in set(references(schema)):
        here = schema
        for part in reference.removeprefix("#/").split("/"):
            here = here[part]
        assert here, reference


# What it takes -----------------------------------------------------------------------------------

FORMS = {
    "strategy": ["ddp", "DDP", "local-SGD", {"overlap": False}, {"kind": "fsdp", "units": "whole"}],
    "cluster.topology": ["nvswitch", {"kind": "torus2d", "dims": [2, 2]}, {"in_network": True}],
    "cluster.device": [["a100-sxm4-80gb"] * 4],
    "cluster.stragglers": [
        [{"kind": "pause", "rank": 0, "every": 3, "duration": "10 ms"}],
        [{"kind": "pause", "rank": 0, "every": "1 s", "duration": "10 ms"}],
    ],
    "cluster.link": ["nvlink3", {"alpha": "0 s", "bandwidth": "200 Gbit/s"}],
    "cluster.machine": ["dgx-a100"],
    "workload.model": [
        {"kind": "mlp", "widths": [4, 3], "activation": "gelu"},
        {
            "kind": "sequential",
            "layers": [{"kind": "Linear", "in_features": 4, "out_features": 3}, "ReLU"],
        },
        {"kind": "einsum", "equation": "bd,df->bf", "d": 4, "f": 3},
    ],
    "workload.loss": [None, False, "none", "MSE"],
    "workload.optimizer": [
        {"lr": 0.1, "param_groups": [{"params": ["*"], "lr": 1}]},
        {"kind": "adamw", "betas": [0.9, 0.95]},
    ],
    "workload.grad_accum": [2],
    "workload.shuffle": [True],
    "workload.precision": ["amp", {"kind": "mixed", "dtype": "bfloat16"}],
    "collectives.cost": [
        "nccl",
        {"kind": "nccl", "base": "5 us", "hop": {"intra": {"ll": "1 us"}, "inter": "2 us"}},
        {"kind": "nccl", "efficiency": {"intra": 0.8}},
    ],
    "collectives.all_reduce": [
        "binary_tree",
        {"kind": "auto", "candidates": ["ring", {"kind": "tree"}]},
    ],
    "seed": [2**62],
    "sweep": [
        {"cluster.world_size": [1, 2], "strategy.bucket_cap": ["1 MiB", None]},
        {"strategy": ["ddp", {"kind": "horovod", "cycle_time": "0 s"}]},
    ],
}


def test_every_form_of_a_value_is_taken(valid):
    for key, values in FORMS.items():
        for value in values:
            raw = put(MINIMAL, key, value)
            assert valid(raw), (key, value)
            if key != "workload.loss" and key != "cluster.stragglers":
                assert passes(raw), (key, value)
    assert valid(RICH)


def test_classes_of_ones_own_are_taken_by_their_path(valid):
    """Whether there is such a class, and which keys it has, is left to `check`."""
    mine = {"kind": "my_package.mine:Mine", "messages": 4}
    layers = [{"kind": "linear", "in_features": 4, "out_features": 3}, "mine:Mine", mine]
    for key, value in {
        "strategy": mine,
        "strategy.kind": "mine:Mine",
        "cluster.topology": "mine:Mine",
        "collectives.all_reduce": {"kind": "auto", "candidates": ["ring", mine]},
        "workload.model": {"kind": "sequential", "layers": layers},
        "workload.model.activation": "mine:Mine",
        "sweep": {"strategy": ["ddp", mine], "workload.model.activation": ["relu", "mine:Mine"]},
    }.items():
        raw = put(MINIMAL, "workload.model", {"kind": "mlp", "widths": [4, 3]})
        assert valid(put(raw, key, value)), (key, value)
        swept = {"sweep": {"seed": [0, 1]}} if key != "sweep" else {}
        assert valid({**put(raw, key, value), **swept}), (key, value)
    for path in ("mine:", ":Mine", "mine:Mine:Mine", "my mine:Mine", "my-mine:Mine", "a.:B"):
        for value in (path, {"kind": path}):
            assert not valid(put(MINIMAL, "strategy", value)), path
            assert not passes(put(MINIMAL, "strategy", value)), path
    assert not valid({**put(MINIMAL, "strategy", {"messages": 4}), "sweep": {"seed": [0, 1]}})


def test_what_only_a_sweep_gives_may_be_missing(valid):
    raw = {"cluster": dict(CLUSTER), "workload": WORKLOAD}
    del raw["cluster"]["world_size"]
    assert not valid(raw)
    assert valid({**raw, "sweep": {"cluster.world_size": [1, 2]}})


def test_what_a_machine_brings_may_be_missing(valid):
    workload = {"model": "resnet50", "microbatch": 8}
    assert valid({"cluster": {"machine": "dgx-a100", "world_size": 8}, "workload": workload})
    assert valid({"cluster": {"machine": "my/own.yaml"}, "workload": workload})
    assert not valid({"cluster": {"machine": "dgx-a101"}, "workload": workload})


# What it refuses ---------------------------------------------------------------------------------

WRONG = {
    "name": ["a b", "", 3],
    "clustre": [{}],
    "cluster.wrold_size": [2],
    "cluster.world_size": [0, "2", 2.5, True, None],
    "cluster.device": ["a100", 3, {"peak": {"float33": "1 TFLOP/s"}}],
    "cluster.link": ["nvlink33", {"alpha": "5 us"}, {"alpha": 5, "bandwidth": "25 GB/s"}],
    "cluster.topology": ["rign", {"kind": "ring", "dims": [2, 2]}, ["ring", 3]],
    "cluster.stragglers": [["slow_rank"], [{"kind": "slow_rank", "rank": 0}], "jitter"],
    "workload.model": [
        "resnet51",
        {"kind": "mlp"},
        {"kind": "mlp", "widths": [4]},
        {"widths": [4, 3]},
        {"kind": "mlp", "widths": [4, 3], "activation": "rleu"},
        {"kind": "einsum", "equation": "bd,df->bf", "dd": 4},
    ],
    "workload.dtype": ["float16"],
    "workload.optimizer": [
        "sdg",
        {"kind": "adam", "betas": [0.9]},
        {"kind": "sgd", "betas": [0.9, 0.9]},
    ],
    "strategy": [
        {"kind": "ddp", "bucket_cap": "25"},
        {"kind": "ddp", "bucket_cap": "1 s"},
        {"kind": "ddp", "version": "x"},
        3,
    ],
    "collectives": [{"all_reduce": {"chunking": "gluu"}}, {"allreduce": "ring"}],
    "placement": ["pakced"],
    "sweep": [
        {"cluster.world_size": []},
        {"cluster.world_size": 2},
        {"clustre.world_size": [2]},
        {"cluster.world_size": ["2"]},
        {"strategy.kind": ["dpd"]},
        {"cluster.link.bandwidth": [25]},
    ],
    "measured": [
        {"source": "x", "points": [{"set": {"cluster.world_size": "2"}, "step_time": "1 ms"}]}
    ],
}


def test_what_is_wrong_is_refused_by_both(valid):
    for key, values in WRONG.items():
        for value in values:
            raw = put(MINIMAL, key, value)
            assert not valid(raw), (key, value)
            assert not passes(raw), (key, value)


def mutated(raw, draw):
    """Change one value of a scenario, take it away, or add a key beside it."""
    raw = copy.deepcopy(raw)
    places = []

    def walk(value):
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], dict | list):
                walk(value[key])

    walk(raw)
    here, key = draw.choice(places)
    what = draw.choice(["take away", "add", "value", "value", "value"])
    if what == "take away":
        del here[key]
    elif what == "add" and isinstance(here, dict):
        here[draw.choice(["kind", "rank", "alpha", "steps", "nonsense"])] = draw.choice([1, "ring"])
    else:
        values = [None, True, 0, 1, -1, 3, 0.5, 1e9, "", "ring", "5 us", "25 GB/s", "1 MiB", [], {}]
        here[key] = draw.choice([*values, [1], ["ddp"], {"kind": "ring"}, {"kind": "adam"}])
    return raw


def test_mutants_that_check_takes_are_valid_and_most_others_are_not(valid):
    """A schema knows one key at a time; what follows from several is left to `check`."""
    draw = random.Random(14)
    plain = {key: value for key, value in RICH.items() if key != "sweep"}
    refused = missed = 0
    for _ in range(100):
        raw = mutated(draw.choice([MINIMAL, plain]), draw)
        if passes(raw):
            assert valid(raw), raw
        else:
            refused, missed = refused + 1, missed + valid(raw)
    assert refused > 50
    assert missed < 0.2 * refused


# Quantities --------------------------------------------------------------------------------------


def test_a_quantity_is_described_as_it_is_parsed():
    units = ["s", "ms", "µs", "kiloseconds", "min", "hrs", "Bs", "B", "GiB", "Gbit", "mebibytes"]
    units += ["FLOP", "TFLOPs", "megaflop", "samples", "sample", "x", "", "S", "gb"]
    rates = [f"{unit} / {per}" for unit in units for per in ("s", "second", "ms", "B")]
    numbers = ["5", "+5", "0.5", ".5", "5.", "5e3", "5E-3", "-5", "e5", "1,5", "5 5"]
    for name in DIMENSIONS:
        pattern = Draft7Validator({"pattern": quantity_pattern(name)})
        cases = [f"5 {unit}" for unit in (*units, *rates)]
        cases += [f" {number}{DIMENSIONS[name].unit} " for number in numbers]
        for case in cases:
            try:
                takes = parse(case, name) >= 0
            except UnitError:
                takes = False
            assert pattern.is_valid(case) == takes, (name, case)


def test_a_quantity_above_zero_is_not_zero():
    above = Draft7Validator({"pattern": quantity_pattern("time", zero=False)})
    for text_, takes in {
        "0 s": 0,
        "0.0ms": 0,
        "0e5 s": 0,
        "0.1 s": 1,
        "10 s": 1,
        "00.5us": 1,
    }.items():
        assert above.is_valid(text_) == bool(takes), text_
