"""``mode: inference``: outputs alone, the same on any number of devices."""

from pathlib import Path

import numpy as np
import pytest
from draws import draws
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from one_batch import infer, play, scenario
from test_data_parallel_numbers import MODELS, TOKENS
from test_identities import BATCH_NORM

import simdp
from simdp.engine.samples import pieces
from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.workload import Workload
from simdp.workload.transforms import evaluated

pytestmark = pytest.mark.slow

NORMED = {**BATCH_NORM, "dataset": {"kind": "regression", "num_samples": 24}}
INCEPTION = {"kind": "inception_v3", "num_classes": 10}
FLOAT64 = 8
few = draws(6, 12)


def together(result, step):
    return np.concatenate(result.outputs[step])


def refusal(strategy="ddp", **workload):
    with pytest.raises(ScenarioError) as error:
        checked(scenario(strategy, 2, mode="inference", optimizer=None, **workload), Path())
    return error.value.problems


# Numbers -----------------------------------------------------------------------------------------


@few
@given(
    st.sampled_from([*MODELS, NORMED]),
    st.sampled_from(["data_parallel", "ddp"]),
    st.integers(1, 6),
    st.integers(6, 40),
)
def test_outputs_are_those_of_one_device(model, strategy, world_size, batch):
    more = {**model, "global_batch": batch}
    alone, spread = infer("single", 1, **more), infer(strategy, world_size, **more)
    assert len(spread.outputs) == len(alone.outputs)
    for here, there in zip(alone.outputs, spread.outputs, strict=True):
        assert len(there) == 1  # they are gathered
        np.testing.assert_allclose(there[0], here[0], rtol=0, atol=1e-12)


@few
@given(st.sampled_from(MODELS[:4]), st.integers(1, 4), st.integers(1, 6))
def test_ranks_with_samples_of_their_own_keep_what_they_make_of_them(model, world_size, microbatch):
    more = {**model, "global_batch": None, "microbatch": microbatch}
    result = infer("ddp", world_size, **more)
    alone = infer("single", 1, **{**model, "global_batch": 40})
    for step, outputs in enumerate(result.outputs):
        assert len(outputs) == world_size
        for rank, output in enumerate(outputs):  # rank r takes samples r, r + W, r + 2W, ...
            first = rank + step * microbatch * world_size
            mine = (first + world_size * np.arange(len(output))) % 40
            np.testing.assert_allclose(output, alone.outputs[0][0][mine], rtol=0, atol=1e-12)


def test_a_model_that_was_trained_is_evaluated_as_after_training(tmp_path):
    """Dropout lets all through, and batch norm uses what it has learned of earlier batches."""
    layers = [
        *BATCH_NORM["model"]["layers"][:3],
        {"name": "drop", "kind": "dropout", "p": 0.7},
        BATCH_NORM["model"]["layers"][3],
    ]
    more = {"model": {"kind": "sequential", "layers": layers}, "dataset": NORMED["dataset"]}
    more["global_batch"] = 12
    trained = play("single", 1, **more)
    np.savez(tmp_path / "trained.npz", **trained.replicas[0])
    raw = scenario("data_parallel", 3, **more, mode="inference", optimizer=None)
    raw["workload"]["weights"] = "trained.npz"
    result = simdp.simulate(checked(raw, tmp_path))
    learned = trained.replicas[0]
    x = Workload.model_validate({**raw["workload"], "weights": None}).dataset.arrays(
        checked(raw, tmp_path).workload.model, checked(raw, tmp_path).workload.loss, 0, tmp_path
    )["x"]
    hidden = x @ learned["l1.weight"].T + learned["l1.bias"]
    deviation = np.sqrt(learned["bn.running_var"] + 1e-5)
    hidden = (hidden - learned["bn.running_mean"]) / deviation
    hidden = np.maximum(hidden * learned["bn.weight"] + learned["bn.bias"], 0)
    expected = hidden @ learned["l2.weight"].T + learned["l2.bias"]
    found = np.concatenate([outputs[0] for outputs in result.outputs])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert all((result.replicas[0][name] == array).all() for name, array in learned.items())


