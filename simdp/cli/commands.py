"""Commands: module, help text and examples of each.

A command is imported on first use, since typer's inspection of all options takes longer than a
short run.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """One command."""

    home: str
    """Its module in this room and its function there, or its group of commands."""
    summary: str
    """The first line of its documentation."""
    examples: tuple[str, ...]
    """Commands, without ``python -m simdp``."""
    hidden: bool = False
    """Whether ``--help`` leaves it out: a command for the developers of simdp."""

    @property
    def epilog(self) -> str:
        """Help text below its options."""
        return epilog(*self.examples)


def epilog(*examples: str) -> str:
    """Commands, one a line; the first letter keeps typer from filling paragraphs."""
    return "\n".join(["\b", "Examples:", *(f"  python -m simdp {line}" for line in examples)])


COMMANDS = {
    "run": Command(
        "run:run",
        "Simulate a scenario: a summary here, result.json, report.html and more in a folder.",
        (
            "run 8gpu_ring",
            "run scenario.yaml --set cluster.world_size=16 --set strategy=fsdp",
            "run scenario.yaml --json --no-plots > result.json",
        ),
    ),
    "init": Command(
        "init:init",
        "Write a commented scenario of your model on your cluster; prompts for missing options.",
        (
            "init",
            "init --machine dgx-h100 --model bert-large --gpus 32",
            "init --machine dgx-a100 --model gpt2 --gpus 16 --strategy fsdp --out gpt2.yaml",
        ),
    ),
    "fits": Command(
        "fits:fits",
        "List the methods that fit, their memory and step time, without a scenario.",
        (
            "fits gpt2-medium --gpus 8 --device h100-sxm5-80gb",
            "fits bert-large --gpus 32 --machine dgx-a100 --json",
        ),
    ),
    "check": Command(
        "run:check",
        "Validate scenarios, and prove their collectives, without running them.",
        ("check scenario.yaml 8gpu_ring",),
    ),
    "list": Command(
        "listing:list_kinds",
        "List every kind of a family, and the catalogue.",
        ("list", "list strategies", "list machines", "list scenarios"),
    ),
    "compare": Command(
        "compare:compare",
        "Compare strategies or other values: a table here, and a picture in a folder.",
        (
            "compare methods --over strategy=ddp,zero1,zero2,fsdp",
            "compare scenario.yaml --set sweep=null --over cluster.world_size=8,16",
        ),
    ),
    "compare-results": Command(
        "compare:compare_results",
        "Compare two results, or a result and a real run, and attribute the difference.",
        (
            "compare-results runs/before runs/after",
            "compare-results runs/methods/result.json traces/",
        ),
    ),
    "job": Command(
        "job:job",
        "Simulate a job of days with its failures, many times: completion time and lost time.",
        (
            "job llama3_54_days",
            'job scenario.yaml --until "3 days" --runs 200',
            "job scenario.yaml --set checkpoint.every=daly --json --no-plots > job.json",
        ),
    ),
    "plan": Command(
        "plan:plan",
        "Find the cheapest, fastest or greenest way to train, with reasons and alternatives.",
        (
            'plan cheapest_cluster --deadline "10 min"',
            "plan scenario.yaml --for fastest --choose nodes=1:8 --choose strategy=ddp,fsdp",
            "plan scenario.yaml --for greenest --workers 2 --json > plan.json",
        ),
    ),
    "collective": Command(
        "collective:collective",
        "Time a collective: a table in the format of nccl-tests, and plots in a folder.",
        (
            "collective all_reduce --cluster dgx-h100 --world-size 32",
            "collective all_reduce --cluster two_nodes --algorithm ring --algorithm tree",
        ),
    ),
    "diagnose": Command(
        "diagnose:diagnose",
        "Diagnose why a real job is slow or stops, from traces and logs, and list remedies.",
        (
            "diagnose traces/",
            "diagnose train.log nccl.log topo.txt",
            "diagnose rank0.pt.trace.json.gz --machine dgx-a100",
            "diagnose traces/ --json --no-remedies > diagnosis.json",
            "diagnose --step 320ms --comm 40% --gpus 8 --device a100-sxm4-80gb --model bert-large",
        ),
    ),
    "audit": Command(
        "audit:command",
        "Compare training on several ranks with one device, and find the cause of a difference.",
        (
            "audit uneven_shards",
            "audit --set workload.sync_batchnorm=true --exact sync_batchnorm",
            "audit --allow loss_mean_of_rank_means --json scenario.yaml",
            "audit --ranks 1,2,4 train.py",
        ),
    ),
    "replay": Command(
        "replay:replay",
        "Write a scenario from profiler traces: the same step, for any number of ranks.",
        (
            "replay traces/ --out scenario.yaml",
            "replay rank0.pt.trace.json.gz --machine dgx-a100 --microbatch 32",
        ),
    ),
    "extrapolate": Command(
        "extrapolate:extrapolate",
        "Predict a recorded step of one GPU on any number of them: time, memory, and what limits.",
        (
            "extrapolate traces/ --on dgx-h100,aws-p4d --gpus 8:512",
            "extrapolate train.py --on dgx-h100 --gpus 8:64 --strategy ddp,fsdp",
            'extrapolate job.yaml --gpus 8,16,32 --step-time "93 ms" --json',
        ),
    ),
    "exec": Command(
        "exec:execute",
        "Run a program of simdp.distributed on every rank of a virtual cluster, as torchrun does.",
        ("exec all_reduce --world-size 4", "exec program.py --cluster dgx-h100 -- --its-own 1"),
    ),
    "torchrun": Command(
        "torchrun:command",
        "Run an unmodified torch script on every rank of a virtual cluster, with real tensors.",
        (
            "torchrun --nproc-per-node 4 train.py",
            "torchrun --nnodes 2 --nproc-per-node gpu --cluster dgx-h100 train.py",
        ),
    ),
    "probe": Command(
        "probe:probe",
        "Measure this machine with real torch: a machine file, a scenario and a report.",
        (
            "probe",
            "probe --device cuda --models resnet50,gpt2 --microbatch 1,8 --minutes 10",
            "probe --device cpu --world-sizes 1,2 --out runs/mine",
        ),
    ),
    "validate": Command(
        "validate:validate",
        "Compare simulated with measured times: every point, and the errors of each cluster.",
        ("validate validation/nvidia", "validate measured.yaml --max-error 10%"),
    ),
    "calibrate": Command(
        "calibrate:commands",
        "Fit constants to measured times: a machine's entry, with its fit error.",
        (
            "calibrate nccl-tests all_reduce.log --nodes 2",
            "calibrate ddp measured.yaml",
            "calibrate rows runs.csv",
        ),
    ),
    "gallery": Command(
        "listing:gallery",
        "Redraw the pictures of the README and docs/.",
        ("gallery --out plots",),
        hidden=True,
    ),
    "schema": Command(
        "listing:schema",
        "Print the JSON Schema of scenarios, by which editors complete and check them.",
        ("schema > schema.json", "schema --out schema.json"),
    ),
}
"""In the order in which ``--help`` lists them."""
