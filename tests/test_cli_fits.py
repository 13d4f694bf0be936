"""``python -m simdp fits``: a table, or JSON and nothing else."""

from __future__ import annotations

import json

import pytest

from simdp.cli import run_command_line

MODEL = "{kind: gpt2, n_embd: 64, n_head: 4, n_layer: 6, n_positions: 64}"


def test_the_table_names_methods_and_what_was_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fits", MODEL, "--gpus", "2", "--device", "h100-sxm5-80gb", "--microbatch", "4"]
    assert run_command_line(arguments) == 0
    out = capsys.readouterr().out
    assert "gpt2 on 2 GPUs of 80 GB; steps in" in out
    assert "assumed: links as in dgx-h100" in out
    assert "a sample: 64 tokens" in out
    for strategy in ("ddp", "fsdp", "zero1", "zero2"):
        assert f" {strategy} " in out


def test_json_has_the_fields_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fits", MODEL, "--gpus", "2", "--machine", "dgx-h100", "--json"]
    assert run_command_line(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    keys = (
        "strategy recompute microbatch fits peak_memory_bytes step_time_s tokens_per_s mfu settings"
    )
    assert all(set(row) == set(keys.split()) for row in document["rows"])


def test_nothing_that_fits_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fits", "gpt2-medium", "--gpus", "1", "--device", "t4-16gb", "--microbatch", "512"]
    assert run_command_line(arguments) == 0
    assert "nothing fits: take more GPUs" in capsys.readouterr().out


def test_a_wrong_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["fits", "gpt2", "--gpus", "8", "--machine", "dgx-h10"]) == 2
    assert capsys.readouterr().err.startswith("--machine: unknown machine 'dgx-h10'")
