"""A ``module:Class`` of every family passes every command with the answers of simdp's own kind."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

import simdp.distributed as dist
from simdp.cli import run_command_line
from simdp.errors import ScenarioError
from simdp.studies.families import HOMES, tables

MODULE, BESIDE = "plugin_of_every_family", "module_beside_a_plugin"

CLUSTER = {
    "world_size": 4,
    "devices_per_node": 2,
    "device": "a100-sxm4-80gb",
    "topology": "topologies/ring",
    "link": "nvlink3",
    "inter_node": {"link": "ib-hdr"},
}
WORKLOAD = {
    "model": {"kind": "models/mlp", "widths": [4, 8, 3], "activation": "activations/tanh"},
    "dataset": {"kind": "datasets/blobs", "num_samples": 64},
    "loss": "losses/cross_entropy",
    "optimizer": {"kind": "optimizers/adam", "lr": 0.1},
    "lr_schedule": {"kind": "schedules/step_lr", "step_size": 1},
    "compute": "computes/roofline",
    "microbatch": 4,
    "steps": 2,
}
SMALL = {
    "model": {"kind": "mlp", "widths": [4, 8, 3]},
    "dataset": {"kind": "blobs", "num_samples": 64},
    "microbatch": 4,
    "steps": 2,
}
TEXT = {"kind": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 32}

CASES = {
    "training": {
        "cluster": {
            **CLUSTER,
            "allocator": "allocators/cuda",
            "stragglers": [{"kind": "stragglers/slow_rank", "rank": 0, "factor": 1.5}],
        },
        "workload": WORKLOAD,
        "strategy": {"kind": "strategies/ddp", "comm_hook": "comm_hooks/fp16"},
        "collectives": {
            "all_reduce": "all_reduce/ring",
            "broadcast": "broadcast/ring",
            "barrier": "barrier/tree",
            "cost": "costs/links",
        },
        "target": {"kind": "targets/samples", "samples": 1e6},
    },
    "shards": {
        "cluster": CLUSTER,
        "workload": {
            **SMALL,
            "model": {
                "kind": "sequential",
                "layers": [{"kind": "layers/linear", "in_features": 2, "out_features": 2}],
            },
            "optimizer": "optimizers/sgd",
            "precision": {"kind": "precisions/amp", "dtype": "float16"},
            "inject": [{"kind": "faults/inf", "rank": 0, "step": 1}],
        },
        "strategy": "strategies/fsdp",
        "collectives": {"all_gather": "all_gather/ring", "reduce_scatter": "reduce_scatter/ring"},
    },
    "devices": {
        "cluster": {**CLUSTER, "devices_per_node": 4},
        "workload": {**SMALL, "microbatch": None, "global_batch": 16},
        "strategy": "strategies/data_parallel",
        "collectives": {
            "scatter": "scatter/naive",
            "gather": "gather/naive",
            "reduce": "reduce/ring",
            "all_to_all": "all_to_all/direct",
        },
    },
    "measured": {
        "cluster": CLUSTER,
        "workload": {
            **SMALL,
            "compute": {
                "kind": "computes/measured",
                "points": [{"microbatch": 4, "step_time": "10 ms"}],
            },
        },
        "strategy": "strategies/zero1",
        "collectives": {"cost": "costs/nccl"},
    },
    "failures": {
        "cluster": {**CLUSTER, "failures": [{"kind": "failures/exponential", "mtbf": "10 h"}]},
        "workload": {
            **SMALL,
            "model": TEXT,
            "dataset": {
                "kind": "none",
                "num_samples": 64,
                "lengths": {"kind": "lengths/fixed", "length": 32},
            },
        },
        "strategy": "strategies/ddp",
        "checkpoint": {"every": "1 h", "write": "20 s"},
        "recovery": "recovery/restart",
        "target": {"kind": "targets/samples", "samples": 1e9},
        "numerics": False,
    },
}
"""Scenarios in which a kind is written as ``family/kind``."""

FAMILY_OF = re.compile(r"\b(\w+)/(\w+)\b")


def kinds():
    return sorted(set(FAMILY_OF.findall(json.dumps(CASES))))


def filled(case, name):
    """A scenario whose kinds are simdp's own, or classes of the module."""
    return FAMILY_OF.sub(name, yaml.safe_dump(CASES[case], sort_keys=False))


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Classes derived from simdp's own in a module of the current folder."""
    lines = [f"from {HOMES[family]} import {family.upper()}" for family, _ in kinds()]
    for family, kind in kinds():
        base = f'{family.upper()}["{kind}"]'
        lines += [f"class {family}__{kind}({base}):", "    '''Another one.'''", "    kind: str"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path(f"{MODULE}.py").write_text("\n".join(lines) + "\n")
    yield
    forget()


def forget():
    """Forget the module, as a new process has never imported it."""
    for name in (MODULE, BESIDE):
        sys.modules.pop(name, None)
    for table in tables():
        table._found.clear()


def answer(text, capsys, command, *options):
    """Status and output of a command, with the names of simdp's own kinds."""
    Path("case.yaml").write_text(text)
    status = run_command_line([command, *options, "case.yaml"])
    shown = capsys.readouterr()
    return status, re.sub(rf"{MODULE}:\w+?__(\w+)", r"\1", shown.out + shown.err)


SWEEP = ("run", "--no-plots", "--set", "sweep={workload.steps: [1, 2]}")
COMMANDS = {
    "check": ("check",),
    "run": ("run", "--no-plots", "--json"),
    "sweep": (*SWEEP, "--json"),
    "compare": ("compare", "--no-plots", "--json", "--over", "cluster.world_size=2,4"),
    "plan": ("plan", "--json", "--for", "fastest", "--choose", "nodes=1:2"),
    "audit": ("audit", "--json"),
    "job": ("job", "--no-plots", "--json", "--runs", "3", "--workers", "1"),
}
REFUSED = {("devices", "plan"), ("failures", "audit")}
"""Of one process, and without numbers: so are simdp's own."""


def test_every_family_is_tried():
    assert {family for family, _ in kinds()} == set(HOMES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] * (case != "training")) for case in CASES]
)
def test_every_command_answers_a_class_from_outside_as_our_own(case, module, capsys):
    for name, command in COMMANDS.items():
        if name == "job" and case != "failures":
            continue
        own = answer(filled(case, r"\2"), capsys, *command)
        theirs = answer(filled(case, rf"{MODULE}:\1__\2"), capsys, *command)
        assert theirs == own, name
        assert own[0] == (2 if (case, name) in REFUSED else 0), name
    status, shown = answer(filled(case, rf"{MODULE}:\1__\2"), capsys, *SWEEP, "--continue")
    assert status == 0
    assert "points that were done already: 2" in shown