def test_a_batch_norm_without_running_statistics_uses_the_batch():
    layers = [
        dict(layer) if isinstance(layer, dict) else layer for layer in NORMED["model"]["layers"]
    ]
    layers[1]["track_running_stats"] = False
    more = {**NORMED, "model": {"kind": "sequential", "layers": layers}, "global_batch": 24}
    (outputs,) = infer("single", 1, **more).outputs
    assert abs(outputs[0].mean(axis=0)).max() < 10
    whole, half = (infer("single", 1, **{**more, "global_batch": b}) for b in (24, 12))
    assert np.abs(together(whole, 0)[:12] - together(half, 0)).max() > 1e-3


def test_an_output_that_only_training_looks_at_is_not_computed():
    graph = evaluated(
        Workload.model_validate(
            {"model": INCEPTION, "dataset": {"kind": "images", "num_samples": 1}, "microbatch": 1}
        ).model.graph
    )
    assert len(graph.outputs) == 1
    assert not any("AuxLogits" in call.layer.name for call in graph.calls)
    assert any("AuxLogits" in parameter.name for parameter in graph.parameters)


def test_sixteen_bits_infer_too():
    more = {"dtype": "float32", "precision": {"kind": "amp", "dtype": "bfloat16"}}
    full, half = infer("data_parallel", 2, dtype="float32"), infer("data_parallel", 2, **more)
    difference = np.abs(together(full, 0) - together(half, 0)).max()
    assert 1e-6 < difference < 1e-1
    gathered = [s for s in half.trace.spans if s.name == "gather outputs" and s.rank == 1]
    assert gathered[0].nbytes == 15 * 2 * 2


# Time and memory ---------------------------------------------------------------------------------


def test_nothing_is_sent_between_the_batch_and_the_outputs():
    result = infer("data_parallel", 3)
    names = [s.name for s in result.trace.spans if s.activity == "comm" and s.step == 1]
    assert dict.fromkeys(names) == {"scatter x": None, "gather outputs": None}
    setup = [s.name for s in result.trace.spans if s.activity == "comm" and s.step == -1]
    assert set(setup) == {"broadcast parameters 0"}
    assert result.metrics["bytes_sent_per_rank"] == [20 * 5 * 8, 10 * 2 * 8, 10 * 2 * 8]


def test_ranks_that_feed_themselves_send_nothing_at_all():
    result = infer("ddp", 3, global_batch=None, microbatch=4)
    assert result.metrics["bytes_sent_per_rank"] == [0, 0, 0]
    assert {s.step for s in result.trace.spans if s.activity == "comm"} == {-1}
    assert result.metrics["wait_s"] == 0


def test_metrics_of_learning_are_null():
    metrics = infer("ddp", 2, global_batch=10).metrics
    for name in ("loss", "loss_per_rank", "lr", "grad_norm", "loss_scale", "skipped_steps"):
        assert metrics[name] is None
    assert metrics["bucket_bytes"] is None
    assert metrics["update_s"] == 0
    assert metrics["throughput_samples_per_s"] == pytest.approx(10 / metrics["step_time_s"])
    assert metrics["replicas_identical"] is True
    assert infer("data_parallel", 2).metrics["replicas_identical"] is None


@for_each("strategy", ["data_parallel", "ddp"])
def test_both_clocks_and_a_run_without_numbers_tell_the_same(strategy):
    one = infer(strategy, 3, fabric="event", global_batch=10)
    for other in (
        infer(strategy, 3, fabric="vector", global_batch=10),
        infer(strategy, 3, numerics=False, global_batch=10),
    ):
        for name in ("step_time_s", "wait_s", "exposed_comm_s", "peak_memory_bytes"):
            assert other.metrics[name] == pytest.approx(one.metrics[name], rel=1e-12)
    assert other.outputs is None


def test_ranks_without_samples_are_no_step_ahead():
    result = infer("ddp", 4, global_batch=5, steps=3, epochs=None)
    ends = [max(s.end for s in result.trace.spans if s.rank == r) for r in range(4)]
    assert ends == pytest.approx([ends[0]] * 4, rel=1e-12)


def test_memory_holds_neither_gradients_nor_state_nor_activations():
    model = {"kind": "mlp", "widths": [50, 200, 200, 10]}
    result = infer("ddp", 2, model=model, global_batch=20, numerics=False)
    parts = result.metrics["memory_bytes"]
    parameters = (50 * 200 + 200 + 200 * 200 + 200 + 2000 + 10) * FLOAT64
    assert parts["parameters"] == parameters
    for name in ("gradients", "optimizer_state", "buckets", "activations"):
        assert parts[name] == 0
    # The whole batch is on rank 0, and the largest pair of a layer's input and output.
    assert parts["other"] == (20 * 50 + 10 * 400) * FLOAT64
    training = play("ddp", 2, model=model, global_batch=20, numerics=False)
    assert max(result.metrics["peak_memory_bytes"]) < 0.5 * max(
        training.metrics["peak_memory_bytes"]
    )


