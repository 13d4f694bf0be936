"""Fits: methods for a model and a cluster, without a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simdp
from simdp.engine.simulate import memory_needed
from simdp.errors import ScenarioError
from simdp.results.fitting import FittingRow
from simdp.scenario import Scenario, checked
from simdp.scenario.overrides import override_all
from simdp.studies.first_scenario import Answers, raw_of, with_data
from simdp.studies.fits import Asked, fitting, machine_with

SMALL = {"kind": "gpt2", "n_embd": 128, "n_head": 4, "n_layer": 8, "n_positions": 128}
LLAMA = {
    "kind": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 9,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "sequence_length": 4096,
    "max_position_embeddings": 4096,
}


def scenario_of(model: Any, gpus: int, row: FittingRow) -> Scenario:
    """The scenario that a row of `dgx-h100` stands for."""
    raw = raw_of(Answers("dgx-h100", model, gpus, "ddp", row.microbatch), "full")
    raw["workload"]["steps"] = 2
    return checked(override_all(with_data(raw, row.microbatch), row.settings, Path()), Path())


@pytest.mark.parametrize(("model", "gpus", "microbatch"), [(SMALL, 4, 8), (LLAMA, 16, 2)])
def test_rows_say_what_a_run_of_the_same_scenario_says(
    model: Any, gpus: int, microbatch: int
) -> None:
    found = fitting(Asked(model, gpus, machine="dgx-h100", microbatch=microbatch))
    kinds = ["ddp", "zero1", "zero2", "zero3", "fsdp", *["hsdp"] * (gpus > 8)]
    tried = {(row.strategy, row.recompute) for row in found.rows}
    assert tried == {(kind, r) for kind in kinds for r in ("none", "selective", "blocks")}
    for row in found.rows:
        scenario = scenario_of(model, gpus, row)
        metrics = simdp.simulate(scenario).metrics
        assert row.peak_memory_bytes == pytest.approx(max(memory_needed(scenario).peak), rel=1e-9)
        assert row.step_time_s == pytest.approx(metrics["step_time_s"])
        assert row.tokens_per_s == pytest.approx(metrics["tokens_per_s"])
        assert row.mfu == pytest.approx(metrics["mfu"])


def test_memory_of_as_many_samples_as_fit_is_that_of_a_run() -> None:
    found = fitting(Asked(LLAMA, 8, machine="dgx-h100"))
    assert max(row.microbatch for row in found.rows) > 8
    for row in found.rows:
        exact = max(memory_needed(scenario_of(LLAMA, 8, row)).peak)
        assert row.peak_memory_bytes == pytest.approx(exact, rel=1e-9)


OLD = """
cluster:
  devices_per_node: 4
  device: {peak: {float32: 4 TFLOP/s}, memory: 12 GB, memory_bandwidth: 240 GB/s, launch: 5 us}
  topology: ring
  link: pcie3-x16
source: {cluster: an example}
"""


def test_devices_without_16_bit_train_in_full_precision(tmp_path: Path) -> None:
    machine = tmp_path / "old.yaml"
    machine.write_text(OLD)
    found = fitting(Asked(SMALL, 2, machine=str(machine), microbatch=1))
    assert {row.settings["workload.precision"] for row in found.rows} == {"full"}


def test_a_model_without_blocks_has_nothing_to_compute_again() -> None:
    einsum = {"kind": "einsum", "equation": "bd,df->bf", "d": 8, "f": 4}
    found = fitting(Asked(einsum, 2, machine="dgx-h100", microbatch=4))
    assert {row.recompute for row in found.rows} == {"none"}


def test_the_best_comes_first_and_what_does_not_fit_last() -> None:
    found = fitting(Asked("gpt2-medium", 2, device="t4-16gb", microbatch=4))
    rates = [row.tokens_per_s for row in found.rows]
    fitting_rates = [rate for rate in rates if rate is not None]
    assert 0 < len(fitting_rates) < len(rates)
    assert rates[: len(fitting_rates)] == sorted(fitting_rates, reverse=True)
    assert all(row.fits for row in found.rows[: len(fitting_rates)])
    beyond = found.rows[len(fitting_rates) :]
    assert all(row.peak_memory_bytes > found.memory_bytes for row in beyond)


def test_twice_the_micro_batch_would_not_fit() -> None:
    found = fitting(Asked("gpt2-medium", 2, device="t4-16gb"))
    for row in found.rows:
        if row.fits and row.microbatch < 256:
            twice = fitting(
                Asked("gpt2-medium", 2, device="t4-16gb", microbatch=2 * row.microbatch)
            )
            same = next(
                other
                for other in twice.rows
                if (other.strategy, other.recompute) == (row.strategy, row.recompute)
            )
            assert not same.fits
            break


def test_a_model_that_is_no_stack_is_followed_as_a_whole() -> None:
    found = fitting(Asked("resnet18-cifar", 2, machine="dgx-h100", microbatch=16))
    assert all(row.fits for row in found.rows)
    assert found.rows[0].tokens_per_s is None
    assert found.rows[0].mfu is not None


def test_a_device_brings_the_links_of_a_machine_and_says_so() -> None:
    found = fitting(Asked(SMALL, 8, device="a100-sxm4-80gb", microbatch=1))
    assert found.assumed is not None
    assert found.assumed.startswith("links as in dgx-a100: 8 x a100-sxm4-80gb")
    assert fitting(Asked(SMALL, 8, machine="dgx-a100", microbatch=1)).assumed is None


def test_several_nodes_also_try_hsdp() -> None:
    one, two = (
        {row.strategy for row in fitting(Asked(SMALL, n, machine="dgx-h100", microbatch=1)).rows}
        for n in (8, 16)
    )
    assert two - one == {"hsdp"}


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (Asked("gpt2", 8), "--device, --machine: neither given; give one of them."),
        (
            Asked("gpt2", 8, "dgx-h100", "t4-16gb"),
            "--device, --machine: both given; give one of them.",
        ),
        (
            Asked("gpt2", 12, "dgx-h100"),
            "--gpus 12: dgx-h100 has nodes of 8; give 1 to 8, or whole nodes.",
        ),
    ],
)
def test_what_does_not_go_together_is_named(asked: Asked, line: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        fitting(asked)
    assert caught.value.problems == [line]


def test_unknown_names_are_named() -> None:
    with pytest.raises(ScenarioError, match=r"MODEL: unknown model 'gpt2-medum'.*'gpt2-medium'"):
        fitting(Asked("gpt2-medum", 8, "dgx-h100"))
    with pytest.raises(ScenarioError, match="--device: unknown device 'h100'"):
        fitting(Asked("gpt2", 8, device="h100"))


def test_a_device_of_no_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdp.studies.fits.MACHINES.mentioning", lambda word: [])
    with pytest.raises(ScenarioError, match="no machine of the catalogue has it"):
        machine_with("t4-16gb")