@pytest.mark.parametrize("times", [0, 2])
def test_a_strategy_without_one_update_in_a_step_is_refused(times, module, refuse):
    text = f"""
from simdp.steps.ops import Update
from simdp.strategies import Strategy

class Other(Strategy):
    kind: str

    def setup(self, facts):
        yield from ()

    def train_step(self, facts, step):
        yield from [Update()] * {times}
"""
    Path(f"{MODULE}.py").write_text(text)
    assert refuse(strategy=f"{MODULE}:Other") == [
        f"strategy.kind: a training step of {MODULE}:Other yields {times} updates, and each has "
        "one; let its train_step end with yield Update()."
    ]


def test_whether_an_optimizer_works_on_shards_is_asked_of_its_class(module, refuse):
    text = """
from simdp.workload.optimizers import OPTIMIZERS

class Signs(OPTIMIZERS["rprop"]):
    kind: str

class Whole(OPTIMIZERS["adafactor"]):
    kind: str
"""
    Path(f"{MODULE}.py").write_text(text)
    for kind, reason in (("Signs", "does not work under fsdp"), ("Whole", "updates whole tensors")):
        (line,) = refuse({"workload.optimizer": f"{MODULE}:{kind}"}, strategy="fsdp")
        assert line.startswith(f"workload.optimizer: {MODULE}:{kind} {reason}")


def test_a_link_that_comes_and_goes_is_none_of_rank_programs_whatever_its_name(module):
    straggler = {"kind": f"{MODULE}:Weak", "link": [0, 1], "bandwidth": 0.5, "steps": [1, 2]}
    base = "from simdp.cluster.stragglers import STRAGGLERS\n"
    Path(f"{MODULE}.py").write_text(
        f'{base}class Weak(STRAGGLERS["degraded_link"]):\n    kind: str\n'
    )
    cluster = {**CLUSTER, "topology": "ring", "stragglers": [straggler]}
    Path("cluster.yaml").write_text(yaml.safe_dump({"cluster": cluster}))
    with pytest.raises(ScenarioError, match="comes and goes by steps, of which a rank program"):
        dist.launch(lambda rank: None, cluster="cluster.yaml")


@pytest.mark.long
@pytest.mark.slow
def test_continue_simulates_again_what_a_changed_module_computes(module, capsys):
    """Its own source, and that of a module beside it, which it imports."""
    text = f"from simdp.workload.optimizers import OPTIMIZERS\nfrom {BESIDE} import RATE\n"
    text += 'class Mine(OPTIMIZERS["sgd"]):\n    kind: str\n    lr: float = RATE\n'
    beside = "RATE = 0.1\n"
    scenario = yaml.safe_dump(
        {"cluster": {**CLUSTER, "topology": "ring"}, "workload": SMALL}, sort_keys=False
    )

    def num_reused():
        Path(f"{MODULE}.py").write_text(text)
        Path(f"{BESIDE}.py").write_text(beside)
        forget()
        optimizer = ("--set", f"workload.optimizer={MODULE}:Mine")
        status, shown = answer(scenario, capsys, *SWEEP, *optimizer, "--continue")
        assert status == 0
        return int(re.search(r"done already: (\d)", shown)[1])

    assert [num_reused(), num_reused()] == [0, 2]
    beside += "# the same rate\n"
    assert [num_reused(), num_reused()] == [0, 2]
    text += "# the same class\n"
    assert [num_reused(), num_reused()] == [0, 2]