def test_copies_of_the_model_stay_on_every_device():
    result = infer("data_parallel", 4, model={"kind": "mlp", "widths": [500, 500]}, numerics=False)
    peaks = result.metrics["peak_memory_bytes"]
    assert min(peaks) > 500 * 501 * FLOAT64
    kept = np.zeros(4)
    for held in result.trace.memory:
        kept[held.ranks] += held.nbytes
    assert kept.tolist() == [500 * 501 * FLOAT64] * 4


def test_an_optimizer_that_keeps_master_weights_is_not_there():
    more = {"dtype": "float32", "precision": "mixed", "numerics": False}
    assert infer("ddp", 2, **more).metrics["memory_bytes"]["optimizer_state"] == 0


def test_the_host_feeds_the_device_that_has_the_batch():
    feeding = {"per_sample": "1 ms", "workers": 1, "prefetch": 1}
    result = infer("data_parallel", 2, input=feeding, global_batch=10, numerics=False)
    waits = [s for s in result.trace.spans if s.activity == "input" and s.step == 1]
    assert {s.rank for s in waits if s.end > s.start} == {0}
    assert result.metrics["step_time_s"] == pytest.approx(10e-3, rel=0.01)


# What is refused ---------------------------------------------------------------------------------


@for_each(
    ("key", "value"),
    [
        ("optimizer", "adam"),
        ("lr_schedule", {"kind": "step_lr", "step_size": 2}),
        ("lr_scaling", "linear"),
        ("clip_grad_norm", 1.0),
        ("grad_accum", 2),
        ("inject", [{"kind": "inf", "rank": 0, "step": 1}]),
        ("recompute", "blocks"),
    ],
)
def test_what_only_training_reads_is_refused(key, value):
    raw = scenario("ddp", 2, mode="inference", **{"optimizer": None, key: value})
    with pytest.raises(ScenarioError) as error:
        checked(raw, Path())
    wanted = f"workload.{key}: mode: inference trains nothing; leave this out."
    assert wanted in error.value.problems


def test_synchronised_statistics_are_refused():
    (line,) = refusal(**NORMED, sync_batchnorm=True)
    assert line == (
        "workload.sync_batchnorm: mode: inference normalises by running statistics, which all "
        "ranks have; leave this out."
    )


def test_a_loss_scale_is_refused():
    precision = {"kind": "amp", "dtype": "float16", "init_scale": 1024}
    (line,) = refusal(dtype="float32", precision=precision)
    assert line == (
        "workload.precision: mode: inference has no loss to scale; leave the keys of the loss "
        "scale out."
    )


def test_a_strategy_that_only_trains_is_refused_with_those_that_do_not():
    assert refusal("horovod") == [
        "strategy.kind: horovod shares the work of training, and workload.mode is inference; use "
        "data_parallel, ddp or single."
    ]


def test_options_about_gradients_are_refused():
    assert refusal({"kind": "ddp", "bucket_cap": "1 MiB"}) == [
        "strategy.bucket_cap: mode: inference has no gradients to send; leave this out."
    ]
    assert refusal({"kind": "data_parallel", "loss_in_forward": True}) == [
        "strategy.loss_in_forward: mode: inference computes no loss; leave this out."
    ]


def test_a_resolved_scenario_of_inference_loads_again():
    raw = scenario("data_parallel", 2, mode="inference", optimizer=None)
    point = checked(raw, Path())
    again = checked(point.resolved(), Path())
    assert again.workload == point.workload
    assert again.workload.optimizer.kind == "none"


@for_each("mode", ["training", "inference"])
def test_pieces_of_a_batch_are_as_long_as_its_longest_sample(mode):
    def lengths(strategy):
        optimizer = None if mode == "inference" else "sgd"
        more = {**TOKENS, "global_batch": 10, "mode": mode, "optimizer": optimizer}
        point = checked(scenario(strategy, 4, **more), Path())
        return [{piece.inputs[0][1] for piece in step} for step in pieces(point)]

    assert {len(each) for each in lengths("data_parallel")} == {1}
    if mode == "training":  # where processes have batches of their own, each pads its own
        assert max(len(each) for each in lengths("ddp")) > 1
