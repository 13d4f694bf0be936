"""Hints of the command line: one line, what was probably meant first, ten known names at most."""

import re

import pytest
from for_each import for_each

from simdp.cli import run_command_line

SET = ("run", "8gpu_ring", "--no-plots", "--set")
FITS = ("fits", "gpt2", "--gpus", "8")
ONE = (*FITS, "--device", "h100-sxm5-80gb")
TIMED = ("collective", "all_reduce", "--cluster", "dgx-h100")
DUE = ("--comm", "40%", "--gpus", "8", "--device", "a100-sxm4-80gb")


@for_each(
    ("command", "hint"),
    [
        # models
        (("fits", "8B", *ONE[2:]), "Did you mean 'llama3-8b'?"),
        (("fits", "70B", *ONE[2:]), "Did you mean 'llama2-70b', 'llama3-70b' or 'mpt-70b'?"),
        (("fits", "meta-llama/Llama-3.1-8B", *ONE[2:]), "Did you mean 'llama3-8b'?"),
        (("fits", "Qwen/Qwen2.5-7B-Instruct", *ONE[2:]), "Did you mean 'qwen2.5-7b'?"),
        (("fits", "mistralai/Mistral-7B-v0.1", *ONE[2:]), "Did you mean 'mistral-7b'?"),
        (("fits", "google-bert/bert-large-uncased", *ONE[2:]), "Did you mean 'bert-large'?"),
        (("fits", "microsoft/resnet-50", *ONE[2:]), "Did you mean 'resnet50'?"),
        (("fits", "google/vit-base-patch16-224", *ONE[2:]), "Did you mean 'vit-b'?"),
        ((*SET, "workload.model=restnet50"), "Did you mean 'resnet50'?"),
        ((*SET, "workload.model=own.json"), "Did you mean {kind: transformers, path: own.json}?"),
        (("fits", "own.json", *ONE[2:]), "Did you mean {kind: transformers, path: own.json}?"),
        # devices, machines, links, scenarios
        ((*FITS, "--device", "A100"), "Did you mean 'a100-pcie-80gb', 'a100-sxm4-40gb' or "),
        ((*FITS, "--device", "4090"), "Did you mean 'rtx4090-24gb'?"),
        ((*SET, "cluster.device=H100 80GB"), "Did you mean 'h100-sxm5-80gb'?"),
        ((*FITS, "--machine", "dgxh100"), "Did you mean 'dgx-h100'?"),
        (("run", "8gpu_ring", "--device", "V100"), "Did you mean 'v100-sxm2-16gb' or "),
        (("collective", "all_reduce", "--cluster", "dgx_h100"), "Did you mean 'dgx-h100'?"),
        ((*SET, "cluster.link=nvlink"), "Did you mean 'nvlink2', 'nvlink3', 'nvlink4' or "),
        ((*SET, "cluster.topology=rign"), "Did you mean 'ring'?"),
        (("run", "8gpu-ring"), "Did you mean '8gpu_ring'?"),
        # strategies, collectives, optimizers, precisions
        ((*ONE, "--strategy", "fsdp2"), "Did you mean 'fsdp'?"),
        ((*SET, "strategy=zero"), "Did you mean 'zero1', 'zero2' or 'zero3'?"),
        ((*SET, "strategy=post_local_sgd"), "Did you mean 'local_sgd'?"),
        (("collective", "allreduce", "--cluster", "dgx-h100"), "is called all_reduce here"),
        ((*SET, "collectives.all_reduce=double_tree"), "Did you mean 'double_binary_tree'?"),
        ((*SET, "workload.optimizer=adamw_torch"), "Did you mean 'adamw'?"),
        ((*SET, "workload.optimizer={kind: sgd, learning_rate: 1}"), "Did you mean lr?"),
        ((*SET, "workload.precision=bf16"), "Did you mean {kind: amp, dtype: bfloat16}?"),
        ((*SET, "workload.precision=fp16"), "Did you mean {kind: amp, dtype: float16}?"),
        ((*SET, "workload.precision={kind: amp, dtype: bf16}"), "Did you mean 'bfloat16'?"),
        ((*SET, "workload.dtype=bf16"), "Did you mean precision: {kind: amp, dtype: bfloat16}?"),
        ((*SET, "workload.dtype=fp32"), "Did you mean 'float32'?"),
        # units
        (("plan", "cheapest_cluster", "--deadline", "3"), 'write for example "3 days"'),
        (("diagnose", "--step", "320", *DUE), 'write for example "320 ms"'),
        (("job", "8gpu_ring", "--until", "3"), 'write for example "3 days"'),
        ((*ONE, "--host-memory", "500"), 'write for example "500 GB"'),
        ((*TIMED, "--sizes", "1M-1G"), "is not FIRST:LAST[:FACTOR]; write for example 1KiB:1GiB"),
        ((*TIMED, "--sizes", "1024..4096"), "is not FIRST:LAST[:FACTOR]; write for example 1KiB:"),
        ((*SET, "strategy.bucket_cap=25M"), 'write "25 MiB" or "25 MB"'),
        ((*SET, "cluster.link.alpha=5"), 'write "5 s", "5 ms" or "5 us"'),
        ((*SET, "cluster.link.bandwidth=200 Gbps"), 'write "200 Gbit/s"'),
        # keys, options and commands
        ((*SET, "workload.batch_size=8"), "Did you mean workload.microbatch: 32 "),
        ((*SET, "precision=bf16"), "Did you mean workload.precision?"),
        ((*SET, "microbatch=8"), "Did you mean workload.microbatch?"),
        ((*SET, "model=gpt2"), "Did you mean workload.model?"),
        ((*SET, "bucket_cap=25 MB"), "Did you mean strategy.bucket_cap?"),
        ((*SET, "link=nvlink4"), "Did you mean cluster.link?"),
        ((*SET, "cluster.links_per_node=8"), "Did you mean inter_node.links_per_node?"),
        ((*SET, "workload.dropout=0.1"), "Did you mean model.dropout or lora.dropout?"),
        (
            ("compare", "methods", "--over", "precision=full,amp"),
            "Did you mean workload.precision?",
        ),
        (("plan", "8gpu_ring", "--choose", "model=gpt2"), "Did you mean workload.model?"),
        ((*SET, "cluster.wold_size=8"), "Did you mean 'world_size'?"),
        (("run", "8gpu_ring", "--batch-size", "8"), "Did you mean workload.microbatch: 32 "),
        (("run", "8gpu_ring", "--output", "x"), "Did you mean --out?"),
        ((*ONE, "--seq-len", "4096"), "Did you mean --sequence-length?"),
        (("fits", "gpt2", "--ngpus", "8"), "Did you mean --gpus?"),
        (("compare", "methods", "--world-size", "8"), "Did you mean cluster.world_size: 8 "),
        (("compare", "methods", "--over", "strategy=ddp", "fsdp"), "Did you mean strategy=ddp,fs"),
        (("compare", "methods", "--over", "strategy", "ddp,fsdp"), "Did you mean strategy=ddp,fs"),
        (("compare", "methods", "--over", "strategy", "ddp", "fsdp"), "mean strategy=ddp,fsdp?"),
        ((*SET, "workload.microbatch", "8"), "Did you mean workload.microbatch=8?"),
        (("plan", "x.yaml", "--choose", "strategy", "ddp"), "Did you mean strategy=ddp?"),
        (("list", "model"), "Did you mean 'models'?"),
        (("simulate", "x.yaml"), "No such command"),
        (("rnu", "8gpu_ring"), "Did you mean 'run'?"),
    ],
)
def test_a_wrong_word_gets_one_line_with_its_hint_first(command, hint, tmp_path, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert run_command_line([*command]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert hint in err
    before, _, known = err.lower().partition("known: ")
    assert hint.lower() in before
    assert len(re.split(r", ", known.partition(", ... and")[0])) <= 10


def test_gpus_and_device_are_short_for_two_keys(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["--set", "workload.model.widths=[512, 64, 10]", "--no-plots", "-o", "x"]
    for command in (["--gpus", "4", "--device", "t4-16gb"], ["--set", "cluster.world_size=4"]):
        assert run_command_line(["run", "8gpu_ring", *command, *small]) == 0
        assert capsys.readouterr().out.startswith("8gpu_ring: 4 ranks\n")
    assert (tmp_path / "x" / "result.json").is_file()


def test_a_scenario_may_be_json(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.json").write_text(
        '{"cluster": {"world_size": 1, "device": "t4-16gb"}, "strategy": "single", "numerics": '
        'false, "workload": {"model": {"kind": "mlp", "widths": [4, 4]}, "microbatch": 4}}'
    )
    assert run_command_line(["check", "own.json"]) == 0
    assert capsys.readouterr().out == "own.json: valid, 1 point\n"
