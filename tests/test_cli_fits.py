"""``python -m simdp fits``: a table, or JSON and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from for_each import for_some

from simdp.cli import run_command_line

MODEL = "{kind: gpt2, n_embd: 64, n_head: 4, n_layer: 6, n_positions: 64}"


def test_the_table_names_methods_and_what_was_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fits", MODEL, "--gpus", "2", "--device", "h100-sxm5-80gb", "--microbatch", "4"]
    assert run_command_line(arguments) == 0
    out = capsys.readouterr().out
    assert "gpt2 on 2 GPUs of 84.9 GB, mixed bfloat16; memory in GB, steps in" in out
    assert "precision: mixed bfloat16: weights, gradients and layers in bfloat16" in out
    assert "USD/M: per million" in out
    assert "90 % interval of its step:" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    assert "assumed: links as in dgx-h100" in out
    assert "\nsamples of 64 tokens" in out
    for strategy in ("ddp", "fsdp", "zero1", "zero2", "zero3+cpu", "ddp+lora"):
        assert f" {strategy} " in out


def test_a_device_may_have_its_drivers_name(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for device in ("h100-sxm5-80gb", "NVIDIA H100 80GB HBM3"):
        arguments = ["fits", MODEL, "--gpus", "2", "--device", device, "--strategy", "ddp"]
        assert run_command_line([*arguments, "--method", "full", "--microbatch", "4"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_json_has_the_fields_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fits", MODEL, "--gpus", "2", "--machine", "dgx-h100", "--json"]
    assert run_command_line(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    of_contract = "strategy recompute microbatch fits peak_memory_bytes step_time_s tokens_per_s"
    added = (
        "mfu settings method state gpus precision memory_low_bytes memory_high_bytes "
        "host_memory_bytes samples_per_s usd_per_million_tokens usd_per_million_samples low_s "
        "high_s chosen"
    )
    assert all(" ".join(row) == f"{of_contract} {added}" for row in document["rows"])
    (chosen,) = [row for row in document["rows"] if row["chosen"]]
    assert chosen["low_s"] < chosen["step_time_s"] < chosen["high_s"]


def test_the_least_number_of_gpus_is_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fits", MODEL, "--gpus", "?", "--device", "h100-sxm5-80gb", "--strategy", "ddp"]
    arguments += ["--method", "full"]
    assert run_command_line([*arguments, "--microbatch", "2"]) == 0
    out = capsys.readouterr().out
    assert "gpt2 on the fewest GPUs of 84.9 GB" in out
    assert "the fewest that train all weights: 1 with ddp" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "\n    1  ddp " in out


def test_a_size_that_is_no_number_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["fits", "gpt2", "--gpus", "many", "--machine", "dgx-h100"]) == 2
    assert capsys.readouterr().err == (
        "--gpus many: is not a whole number; write for example 32.\n"
    )


def test_nothing_that_fits_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fits", "gpt2-medium", "--gpus", "1", "--device", "t4-16gb", "--microbatch", "512"]
    arguments += ["--method", "full", "--strategy", "ddp"]
    assert run_command_line(arguments) == 0
    assert "nothing fits: take more GPUs" in capsys.readouterr().out


def test_a_row_that_is_tight_is_no_sure_answer(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fits", "gpt2-medium", "--gpus", "2", "--device", "t4-16gb", "--strategy", "ddp"]
    arguments += ["--method", "full", "--recompute", "blocks", "--microbatch"]
    states = {}
    for microbatch in ("8", "10", "64"):
        assert run_command_line([*arguments, microbatch]) == 0
        out = capsys.readouterr().out
        states[microbatch] = out.splitlines()[5].split()[3]
        assert ("nothing fits for sure" in out) == (states[microbatch] == "tight")
    assert list(states.values()) == ["yes", "tight", "no"]


def test_a_wrong_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["fits", "gpt2", "--gpus", "8", "--machine", "dgx-h10"]) == 2
    assert capsys.readouterr().err.startswith("--machine: unknown machine 'dgx-h10'")


CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 9,  # more than the two small depths that memory is taken from
    "num_attention_heads": 2,
}


@pytest.mark.slow
@for_some(
    ("model", "strategy", "where"),
    [
        (
            "{kind: transformers, path: config.json, sequence_length: 8}",
            "DDP",
            "--machine dgx-h100",
        ),
        (
            "{kind: Transformers, path: ., sequence_length: 8}",
            "{kind: FSDP}",
            "--device A100-SXM4-80GB",
        ),
        ("resnet18-cifar", "{overlap: false}", "--machine dgx-a100"),
    ],
    3,
)
def test_every_short_form_passes_fits_init_and_plan(
    model: str, strategy: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    small = ["--gpus", "2", "--microbatch", "1", "--recompute", "none", *where.split()]
    small += ["--method", "full"]
    assert run_command_line(["fits", model, *small, "--strategy", strategy]) == 0
    file = "below/first.yaml"  # in another folder than the paths of the command line
    told = ["init", "--model", model, *small, "--strategy", strategy, "--out", file, "--force"]
    assert run_command_line(told) == 0
    assert run_command_line(["check", file]) == 0
    searched = ["sweep=null", "target={samples: 64}", f"strategy={strategy}"]
    chosen = [f"--set={setting}" for setting in searched]
    assert run_command_line(["plan", file, *chosen, "--choose", "workload.microbatch=1"]) == 0


@pytest.mark.long
@pytest.mark.slow
def test_a_config_json_or_its_folder_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("own", "gpt2"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(CONFIG))
    small = ["--gpus", "2", "--machine", "dgx-h100", "--sequence-length", "8"]
    fit = [*small, "--method", "full", "--strategy", "ddp", "--microbatch", "1"]
    seen = ["--step", "20 ms", "--gpus", "2", "--device", "a100-sxm4-80gb", "--comm", "40%"]
    seen += ["--no-remedies", "--json"]
    texts = {}
    for path in ("own", "own/config.json", "gpt2"):
        assert run_command_line(["fits", path, *fit]) == 0, path
        assert run_command_line(["init", "--model", path, *fit, "-o", "x.yaml", "--force"]) == 0
        assert run_command_line(["diagnose", "--model", path, *seen]) == 0, path
        texts[path] = capsys.readouterr().out.replace("own/config.json", "own")
    own, file, preset = texts.values()
    assert own == file
    assert preset != own
