"""Fits: methods for a model and a cluster, without a scenario."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each
from pydantic import TypeAdapter
from rich.console import Console

import simdp
from simdp.cluster.hardware import MACHINES, read_machine
from simdp.engine.simulate import memory_needed
from simdp.errors import ScenarioError
from simdp.reports.sweep_table import fitting_table
from simdp.results.plan import Fitting, FittingRow, InfeasiblePoints
from simdp.scenario import checked
from simdp.scenario.overrides import override_all
from simdp.scenario.root import Scenario
from simdp.strategies.memory import beside_tensors
from simdp.studies import fits
from simdp.studies.answers import interval_of
from simdp.studies.first_scenario import first_scenario
from simdp.studies.fits import fitting, fitting_settings_in_words, need_in_words
from simdp.studies.methods import FitsRequest, Method, machine_with, place_of, raw_of, with_data
from simdp.studies.plan import PlanRequest, plan
from simdp.workload.models import read_model
from simdp.workload.precision import AnyPrecision

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


def scenario_of(asked: FitsRequest, row: FittingRow) -> Scenario:
    """The scenario that a row stands for, made of its settings and checked from the start."""
    place = place_of(asked.machine, asked.device, asked.node_size)
    plain = Method("full", "ddp", "full", "none")
    _, raw = with_data(raw_of(asked, place, row.gpus, plain), row.microbatch)
    return checked(override_all(raw, row.settings, Path()), Path())


@pytest.mark.parametrize(
    ("model", "gpus", "microbatch"),
    [pytest.param(SMALL, 4, 8, marks=pytest.mark.long), (LLAMA, 16, 2)],
)
def test_rows_say_what_a_run_of_the_same_scenario_says(
    model: Any, gpus: int, microbatch: int
) -> None:
    asked = FitsRequest(model, gpus, machine="dgx-h100", microbatch=microbatch)
    found = fitting(asked)
    kinds = ["ddp", "zero1", "zero2", "zero3", "fsdp", *["hsdp"] * (gpus > 8)]
    tried = {(row.strategy, row.recompute) for row in found.rows if row.method == "full"}
    assert tried == {(kind, r) for kind in kinds for r in ("none", "selective", "blocks")}
    others = {(row.strategy, row.method) for row in found.rows if row.method != "full"}
    adapters = {(kind, "lora") for kind in ("ddp", "fsdp")}
    if model is LLAMA:  # GPT-2's projections are no linear layers, which alone have 4 bits
        adapters |= {(kind, "qlora") for kind in ("ddp", "fsdp")}
    assert others == adapters | {("zero2", "offload"), ("zero3", "offload")}
    for row in found.rows[:: 1 if model is SMALL else 3]:
        scenario = scenario_of(asked, row)
        metrics = simdp.simulate(scenario).metrics
        assert row.peak_memory_bytes == pytest.approx(max(memory_needed(scenario).peak), rel=1e-9)
        assert row.step_time_s == pytest.approx(metrics["step_time_s"])
        assert row.tokens_per_s == pytest.approx(metrics["tokens_per_s"])
        if row.chosen:
            inside = interval_of(scenario, metrics["step_time_s"])
            assert [row.low_s, row.high_s] == pytest.approx(inside, rel=1e-9)
        assert row.mfu == pytest.approx(metrics["mfu"])
        price = gpus * 3 / 3600 / metrics["tokens_per_s"]
        assert row.usd_per_million_tokens == pytest.approx(1e6 * price)


@pytest.mark.long
def test_memory_of_as_many_samples_as_fit_is_that_of_a_run() -> None:
    asked = FitsRequest(LLAMA, 8, machine="dgx-h100")
    found = fitting(asked)
    assert max(row.microbatch for row in found.rows) > 8
    for row in found.rows:
        exact = max(memory_needed(scenario_of(asked, row)).peak)
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
    found = fitting(FitsRequest(SMALL, 2, machine=str(machine), microbatch=1))
    assert {row.settings["workload.precision"] for row in found.rows} == {"full"}


def test_a_model_without_blocks_has_nothing_to_compute_again() -> None:
    einsum = {"kind": "einsum", "equation": "bd,df->bf", "d": 8, "f": 4}
    found = fitting(FitsRequest(einsum, 2, machine="dgx-h100", microbatch=4))
    assert {row.recompute for row in found.rows} == {"none"}


def test_the_best_comes_first_and_what_does_not_fit_last() -> None:
    found = fitting(FitsRequest("gpt2-medium", 2, device="t4-16gb", microbatch=16, method="full"))
    rates = [row.tokens_per_s for row in found.rows]
    fitting_rates = [rate for rate in rates if rate is not None]
    assert 0 < len(fitting_rates) < len(rates)
    assert rates[: len(fitting_rates)] == sorted(fitting_rates, reverse=True)
    assert all(row.state != "no" for row in found.rows[: len(fitting_rates)])
    beyond = found.rows[len(fitting_rates) :]
    assert all(row.memory_low_bytes > found.memory_bytes for row in beyond)


def test_twice_the_samples_in_less_than_twice_the_time_come_first() -> None:
    (row,) = fitting(FitsRequest(SMALL, 1, "dgx-h100", microbatch=1, recompute="none")).rows[:1]
    assert row.step_time_s is not None
    more = replace(row, microbatch=2 * row.microbatch, step_time_s=1.5 * row.step_time_s)
    assert fits._sort_key(more) < fits._sort_key(row)


def test_one_step_of_the_batch_further_would_not_fit() -> None:
    """Every number of samples up to 16 is tried, then those of four binary digits."""
    asked = FitsRequest("gpt2-medium", 2, device="t4-16gb", strategy="ddp", method="full")
    found = fitting(asked)
    batches = [row.microbatch for row in found.rows if row.fits]
    assert any(batch & (batch - 1) for batch in batches)  # between powers of two
    for row in found.rows:
        step = max(2 ** (row.microbatch.bit_length() - 4), 1) if row.microbatch > 8 else 1
        more = asked._replace(microbatch=row.microbatch + step, recompute=row.recompute)
        (beyond,) = fitting(more).rows
        assert row.fits
        assert not beyond.fits


def test_what_is_beside_tensors_decides_what_is_tight(tmp_path: Path) -> None:
    """A device that has room for the tensors alone is too small, and one that may do is tight."""
    peak = fitting(FitsRequest(SMALL, 2, machine="dgx-h100", microbatch=4, strategy="ddp")).rows[0]
    least, most = beside_tensors(peak.peak_memory_bytes, 2)
    assert 0.3e9 < least < 0.35e9
    assert 2.1e9 < most < 2.3e9
    states = {}
    for name, room in (("no", 0.99 * least), ("tight", (least + most) / 2), ("yes", 1.01 * most)):
        machine = tmp_path / f"{name}.yaml"
        memory = (peak.peak_memory_bytes + room) / 1e6
        machine.write_text(
            "cluster:\n  devices_per_node: 2\n  device: {peak: {float32: 4 TFLOP/s, bfloat16: 8 "
            f"TFLOP/s}}, memory: {memory:.3f} MB, memory_bandwidth: 240 GB/s}}\n"
            "  topology: ring\n  link: pcie3-x16\nsource: {cluster: an example}\n"
        )
        asked = FitsRequest(
            SMALL,
            2,
            machine=str(machine),
            microbatch=4,
            strategy="ddp",
            method="full",
            recompute=peak.recompute,
        )
        (row,) = fitting(asked).rows
        states[name] = row.state
        assert row.fits == (row.state == "yes")
        assert (row.step_time_s is None) == (row.state == "no")
    assert states == {name: name for name in states}


@pytest.mark.long
def test_all_rows_train_in_one_precision_which_can_be_chosen() -> None:
    asked = FitsRequest(SMALL, 2, machine="dgx-h100", microbatch=1, recompute="blocks")
    for chosen, words in ((None, "mixed bfloat16"), ("amp", "amp float16"), ("full", "full")):
        found = fitting(asked._replace(precision=chosen))
        assert found.precision == words
        assert {row.precision for row in found.rows} == {words}
        kinds = {repr(row.settings["workload.precision"]) for row in found.rows}
        assert len(kinds) == 1


@pytest.mark.long
def test_the_least_number_of_gpus_is_the_first_that_fits() -> None:
    asked = FitsRequest("gpt2-xl", None, device="t4-16gb", node_size=4, strategy="fsdp")
    asked = asked._replace(method="full")
    (row,) = fitting(asked).rows
    assert row.gpus > 1
    assert row.fits
    fewer = fitting(asked._replace(gpus=row.gpus - 1 if row.gpus <= 4 else row.gpus - 4))
    assert not any(one.fits for one in fewer.rows)


def test_what_fits_on_no_number_of_gpus_is_said_at_the_largest() -> None:
    asked = FitsRequest("gpt2-xl", None, device="t4-16gb", strategy="ddp", method="full")
    (row,) = fitting(asked).rows
    assert (row.state, row.gpus) == ("no", 1024)


def test_more_recomputation_than_the_largest_batch_needs_is_left_out() -> None:
    toy = {"kind": "mlp", "widths": [8, 8]}
    rows = fitting(FitsRequest(toy, 2, machine="dgx-h100", method="full", strategy="ddp")).rows
    assert {(row.recompute, row.microbatch) for row in rows} == {("none", 65_536)}


@pytest.mark.long
def test_less_recomputation_than_what_does_not_fit_is_left_out() -> None:
    rows = fitting(
        FitsRequest("llama3-8b", 8, machine="dgx-h100", method="full", strategy="ddp")
    ).rows
    assert [(row.recompute, row.state) for row in rows] == [("blocks", "no")]


def test_nodes_of_another_size_are_those_of_a_scenario() -> None:
    asked = FitsRequest("vit-b", 8, device="l40s-48gb", node_size=4, strategy="ddp", method="full")
    found = fitting(asked)
    assert found.assumed == (
        "links as in l40s-roce: 2 x l40s-48gb per node, roce-100g between nodes; nodes of 4"
    )
    place = place_of(None, "l40s-48gb", 4)
    assert place.cluster == {"machine": "l40s-roce", "devices_per_node": 4}
    assert place.per_node == 4


def test_a_device_of_no_machine_needs_a_node_size() -> None:
    with pytest.raises(ScenarioError, match=r"--device l4-24gb: no machine .* add --node-size 8"):
        fitting(FitsRequest("gpt2", 8, device="l4-24gb"))
    found = fitting(
        FitsRequest(SMALL, 16, device="l4-24gb", node_size=8, strategy="ddp", method="full")
    )
    assert found.assumed is not None
    assert found.assumed.startswith("nodes of 8 x l4-24gb, pcie4-x16 in a node and one 100gbe card")


def test_a_model_that_is_no_stack_is_followed_as_a_whole() -> None:
    found = fitting(FitsRequest("resnet18-cifar", 2, machine="dgx-h100", microbatch=16))
    assert {row.method for row in found.rows} == {"full", "offload"}
    assert all(row.fits for row in found.rows)
    assert found.rows[0].tokens_per_s is None
    assert found.rows[0].mfu is not None


def test_a_device_brings_the_links_of_a_machine_and_says_so() -> None:
    asked = FitsRequest(
        SMALL, 8, device="a100-sxm4-80gb", microbatch=1, strategy="ddp", method="full"
    )
    found = fitting(asked)
    assert found.assumed is not None
    assert found.assumed.startswith("links as in dgx-a100: 8 x a100-sxm4-80gb")
    named = asked._replace(device=None, machine="dgx-a100")
    assert fitting(named).assumed is None


def test_several_nodes_also_try_hsdp() -> None:
    asked = FitsRequest(SMALL, 8, machine="dgx-h100", microbatch=1, recompute="none", method="full")
    one, two = ({row.strategy for row in fitting(asked._replace(gpus=n)).rows} for n in (8, 16))
    assert two - one == {"hsdp"}


@for_each(
    ("asked", "line"),
    [
        (FitsRequest("gpt2", 8), "--device, --machine: neither given; give one of them."),
        (
            FitsRequest("gpt2", 8, "dgx-h100", "t4-16gb"),
            "--device, --machine: both given; give one of them.",
        ),
        (
            FitsRequest("gpt2", 8, "dgx-h100", recompute="some"),
            "--recompute: unknown recompute 'some'; known: none, selective, blocks.",
        ),
        (
            FitsRequest("resnet18", 8, "dgx-h100", method="lora"),
            "--method lora: resnet18 cannot be trained with these; leave one of them out.",
        ),
        (
            FitsRequest("gpt2", 12, "dgx-h100"),
            "--gpus 12: dgx-h100 has nodes of 8; give 1 to 8, or whole nodes.",
        ),
    ],
)
def test_what_does_not_go_together_is_named(asked: FitsRequest, line: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        fitting(asked)
    assert caught.value.problems == [line]


def test_unknown_names_are_named() -> None:
    with pytest.raises(ScenarioError, match=r"MODEL: unknown model 'gpt2-medum'.*'gpt2-medium'"):
        fitting(FitsRequest("gpt2-medum", 8, "dgx-h100"))
    with pytest.raises(ScenarioError, match="--device: unknown device 'h100'"):
        fitting(FitsRequest("gpt2", 8, device="h100"))


def test_a_device_of_no_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simdp.cluster.hardware.MACHINES.mentioning", lambda word: [])
    with pytest.raises(ScenarioError, match="no machine of the catalogue has it"):
        machine_with("t4-16gb")


@pytest.mark.slow
def test_offloaded_state_is_counted_in_the_memory_of_a_node() -> None:
    model = {**LLAMA, "num_hidden_layers": 2, "sequence_length": 64}
    elements = read_model(model).num_parameters()
    for gpus, nodes in ((2, 1), (16, 2)):
        asked = FitsRequest(model, gpus, machine="dgx-h100", microbatch=1, method="offload")
        for row in fitting(asked, has_times=False).rows:
            each = {"zero2": 14, "zero3": 16}[row.strategy]  # gradients and Adam in mixed precision
            assert row.host_memory_bytes == pytest.approx(each * elements / nodes, rel=0.01)
            assert row.fits is True
    tight = asked._replace(host_memory="1 MB")
    found = fitting(tight, has_times=False)
    assert {(row.fits, row.state) for row in found.rows} == {(False, "no")}
    assert found.host_memory_bytes == 1e6
    plain = fitting(asked._replace(method="full", strategy="ddp"), has_times=False)
    assert {row.host_memory_bytes for row in plain.rows} == {None}


@pytest.mark.slow
def test_host_memory_of_an_unknown_size_is_no_yes() -> None:
    model = {**LLAMA, "num_hidden_layers": 2, "sequence_length": 64}
    asked = FitsRequest(model, 2, device="rtx4090-24gb", microbatch=1, method="offload")
    found = fitting(asked)
    assert found.host_memory_bytes is None
    assert {(row.fits, row.state) for row in found.rows} == {(None, "yes")}
    text = text_of(found)
    assert "zero3+cpu: needs 7.7 MB of host memory" in text
    assert "  needs 7.7 MB  " in text


def test_a_run_and_a_plan_refuse_what_the_host_has_no_room_for(tmp_path: Path) -> None:
    raw: Any = {
        "cluster": {"machine": "dgx-h100", "world_size": 8, "host_memory": "1 MB"},
        "workload": {
            "model": {"kind": "mlp", "widths": [64, 1024, 64]},
            "optimizer": "adam",
            "microbatch": 1,
        },
        "strategy": {"kind": "zero3", "offload_optimizer": "cpu"},
        "target": {"samples": 64},
        "numerics": False,
    }
    scenario = checked(raw, Path())
    metrics = simdp.simulate(scenario).metrics
    assert metrics["fits_memory"] is False
    needs = "needs 1.6 MB of host memory, 1 MB are there"
    assert need_in_words(scenario, metrics) == needs
    assert fitting_settings_in_words(scenario) == "; use more nodes, or keep less on the host."
    roomy = {**raw, "cluster": {**raw["cluster"], "host_memory": "2 MB"}}
    assert simdp.simulate(checked(roomy, Path())).metrics["fits_memory"] is True
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps(raw))
    found = plan(file, PlanRequest(choices={"cluster.host_memory": ["1 MB", "2 MB"]}))
    assert [option.set["cluster.host_memory"] for option in found.best] == ["2 MB"]
    (wrong,) = found.infeasible
    assert wrong == InfeasiblePoints(needs, 1, "cluster.host_memory")


def test_the_usual_driver_comes_before_a_modified_one() -> None:
    assert machine_with("rtx4090-24gb") == "rtx4090-pcie4-nop2p"
    by_chance = [name for name in MACHINES.names() if not read_machine(name, Path()).usual]
    assert by_chance == ["rtx4090-pcie4"]  # by its driver


def test_the_batch_of_a_small_model_fills_the_device() -> None:
    asked = FitsRequest("resnet18", 2, machine="dgx-h100", strategy="ddp", method="full")
    (row,) = fitting(asked._replace(recompute="none"), has_times=False).rows
    assert row.microbatch > 256
    assert row.memory_high_bytes > 0.9 * 84.9e9


def test_the_head_names_the_host_memory_that_a_shorter_sample_takes() -> None:
    model = {**LLAMA, "num_hidden_layers": 2, "max_position_embeddings": 32_768}
    asked = FitsRequest(model, 1, device="rtx4090-24gb", method="offload", recompute="none")
    asked = asked._replace(sequence_length=32_768, microbatch=64, strategy="zero2")
    found = fitting(asked)
    length, needed = found.fitting_length, found.fitting_host_bytes
    assert length is not None
    assert needed is not None
    head = text_of(found).replace("\n", " ")
    assert f"with {length:,} tokens something does, if a node has " in head
    known = fitting(asked._replace(host_memory=f"{2 * needed} B"))
    assert (known.fitting_length, known.fitting_host_bytes) == (length, None)
    assert "something does, if" not in text_of(known)
    small = fitting(asked._replace(host_memory=f"{needed / 2} B"))
    assert (small.fitting_length, small.fitting_host_bytes) == (None, None)


def test_the_head_has_the_length_of_samples_and_one_that_would_fit() -> None:
    model = {**LLAMA, "num_hidden_layers": 2, "max_position_embeddings": 32_768}
    asked = FitsRequest(model, 1, device="t4-16gb", method="full", strategy="ddp")
    found = fitting(asked._replace(recompute="none", sequence_length=32_768, microbatch=32))
    assert {row.state for row in found.rows} == {"no"}
    assert found.fitting_length == 16_384
    head = text_of(found)
    assert "steps in" not in head
    assert "samples of 32,768 tokens: nothing fits; with 16,384 tokens something does" in head
    assert "or --sequence-length 16384" in head.replace("\n", " ")
    assert "something does, if" not in head
    shorter = fitting(asked._replace(recompute="none", sequence_length=16_384, microbatch=32))
    assert shorter.fitting_length is None
    assert shorter.rows[0].state != "no"
    assert "steps in " in text_of(shorter)
    assert "on 1 GPU of" in text_of(shorter)
    assert "samples of 16,384 tokens\n" in text_of(shorter).replace(" \n", "\n")


def text_of(found: Fitting) -> str:
    """The table as `fits` prints it, on a wide terminal."""
    stream = StringIO()
    Console(width=200, file=stream).print(fitting_table(found))
    return stream.getvalue()


@for_each("written", ["amp", "AMP", "mixed", "full", {"kind": "amp", "dtype": "bfloat16"}])
def test_a_precision_means_on_the_command_line_what_it_means_in_a_file(written: Any) -> None:
    asked = FitsRequest(SMALL, 2, machine="dgx-h100", precision=written, strategy="ddp")
    (row,) = fitting(asked._replace(method="full", recompute="blocks", microbatch=1)).rows
    file = TypeAdapter[Any](AnyPrecision).validate_python(written)
    assert (
        TypeAdapter[Any](AnyPrecision).validate_python(row.settings["workload.precision"]) == file
    )
    assert row.precision == " ".join(filter(None, (file.kind, file.low)))


def test_the_output_names_the_grad_scaler_of_amp() -> None:
    asked = FitsRequest(SMALL, 2, machine="dgx-h100", precision="amp", strategy="ddp", microbatch=1)
    text = " ".join(text_of(fitting(asked._replace(method="full", recompute="none"))).split())
    assert "precision: amp float16: torch.autocast with a GradScaler: layers in float16" in text


@for_each("model", ["gpt2", "bert-base"])
def test_new_scenarios_of_gpt2_and_bert_run_scaled_dot_product_attention(model: str) -> None:
    place, plain = place_of("dgx-h100", None), Method("full", "ddp", "full", "none")
    scenario, raw = with_data(raw_of(FitsRequest(model, 8), place, 8, plain), 4)
    assert raw["workload"]["attention"] == scenario.workload.attention == "flash"
    _, other = with_data(raw_of(FitsRequest("t5-small", 8), place, 8, plain), 1)
    assert "attention" not in other["workload"]
    workload = scenario.workload.model_copy(update={"attention": None})
    eager = simdp.simulate(scenario.model_copy(update={"workload": workload}))
    step_time = simdp.simulate(scenario).metrics["step_time_s"]
    assert step_time < eager.metrics["step_time_s"]


def test_init_writes_which_attention_runs() -> None:
    asked = FitsRequest("gpt2", 2, machine="dgx-h100", microbatch=1, strategy="ddp")
    text = first_scenario(asked._replace(recompute="none"), Path("s.yaml"))
    assert "  # scaled_dot_product_attention, as in transformers 5" in text
    assert "  attention: flash\n" in text
