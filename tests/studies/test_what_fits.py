"""What would fit: settings that need less memory, tried without a clock."""

from pathlib import Path

import pytest
from for_each import for_each

import simdp
from simdp.scenario import checked
from simdp.strategies import STRATEGIES
from simdp.studies.fits import fitting_settings, fitting_settings_in_words, need_in_words

needs_shards = pytest.mark.skipif(
    not {"zero1", "zero2", "fsdp"} <= set(STRATEGIES), reason="needs sharded strategies"
)


def scenario(n=8, memory="40 GB", strategy="ddp", **workload):
    raw = {
        "name": "large",
        "cluster": {
            "world_size": n,
            "device": {
                "peak": {"float32": "19.5 TFLOP/s"},
                "memory": memory,
                "memory_bandwidth": "2 TB/s",
            },
            "link": "nvlink3",
        },
        "workload": {
            "model": {"kind": "parameters", "num_params": 4_000_000_000, "num_layers": 40},
            "optimizer": {"kind": "adam", "foreach": False},
            "microbatch": 1,
            **workload,
        },
        "strategy": strategy,
        "numerics": False,
    }
    return checked(raw, Path())


LEARNED = {
    "model": {"kind": "gpt2", "n_embd": 32, "n_head": 2, "vocab_size": 50, "n_positions": 16},
    "dataset": {"kind": "tokens", "num_samples": 8192},
    "loss": "cross_entropy",
    "microbatch": 4096,
    "optimizer": "sgd",
}


def words(chosen):
    return [need.words for need in fitting_settings(chosen)]


@pytest.mark.slow
@needs_shards
def test_a_model_of_80_gb_on_40_gb_devices_fits_in_shards():
    layers = {"n_embd": 4096, "n_layer": 20, "n_head": 32}
    model = {"kind": "gpt2", **layers, "vocab_size": 1000, "n_positions": 64}
    dataset = {"kind": "tokens", "num_samples": 8}
    chosen = scenario(model=model, dataset=dataset, loss="cross_entropy")
    found = {need.words: need for need in fitting_settings(chosen)}
    fsdp = ["strategy fsdp", "strategy fsdp with recompute: blocks"]
    assert list(found) == ["strategy zero2", *fsdp]
    assert found["strategy zero2"].nbytes < 40e9
    assert found["strategy fsdp"].nbytes < 14e9
    line = fitting_settings_in_words(chosen)
    assert line.startswith("; strategy zero2 needs ")
    assert line.endswith(" GB on these 8.")


@for_each("n", [1, 2, 8])
def test_more_replicas_are_no_help_and_the_warning_says_so(n):
    chosen = scenario(n)
    metrics = simdp.simulate(chosen).metrics
    said = need_in_words(chosen, metrics)
    assert said == "a rank needs 80.8 GB of 40 GB, however many ranks there are"


@pytest.mark.slow
def test_activations_that_are_too_many_need_no_shards():
    kept = simdp.simulate(scenario(2, "1 GB", **LEARNED)).metrics
    room = f"{max(kept['peak_memory_bytes']) * 0.6:.0f} B"
    chosen = scenario(2, room, **LEARNED)
    assert "however" not in need_in_words(chosen, kept)
    found = words(chosen)
    assert found[0] == "recompute: blocks"
    assert found[-1] == "microbatch: 2048"


@pytest.mark.slow
def test_the_largest_micro_batch_that_halving_finds_is_named():
    peaks = {
        size: max(
            simdp.simulate(scenario(2, "1 GB", **LEARNED | {"microbatch": size})).metrics[
                "peak_memory_bytes"
            ]
        )
        for size in (4096, 1024)
    }
    chosen = scenario(2, f"{peaks[1024]} B", **LEARNED)
    (need,) = [need for need in fitting_settings(chosen) if need.words.startswith("microbatch")]
    assert (need.words, need.nbytes, need.fits) == ("microbatch: 1024", peaks[1024], True)


@pytest.mark.slow
def test_where_nothing_fits_all_that_was_tried_is_listed():
    chosen = scenario(2, "1 kB", **LEARNED)
    found = fitting_settings(chosen)
    assert found
    assert not any(need.fits for need in found)
    assert found[-1].words == "microbatch: 1"
    line = fitting_settings_in_words(chosen)
    assert line.startswith("; nothing that was tried fits: recompute: blocks needs ")
    assert line.endswith(" on these 2; use larger devices, or more with fsdp.")


def test_a_lone_device_with_nothing_to_try_needs_to_be_larger():
    assert fitting_settings(scenario(1, strategy="single")) == []
    assert fitting_settings_in_words(scenario(1, strategy="single")) == "; use larger devices."


def test_settings_that_the_scenario_cannot_have_are_passed_over():
    uneven = LEARNED | {"samples_per_rank": [300, 200]}
    chosen = scenario(2, "1 kB", {"kind": "ddp", "join": True}, **uneven)
    tried = words(chosen)
    assert "recompute: blocks" in tried
    assert not any("zero" in one for one in tried)


def test_ranks_that_share_a_device_share_its_room():
    chosen = scenario(2, "60 GB")
    shared = chosen.model_copy(
        update={"cluster": chosen.cluster.model_copy(update={"ranks_per_device": 2})}
    )
    said = need_in_words(shared, simdp.simulate(shared).metrics)
    assert said == "a rank needs 80.8 GB of 60 GB that 2 ranks share, however many ranks there are"


@needs_shards
@for_each(
    ("strategy", "num_params", "never"),
    [
        ("ddp", 8e9, True),
        ("zero1", 8e9, True),
        ("zero2", 11e9, True),
        ("zero2", 8e9, False),
        ("fsdp", 40e9, False),
    ],
)
def test_more_ranks_cannot_help_only_where_what_is_whole_is_too_large(strategy, num_params, never):
    model = {"kind": "parameters", "num_params": int(num_params), "num_layers": 40}
    chosen = scenario(2, strategy=strategy, model=model, optimizer="sgd")
    metrics = simdp.simulate(chosen).metrics
    assert not metrics["fits_memory"]
    said = need_in_words(chosen, metrics)
    assert said.endswith(", however many ranks there are") == never
    if not never:
        more = scenario(64, strategy=strategy, model=model, optimizer="sgd")
        assert simdp.simulate(more).metrics["fits_memory"]


def test_a_unit_that_no_device_can_hold_is_named_with_the_rank():
    for kind in ("fsdp", "fsdp1"):
        chosen = scenario(n=8, memory="15 GB", strategy={"kind": kind, "units": "whole"})
        result = simdp.simulate(chosen)
        assert result.metrics["fits_memory"] is False
        assert need_in_words(chosen, result.metrics).endswith(
            " of 15 GB; rank 0 has no room for the 16 GB of the unit that begins with "
            "parameters.0: make units smaller"
        )
    chosen = scenario(n=8, memory="5 GB", strategy="fsdp")
    assert "unit" not in need_in_words(chosen, simdp.simulate(chosen).metrics)
