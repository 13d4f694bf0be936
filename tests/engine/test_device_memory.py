"""Memory of every device over time: what torch would keep, and what it is made of at the peak."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.engine.simulate import memory_needed
from simdp.results.memory import MEMORY_PARTS, usage
from simdp.scenario import checked
from simdp.strategies import STRATEGIES

pytestmark = pytest.mark.slow

FLOAT, ADAM = 4, 2
WIDTHS = [8, 16, 4]
ELEMENTS = 8 * 16 + 16 + 16 * 4 + 4


def scenario(n=2, cluster=None, strategy="ddp", numerics=False, **workload):
    raw = {
        "name": "memory",
        "cluster": {
            "world_size": n,
            "device": "a100-sxm4-40gb",
            "topology": "switch",
            "link": "nvlink3",
            **(cluster or {}),
        },
        "workload": {
            "model": {"kind": "mlp", "widths": WIDTHS, "activation": "relu"},
            "dataset": {"kind": "regression", "num_samples": 64},
            "optimizer": "adam",
            "microbatch": 4,
            "steps": 2,
            **workload,
        },
        "strategy": strategy,
        "numerics": numerics,
    }
    if workload.get("dataset", 1) is None:
        del raw["workload"]["dataset"]
    return checked(raw, Path())


def parts_over_time(chosen, rank=0, **options):
    """Step, part and running sum of that part, change by change."""
    trace = simdp.simulate(chosen, **options).trace
    return usage(trace.memory, [rank])


def most(found, part, step=1):
    return found.kept[found.step == step, MEMORY_PARTS.index(part)].max()


def test_peaks_are_known_where_the_clock_is_not_told(monkeypatch):
    told = simdp.simulate(scenario(), fabric="vector")
    monkeypatch.setattr("simdp.engine.simulate.FINE_RANKS", 1)
    untold = simdp.simulate(scenario(), fabric="vector")
    assert told.trace.memory
    assert not untold.trace.memory
    assert untold.metrics == told.metrics


# A step of plain replicas ------------------------------------------------------------------------


def test_each_part_of_ddp_is_what_torch_keeps():
    found = parts_over_time(scenario())
    weights = ELEMENTS * FLOAT
    assert most(found, "parameters") == most(found, "buckets") == weights
    assert most(found, "gradients") == weights
    assert most(found, "optimizer_state", 0) == ADAM * weights
    assert most(found, "inputs") == 4 * (8 + 4) * FLOAT  # and the targets
    assert most(found, "activations") == 4 * 16 * FLOAT
    assert most(found, "outputs") == 4 * 2 * 4 * FLOAT  # with their gradient


def test_gradients_and_micro_batches_go_and_the_rest_stays():
    found = parts_over_time(scenario())
    last = dict(zip(MEMORY_PARTS, found.kept[-1], strict=True))
    weights = ELEMENTS * FLOAT
    assert {part: nbytes for part, nbytes in last.items() if nbytes} == {
        "parameters": weights,
        "buckets": weights,
        "optimizer_state": ADAM * weights,
    }


def test_the_optimizers_state_appears_with_the_first_update():
    found = parts_over_time(scenario())
    state = found.kept[:, MEMORY_PARTS.index("optimizer_state")]
    gradients = found.kept[:, MEMORY_PARTS.index("gradients")]
    first = int(np.flatnonzero(state)[0])
    assert found.step[first] == 0
    assert gradients[first] == ELEMENTS * FLOAT  # all of them are there by then


def test_gradients_appear_layer_by_layer_in_backward():
    found = parts_over_time(scenario())
    rising = found.kept[found.step == 0, MEMORY_PARTS.index("gradients")]
    assert list(dict.fromkeys(rising[:-1])) == [0, (16 * 4 + 4) * FLOAT, ELEMENTS * FLOAT]


def test_gradients_that_live_in_their_buckets_stay():
    viewed = scenario(strategy={"kind": "ddp", "gradient_as_bucket_view": True})
    found = parts_over_time(viewed)
    assert most(found, "buckets") == 0
    gradients = found.kept[found.step >= 0, MEMORY_PARTS.index("gradients")]
    assert set(gradients.tolist()) == {ELEMENTS * FLOAT}
    # What a layer makes is there beside its place in the bucket, until it is added.
    assert most(found, "temporary") >= (8 * 16 + 16) * FLOAT


def test_a_later_micro_steps_gradient_is_made_beside_the_first_ones():
    once, twice = (parts_over_time(scenario(grad_accum=k)) for k in (1, 2))
    assert most(once, "gradients") == most(twice, "gradients")
    assert most(twice, "inputs") == most(once, "inputs")
    backward = [found.kept[:, MEMORY_PARTS.index("temporary")].max() for found in (once, twice)]
    assert backward[1] >= (8 * 16 + 16) * FLOAT
    assert twice.total.max() >= once.total.max()


def test_a_gradient_that_two_calls_make_is_there_once():
    dataset = {"kind": "tokens", "num_samples": 8}  # the head's weight is the embedding's
    chosen = scenario(model="gpt2", dataset=dataset, loss="cross_entropy", microbatch=1)
    elements = chosen.workload.model.num_parameters()
    assert most(parts_over_time(chosen), "gradients") == elements * FLOAT


def test_master_weights_are_there_from_the_start():
    found = parts_over_time(scenario(precision="mixed"))
    assert (
        found.kept[found.step == -1, MEMORY_PARTS.index("optimizer_state")].max()
        == ELEMENTS * FLOAT
    )
    assert most(found, "parameters") == most(found, "gradients") == ELEMENTS * 2
    assert most(found, "optimizer_state") == (1 + ADAM) * ELEMENTS * FLOAT


@for_each(("foreach", "temporary"), [(False, 2 * 8 * 16), (None, ELEMENTS)])
def test_the_optimizers_temporaries_are_those_of_its_way_to_update(foreach, temporary):
    chosen = scenario(optimizer={"kind": "adam", "foreach": foreach}, microbatch=1)
    found = parts_over_time(chosen)
    updating = found.kept[:, MEMORY_PARTS.index("inputs")] == 0
    assert found.kept[updating, MEMORY_PARTS.index("temporary")].max() == temporary * FLOAT


def test_the_peak_is_the_true_maximum_and_not_the_sum_of_everything():
    chosen = scenario(microbatch=512, dataset={"kind": "regression", "num_samples": 2048})
    result = simdp.simulate(chosen)
    found = usage(result.trace.memory, [0])
    assert result.metrics["peak_memory_bytes"] == [found.total.max()] * 2
    assert sum(result.metrics["memory_bytes"].values()) == found.total.max()
    assert found.total.max() < found.kept.max(axis=0).sum()


@for_each("strategy", ["ddp", "horovod", "apex"])
def test_memory_is_the_same_with_numbers_and_without_on_any_clock(strategy):
    def memory(numerics, fabric):
        found = simdp.simulate(scenario(4, strategy=strategy, numerics=numerics), fabric=fabric)
        changes = usage(found.trace.memory, [3])
        return {
            "peaks": found.metrics["peak_memory_bytes"],
            "made of": found.metrics["memory_bytes"],
            "steps": changes.step.tolist(),
            "kept": changes.kept.tolist(),
        }

    first = memory(True, "vector")
    assert memory(False, "vector") == memory(True, "event") == memory(False, "event") == first
    ledger = memory_needed(scenario(4, strategy=strategy))
    assert [int(peak) for peak in ledger.peak] == first["peaks"]


def test_ranks_keep_as_much_as_their_own_samples_take():
    chosen = scenario(4, microbatch=None, global_batch=9, optimizer="sgd")
    peaks = simdp.simulate(chosen).metrics["peak_memory_bytes"]
    assert peaks[0] == peaks[1] == peaks[2] > peaks[3]
    (*_, last), found = peaks, parts_over_time(chosen, rank=3)
    assert most(found, "inputs") == most(found, "activations") == 0
    assert last == found.total.max()


def test_thousands_of_ranks_are_accounted_for_without_a_picture():
    result = simdp.simulate(scenario(2048 + 1))
    alone = simdp.simulate(scenario(2))
    assert result.metrics["memory_bytes"] == alone.metrics["memory_bytes"]
    assert result.trace.memory == []


# Recomputation -----------------------------------------------------------------------------------

BERT = {
    "model": {"kind": "bert-base", "sequence_length": 128, "num_labels": 2},
    "dataset": {"kind": "tokens", "num_samples": 64},
    "loss": "cross_entropy",
    "microbatch": 8,
}


def test_recomputation_trades_time_for_memory():
    plain, again = (simdp.simulate(scenario(**BERT, recompute=how)) for how in ("none", "blocks"))
    kept, saved = (most(usage(found.trace.memory, [0]), "activations") for found in (plain, again))
    assert saved < kept / 3
    forward = [
        sum(s.end - s.start for s in found.trace.of_ranks([0]).spans if s.activity == "forward")
        for found in (plain, again)
    ]
    assert 1.8 < forward[1] / forward[0] <= 2.0  # all but what is in no block
    grown = again.metrics["compute_s"] - plain.metrics["compute_s"]
    assert grown == pytest.approx((forward[1] - forward[0]) / 2)  # of two steps


def test_recomputation_changes_no_number():
    model = {
        "kind": "sequential",
        "input_shape": [8],
        "layers": [
            {"kind": "linear", "in_features": 8, "out_features": 6},
            {"kind": "batch_norm1d", "num_features": 6},
            {"kind": "dropout", "p": 0.3},
            {"kind": "linear", "in_features": 6, "out_features": 4},
        ],
    }
    plain, again = (
        simdp.simulate(scenario(numerics=True, steps=4, model=model, recompute=how))
        for how in ("none", "selective")
    )
    assert plain.metrics["loss"] == again.metrics["loss"]
    for name, weight in plain.replicas[0].items():
        assert weight.tobytes() == again.replicas[0][name].tobytes()


def test_selective_recomputation_lies_between_all_and_nothing():
    ways = ("none", "selective", "selective_every_other", "blocks")
    found = [simdp.simulate(scenario(**BERT, recompute=how)) for how in ways]
    kept = [most(usage(one.trace.memory, [0]), "activations") for one in found]
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == 4
    times = [one.metrics["compute_s"] for one in found]
    assert times == sorted(times)
    assert len(set(times)) == 4


def test_what_is_computed_again_delays_the_gradients_that_horovod_waits_for():
    first = []
    for how in ("none", "blocks"):
        found = simdp.simulate(scenario(strategy="horovod", recompute=how, **BERT))
        spans = found.trace.of_ranks([0]).spans
        first.append(min(s.start for s in spans if s.activity == "comm" and s.step == 1))
    assert first[1] > first[0]


def test_a_model_without_blocks_has_nothing_to_compute_again():
    einsum = {"kind": "einsum", "equation": "bd,df->bf", "d": 8, "f": 4}
    with pytest.raises(simdp.errors.ScenarioError) as raised:
        scenario(model=einsum, recompute="blocks")
    assert raised.value.problems == [
        "workload.recompute: the model einsum has no blocks to compute again; write none."
    ]


def test_inference_has_nothing_to_compute_again():
    with pytest.raises(simdp.errors.ScenarioError) as raised:
        scenario(mode="inference", optimizer="none", recompute="blocks")
    (line,) = raised.value.problems
    assert line == "workload.recompute: mode: inference trains nothing; leave this out."


@for_each("strategy", ["ddp", "single"])
def test_inference_keeps_weights_and_what_flows(strategy):
    n = 1 if strategy == "single" else 2
    chosen = scenario(n, strategy=strategy, mode="inference", optimizer="none")
    found = simdp.simulate(chosen).metrics["memory_bytes"]
    assert found["parameters"] == ELEMENTS * FLOAT
    for part in ("gradients", "optimizer_state", "buckets", "activations"):
        assert found[part] == 0
    # The samples, the first layer's output, and what its relu makes of it.
    assert found["other"] == 4 * (8 + 2 * 16) * FLOAT


# What is known of real programs ------------------------------------------------------------------

TUTORIAL = {
    "cluster": {"allocator": "cuda"},
    "model": {
        "kind": "sequential",
        "input_shape": [2000],
        "layers": [{"kind": "linear", "in_features": 2000, "out_features": 2000}] * 20,
    },
    "dataset": {"kind": "regression", "num_samples": 80},
    "optimizer": {"kind": "adam", "foreach": False},
    "microbatch": 20,
}


def megabytes_so_far(found, upto):
    return int(found.total[: upto + 1].max() // 1e6)


def test_the_zero_redundancy_tutorials_numbers_come_out_exactly():
    found = parts_over_time(scenario(**TUTORIAL))
    parameters, buckets, state = (
        int(np.flatnonzero(found.kept[:, MEMORY_PARTS.index(part)])[0])
        for part in ("parameters", "buckets", "optimizer_state")
    )
    first = int(np.flatnonzero(found.step == 0)[-1])
    assert megabytes_so_far(found, parameters) == 335
    assert megabytes_so_far(found, buckets) == 656
    assert megabytes_so_far(found, state - 1) == 992
    assert megabytes_so_far(found, first) == 1697
    exact = scenario(**TUTORIAL | {"cluster": {}})
    assert simdp.simulate(exact).metrics["memory_bytes"]["parameters"] == 320_160_000


@pytest.mark.skipif("zero1" not in STRATEGIES, reason="needs zero1")
def test_the_tutorials_number_with_a_sharded_optimizer_comes_out_exactly():
    found = parts_over_time(scenario(strategy="zero1", **TUTORIAL))
    first = int(np.flatnonzero(found.step == 0)[-1])
    assert megabytes_so_far(found, first) == 1361


ZERO = [
    ({"kind": "ddp", "gradient_as_bucket_view": True}, 120e9),
    ({"kind": "zero1", "communication": "reduce_scatter"}, 31.4e9),
    ({"kind": "zero2"}, 16.6e9),
    ({"kind": "fsdp1"}, 1.9e9),
]


@for_each(("strategy", "nbytes"), [row for row in ZERO if row[0]["kind"] in STRATEGIES])
def test_states_of_a_large_model_are_divided_as_the_zero_paper_says(strategy, nbytes):
    # Rajbhandari et al., arXiv 1910.02054, figure 1: 7.5 G parameters, 64 GPUs, K = 12.
    model = {"kind": "parameters", "num_params": 7_500_000_000, "num_layers": 64}
    chosen = scenario(
        64, strategy=strategy, model=model, dataset="none", precision="mixed", microbatch=1
    )
    ledger = memory_needed(chosen)
    at_update = ledger.at_peak[:, 0]
    states = ("parameters", "gradients", "optimizer_state")
    kept = sum(at_update[MEMORY_PARTS.index(part)] for part in states)
    assert kept == pytest.approx(nbytes, rel=0.02)


@for_each("n", [1, 2, 8, 64])
def test_a_model_of_80_gb_does_not_fit_40_gb_however_many_replicas_there_are(n):
    chosen = scenario(
        n,
        strategy="ddp",
        model={"kind": "parameters", "num_params": 4_000_000_000, "num_layers": 40},
        dataset="none",
        optimizer={"kind": "adam", "foreach": False},
        microbatch=1,
    )
    found = simdp.simulate(chosen).metrics
    assert found["fits_memory"] is False
    assert max(found["peak_memory_bytes"]) == pytest.approx(80e9, rel=0.02)
