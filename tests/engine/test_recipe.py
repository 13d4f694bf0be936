"""The training recipe against torch: batch norm, loss scaling, 16-bit communication, Join."""

import json
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from recorded_mlp import trained
from small_scenario import FAST

import simdp
from simdp.collectives.ring import RingAllReduce
from simdp.engine import payload
from simdp.errors import ScenarioError
from simdp.scenario import checked

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden"

RING_OF_GLOO = {"all_reduce": {"kind": "ring", "chunking": "gloo"}}


def play(folder, world_size, workload, strategy="ddp", **more):
    raw = {
        "cluster": {"world_size": world_size, **FAST},
        "workload": workload,
        "strategy": strategy,
        **more,
    }
    return simdp.simulate(checked(raw, folder))


def differences(replicas, wanted):
    """Largest difference of any tensor on any rank."""
    return max(abs(own[name] - wanted[name]).max() for own in replicas for name in wanted)


# Batch norm ------------------------------------------------------------------------------------

BATCH_NORM_NET = [
    {"name": "l1", "kind": "linear", "in_features": 4, "out_features": 6},
    {"name": "bn", "kind": "batch_norm1d", "num_features": 6},
    "relu",
    {"name": "l2", "kind": "linear", "in_features": 6, "out_features": 3},
]


@pytest.fixture
def batch_norm(tmp_path):
    golden = np.load(GOLDEN / "g06_bn1d.npz")
    np.savez(tmp_path / "data.npz", x=golden["X"].reshape(48, 4), y=golden["T"].reshape(48, 3))
    first = {key[5:]: golden[key] for key in golden.files if key.startswith("init.")}
    np.savez(tmp_path / "weights.npz", **first)
    workload = {
        "model": {"kind": "sequential", "layers": BATCH_NORM_NET},
        "weights": "weights.npz",
        "dataset": {"kind": "npz", "path": "data.npz"},
        "optimizer": {"kind": "sgd", "lr": 0.1},
        "global_batch": 16,
        "dtype": "float64",
    }

    def run(world_size, steps=3, strategy="ddp", **more):
        return play(tmp_path, world_size, {**workload, "steps": steps, **more}, strategy)

    def final(case):
        return {name: golden[f"{case}.final.{name}"] for name in first}

    return golden, run, final


def test_batch_norm_on_one_device_equals_torchs(batch_norm):
    golden, run, final = batch_norm
    result = run(1, strategy="single")
    assert differences(result.replicas, final("full")) < 1e-12
    np.testing.assert_allclose(result.metrics["loss"], golden["full.loss"], rtol=1e-12)
    for step in range(3):
        tensors = run(1, steps=step + 1, strategy="single").replicas[0]
        np.testing.assert_allclose(tensors["bn.running_mean"], golden["full.rm"][step], rtol=1e-12)
        np.testing.assert_allclose(tensors["bn.running_var"], golden["full.rv"][step], rtol=1e-12)
        assert tensors["bn.num_batches_tracked"] == step + 1


@for_each("world_size", [2, 4])
@for_each("case", ["local_bcast", "local_nobcast", "sync"])
def test_batch_norm_under_ddp_equals_torchs(batch_norm, world_size, case):
    golden, run, final = batch_norm
    more = {
        "local_bcast": {},
        "local_nobcast": {"strategy": {"kind": "ddp", "broadcast_buffers": False}},
        "sync": {"sync_batchnorm": True},
    }[case]
    key = f"w{world_size}.{case}"
    for step in range(3):
        result = run(world_size, steps=step + 1, **more)
        for rank, tensors in enumerate(result.replicas):
            for name, short in (("running_mean", "rm"), ("running_var", "rv")):
                wanted = golden[f"{key}.{short}"][step, rank]
                np.testing.assert_allclose(tensors[f"bn.{name}"], wanted, rtol=1e-12)
    assert differences(result.replicas, final(key)) < 1e-12
    np.testing.assert_allclose(result.metrics["loss_per_rank"], golden[f"{key}.loss"], rtol=1e-12)
    if case == "sync":
        assert differences(result.replicas, final("full")) < 1e-12
    else:
        assert differences(result.replicas, final("full")) > 1e-2


def test_synchronised_batch_norm_costs_two_collectives_per_layer(batch_norm):
    _, run, _ = batch_norm
    local, synchronised = run(4), run(4, sync_batchnorm=True)
    more = synchronised.metrics["bytes_sent_per_rank"][0] - local.metrics["bytes_sent_per_rank"][0]
    features, itemsize, n = 6, 8, 4
    gathered = (n - 1) * (2 * features + 1) * itemsize
    reduced = 2 * (n - 1) / n * 2 * features * itemsize
    assert more == gathered + reduced
    assert synchronised.metrics["step_time_s"] > local.metrics["step_time_s"]


def test_local_buffers_stay_out_of_the_constructors_broadcast(batch_norm):
    """torch 2.13: without broadcast_buffers the constructor sends parameters alone."""
    _, run, _ = batch_norm
    for strategy, sent in (("ddp", True), ({"kind": "ddp", "broadcast_buffers": False}, False)):
        spans = run(2, strategy=strategy).trace.spans
        assert any(span.name.startswith("buffers") for span in spans) == sent


def test_running_statistics_travel_in_32_bits_beside_16_bit_weights():
    workload = {
        "model": {"kind": "sequential", "layers": BATCH_NORM_NET},
        "dataset": {"kind": "regression", "num_samples": 32},
        "microbatch": 4,
        "precision": "mixed",
        "steps": 2,
    }
    spans = play(Path(), 2, workload).trace.spans
    sizes = {(s.name, s.nbytes) for s in spans if s.name.split()[0] in ("parameters", "buffers")}
    weights = 4 * 6 + 6 + 6 + 6 + 6 * 3 + 3
    assert {("parameters 0", 2 * weights), ("buffers 0", 4 * 12)} <= sizes


def test_buffers_travel_before_each_forward_that_follows_a_reduction(batch_norm):
    _, run, _ = batch_norm
    quiet = {"kind": "ddp", "broadcast_buffers": False}
    with_buffers = run(4).metrics["bytes_sent_per_rank"]
    without = run(4, strategy=quiet).metrics["bytes_sent_per_rank"]
    buffers = (6 + 6) * 8 + 8  # running mean and variance, and a counter
    # Down a ring of four, every rank but the last hands them on.
    assert sorted(np.subtract(with_buffers, without)) == [0, buffers, buffers, buffers]
    twice = run(4, grad_accum=2).metrics["bytes_sent_per_rank"]
    assert twice == with_buffers  # no_sync leaves the buffers of the second micro-step alone


# Loss scaling ----------------------------------------------------------------------------------

SCALED = json.loads((GOLDEN / "g07_gradscaler.json").read_text())


def scaled(folder, world_size, faults, steps, dtype, **more):
    """The problem of the golden file: y = 0, a linear map of four samples per rank."""
    x = np.linspace(-1, 1, 12).reshape(4, 3)
    shares = np.stack([x * (rank + 1) for rank in range(world_size)], axis=1).reshape(-1, 3)
    np.savez(folder / "data.npz", x=shares, y=np.zeros((len(shares), 2)))
    start = {"layers.0.weight": np.arange(6).reshape(2, 3) / 10, "layers.0.bias": np.zeros(2)}
    np.savez(folder / "weights.npz", **start)
    workload = {
        "model": {"kind": "mlp", "widths": [3, 2]},
        "weights": "weights.npz",
        "dataset": {"kind": "npz", "path": "data.npz"},
        "optimizer": {"kind": "sgd", "lr": 0.1},
        "microbatch": 4,
        "steps": steps,
        "precision": {"kind": "amp", "dtype": dtype, "init_scale": 65536, "growth_interval": 5},
        "inject": faults,
        **more,
    }
    return play(folder, world_size, workload)


@for_each("dtype", ["float16", "bfloat16"])
@for_each(
    ("case", "kind"),
    [
        ("main_inf_at_3_9", "inf"),
        ("nan_at_3_9", "nan"),
        ("no_inf", "inf"),
        ("inf_at_5_interval_boundary", "inf"),
        ("inf_consecutive_2_3_4", "inf"),
    ],
)
def test_the_loss_scale_moves_as_torchs(tmp_path, case, kind, dtype):
    wanted = SCALED[case]
    faults = [{"kind": kind, "rank": 0, "step": step} for step in wanted["skipped_steps"]]
    result = scaled(tmp_path, 1, faults, len(wanted["scale_used"]), dtype)
    assert result.metrics["loss_scale"] == wanted["scale_used"]
    assert result.metrics["skipped_steps"] == wanted["skipped_steps"]
    # torch's run had no autocast; ours rounds to 16 bits, with 11 or 8 bits of mantissa.
    tolerance = {"float16": 1e-4, "bfloat16": 1e-3}[dtype]
    weight = result.replicas[0]["layers.0.weight"]
    np.testing.assert_allclose(weight, wanted["final_weight"], rtol=0, atol=tolerance)


def test_an_inf_on_one_rank_skips_the_step_on_all(tmp_path):
    wanted = SCALED["ddp_w2_inf_only_on_rank1"]["rank0"]
    faults = [{"kind": "inf", "rank": 1, "step": step} for step in wanted["skipped_steps"]]
    result = scaled(tmp_path, 2, faults, len(wanted["scale_used"]), "bfloat16")
    assert result.metrics["loss_scale"] == wanted["scale_used"]
    assert result.metrics["skipped_steps"] == wanted["skipped_steps"]
    assert result.metrics["replicas_identical"]
    for tensors in result.replicas:
        weight = tensors["layers.0.weight"]
        np.testing.assert_allclose(weight, wanted["final_weight"], rtol=0, atol=1e-3)


def test_without_a_loss_scale_an_inf_reaches_every_weight(tmp_path):
    fault = [{"kind": "inf", "rank": 1, "step": 2}]
    result = scaled(tmp_path, 2, fault, 3, "bfloat16", precision="full")
    assert result.metrics["skipped_steps"] is None
    assert result.metrics["loss_scale"] is None
    assert not any(np.isfinite(own["layers.0.weight"]).all() for own in result.replicas)


def test_a_skipped_step_takes_no_time_for_the_optimizer(tmp_path):
    fault = [{"kind": "inf", "rank": 0, "step": 2}]
    skipped = scaled(tmp_path, 1, fault, 2, "float16").metrics
    taken = scaled(tmp_path, 1, [], 2, "float16").metrics
    assert 0 < skipped["update_s"] < taken["update_s"]  # gradients are unscaled either way


# 16-bit communication --------------------------------------------------------------------------


@for_each("world_size", [2, 3, 4, 8])
def test_fp16_gradients_sum_to_torchs_bits_over_gloo(world_size):
    golden = np.load(GOLDEN / "g03_einsum.npz")
    local = golden[f"w{world_size}_float32_local"]
    buffers = [np.divide(own.astype(np.float16), np.float16(world_size)).ravel() for own in local]
    plan = RingAllReduce(chunking="gloo").plan(world_size, float(buffers[0].nbytes))
    payload.run(plan, buffers)
    for own in buffers:
        np.testing.assert_array_equal(own, golden[f"w{world_size}_fp16"].ravel())


@for_each(("hook", "bits"), [("fp16", 11), ("bf16", 8)])
def test_compression_hooks_round_what_travels_and_halve_it(tmp_path, hook, bits):
    golden = np.load(GOLDEN / "g03_einsum.npz")
    np.savez(tmp_path / "data.npz", x=golden["X"], y=golden["Y"])
    np.savez(tmp_path / "weights.npz", weight=golden["W"] * 0)
    workload = {
        "model": {"kind": "einsum", "equation": "bd,df->bf", "d": 32, "f": 16},
        "weights": "weights.npz",
        "dataset": {"kind": "npz", "path": "data.npz"},
        "optimizer": {"kind": "sgd", "lr": 1.0},
        "global_batch": 64,
        "steps": 1,
    }
    plain = play(tmp_path, 4, workload, collectives=RING_OF_GLOO)
    hooked = play(tmp_path, 4, workload, {"kind": "ddp", "comm_hook": hook})
    exact = plain.replicas[0]["weight"]
    error = np.abs(hooked.replicas[0]["weight"] - exact).max() / np.abs(exact).max()
    assert 0 < error < 4 * 2.0**-bits
    assert hooked.metrics["replicas_identical"]
    sent, half = (r.metrics["bytes_sent_per_rank"][0] for r in (plain, hooked))
    assert half == sent / 2
    assert hooked.metrics["bucket_bytes"] == plain.metrics["bucket_bytes"]


def test_sixteen_bit_weights_follow_a_32_bit_master(tmp_path):
    """A change too small for a 16-bit weight adds up in the master, and shows later."""
    small = {"optimizer": {"kind": "sgd", "lr": 1e-4}}
    moved = scaled(tmp_path, 2, [], 40, "bfloat16", precision="mixed", **small)
    full = scaled(tmp_path, 2, [], 40, "bfloat16", precision="full", **small)
    got, wanted = (r.replicas[0]["layers.0.weight"] for r in (moved, full))
    np.testing.assert_array_equal(got, got.astype(np.float16))
    np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-4)
    assert moved.metrics["replicas_identical"]
    assert moved.metrics["bucket_bytes"] == [8 * 2]
    memory = moved.metrics["memory_bytes"]
    assert (memory["parameters"], memory["optimizer_state"]) == (8 * 2, 8 * 4)


# Clipping, Join, parameters without a gradient -------------------------------------------------


def test_clipping_after_the_reduction_equals_one_device(tmp_path):
    workload = {
        "model": {"kind": "mlp", "widths": [4, 8, 2]},
        "dataset": {"kind": "regression", "num_samples": 64},
        "clip_grad_norm": 0.1,
        "optimizer": {"kind": "sgd", "lr": 0.1},
        "global_batch": 16,
        "steps": 4,
        "dtype": "float64",
    }
    one = play(tmp_path, 1, workload, "single")
    assert min(one.metrics["grad_norm"]) > 0.1  # recorded before clipping
    for world_size in (2, 4):
        many = play(tmp_path, world_size, workload)
        assert differences(many.replicas, one.replicas[0]) < 1e-12
        np.testing.assert_allclose(many.metrics["grad_norm"], one.metrics["grad_norm"], rtol=1e-12)
    free = play(tmp_path, 1, {**workload, "clip_grad_norm": None}, "single")
    assert differences(one.replicas, free.replicas[0]) > 1e-3


JOINED = {
    "model": {"kind": "mlp", "widths": [4, 2]},
    "dataset": {"kind": "regression", "num_samples": 40},
    "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
    "samples_per_rank": [24, 16],
    "microbatch": 8,
    "dtype": "float64",
}


@for_each("initial", [True, False])
def test_ranks_that_run_out_of_samples_shadow_the_others(tmp_path, initial):
    joined = {"kind": "ddp", "join": True, "divide_by_initial_world_size": initial}
    result = play(tmp_path, 2, JOINED, joined)
    losses = result.metrics["loss_per_rank"]
    assert [[loss is None for loss in step] for step in losses] == [[False, False]] * 2 + [
        [False, True]
    ]
    # Rank 1 does not step alone; the last to go on hands its weights over at the end.
    assert result.metrics["replicas_identical"]
    # By hand: two steps on both shards, then rank 0 alone, divided by two ranks or by one.
    two = play(tmp_path, 2, {**JOINED, "steps": 2}, joined)
    arrays = checked_arrays(tmp_path)
    weight, bias = (two.replicas[0][f"layers.0.{name}"] for name in ("weight", "bias"))
    x, y = arrays["x"][16:24], arrays["y"][16:24]
    slope = 2 * (x @ weight.T + bias - y) / y.size / (2 if initial else 1)
    momentum = velocity(tmp_path, joined)
    wanted = weight - 0.1 * (0.9 * momentum + slope.T @ x)
    np.testing.assert_allclose(result.replicas[0]["layers.0.weight"], wanted, rtol=1e-12)


def checked_arrays(folder):
    raw = {"cluster": {"world_size": 2, **FAST}, "workload": JOINED, "strategy": {"join": True}}
    scenario = checked(raw, folder)
    workload = scenario.workload
    return workload.dataset.arrays(workload.model, workload.loss, 0, folder)


def velocity(folder, strategy):
    """The momentum after two steps, from how far the second one went."""
    one, two = (play(folder, 2, {**JOINED, "steps": k}, strategy).replicas[0] for k in (1, 2))
    return (one["layers.0.weight"] - two["layers.0.weight"]) / 0.1


def test_join_costs_two_small_all_reduces_per_forward(tmp_path):
    even = {**JOINED, "samples_per_rank": [16, 16]}
    plain = play(tmp_path, 2, even).metrics
    joined = play(tmp_path, 2, even, {"kind": "ddp", "join": True}).metrics
    assert joined["step_time_s"] > plain["step_time_s"]
    spans = play(tmp_path, 2, even, {"kind": "ddp", "join": True}).trace.spans
    names = [span.name for span in spans]
    assert {"active ranks", "will reduce"} <= set(names)


@for_each(("broadcast_buffers", "equal"), [(True, True), (False, False)])
def test_the_last_rank_to_go_on_gives_its_buffers_away_too(tmp_path, broadcast_buffers, equal):
    """torch 2.13: _sync_final_model, with the buffers where broadcast_buffers is true."""
    layers = [
        {"name": "l1", "kind": "linear", "in_features": 4, "out_features": 2},
        {"name": "bn", "kind": "batch_norm1d", "num_features": 2},
    ]
    workload = {**JOINED, "model": {"kind": "sequential", "layers": layers, "input_shape": [4]}}
    joined = {"kind": "ddp", "join": True, "broadcast_buffers": broadcast_buffers}
    one, other = play(tmp_path, 2, workload, joined).replicas
    assert one["bn.num_batches_tracked"] == 3
    for name in ("bn.running_mean", "bn.running_var", "bn.num_batches_tracked"):
        assert np.array_equal(one[name], other[name]) == equal


@pytest.mark.long
@for_each("broadcast", ["ring", "tree", "naive"])
@for_each("fabric", ["auto", "event"])
@for_each(
    "batches", [{}, {"steps": 2}, {"samples_per_rank": None, "microbatch": None, "global_batch": 6}]
)
def test_any_rank_may_be_the_last_to_go_on(broadcast, fabric, batches):
    parts = {"samples_per_rank": [6, 4, 9, 8], "microbatch": 2}
    raw = {
        "cluster": {"world_size": 4, **FAST, "topology": "ring"},
        "workload": {**JOINED, **parts, **batches},
        "strategy": {"kind": "ddp", "join": True},
        "collectives": {"broadcast": broadcast},
    }
    result = simdp.simulate(checked(raw, Path()), fabric=fabric)
    assert result.metrics["replicas_identical"]


def test_ranks_with_different_numbers_of_samples_need_join(refuse):
    assert refuse({"cluster.world_size": 2}, workload=JOINED) == [
        "strategy.join: ranks have different numbers of samples, and those that run out would "
        "leave the others waiting; set join: true."
    ]


def test_a_divisor_of_join_without_join_is_refused(refuse):
    assert refuse({"strategy.divide_by_initial_world_size": False}) == [
        "strategy: divide_by_initial_world_size: false needs join: true."
    ]


SPARE = {
    "kind": "sequential",
    "layers": [
        {"name": "used", "kind": "linear", "in_features": 4, "out_features": 2},
        {"name": "spare", "kind": "linear", "in_features": 4, "out_features": 2},
    ],
    "unused": ["spare"],
}


def test_unused_parameters_need_the_flag_and_then_stay_as_they_are(tmp_path, refuse):
    workload = {
        "model": SPARE,
        "dataset": {"kind": "regression", "num_samples": 32},
        "optimizer": {"kind": "adamw", "lr": 0.1, "weight_decay": 0.5},
        "microbatch": 8,
    }
    assert refuse(workload=workload) == [
        "strategy.find_unused_parameters: spare.weight gets no gradient, so that its bucket would "
        "never be complete; set find_unused_parameters: true."
    ]
    result = play(tmp_path, 2, workload, {"kind": "ddp", "find_unused_parameters": True})
    plain = play(tmp_path, 1, workload, "single")
    for name in ("spare.weight", "spare.bias"):  # not even decayed: torch skips what has no grad
        np.testing.assert_array_equal(result.replicas[1][name], plain.replicas[0][name])
    assert result.metrics["replicas_identical"]
    assert sum(result.metrics["bucket_bytes"]) == 2 * (8 + 2) * 4


@for_each(("scaling", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_the_learning_rate_scales_with_the_number_of_ranks(tmp_path, scaling, factor):
    workload = {
        "model": {"kind": "mlp", "widths": [4, 2]},
        "dataset": {"kind": "regression", "num_samples": 32},
        "optimizer": {"kind": "sgd", "lr": 0.1},
        "lr_schedule": {"kind": "step_lr", "step_size": 1, "gamma": 0.5},
        "lr_scaling": scaling,
        "microbatch": 4,
    }
    assert play(tmp_path, 4, workload).metrics["lr"] == [0.1 * factor, 0.05 * factor]
    assert play(tmp_path, 1, {**workload, "steps": 2}, "single").metrics["lr"] == [0.1, 0.05]


def test_parameter_groups_decay_what_they_are_told_to(tmp_path):
    """The gradient of what is scaled by zero vanishes, so that decay alone moves it."""
    np.savez(tmp_path / "data.npz", x=np.zeros((8, 4)), y=np.zeros((8, 2)))
    weights = {"layers.0.weight": np.ones((2, 4)), "layers.0.bias": np.zeros(2)}
    np.savez(tmp_path / "weights.npz", **weights)
    workload = {
        "model": {"kind": "mlp", "widths": [4, 2]},
        "weights": "weights.npz",
        "dataset": {"kind": "npz", "path": "data.npz"},
        "optimizer": {"kind": "adamw", "lr": 0.1, "weight_decay": 0.5},
        "microbatch": 2,
        "steps": 2,
        "dtype": "float64",
    }
    decayed = play(tmp_path, 2, workload).replicas[1]["layers.0.weight"]
    np.testing.assert_allclose(decayed, 0.95**2, rtol=1e-12)
    groups = [{"params": ["layers.*.weight"], "weight_decay": 0}]
    workload["optimizer"]["param_groups"] = groups
    kept = play(tmp_path, 2, workload).replicas[1]["layers.0.weight"]
    np.testing.assert_array_equal(kept, 1.0)


NORMS = {
    # torch 2.14, clip_grad_norm_(.05, norm_type) of fully_shard on a mesh of 2 x 2 gloo ranks.
    "inf": [0.24488012855227445, 0.21704279152614933, 0.30524689851822584],
    1.0: [3.665714815829187, 3.4375003010653686, 2.708679523361556],
    3.0: [0.3175816876951554, 0.27974630617629853, 0.3183108907594199],
}


@pytest.mark.parametrize("norm_type", NORMS)
def test_gradients_are_clipped_by_any_norm(norm_type):
    options = {"dtype": "float64", "grad_accum": 2, "steps": 3}
    options |= {"clip_grad_norm": 0.05, "norm_type": norm_type}
    for strategy in ({"kind": "hsdp", "shard_size": 2, "units": ["b"]}, {"kind": "ddp"}):
        found = trained(strategy, 4, **options).metrics["grad_norm"]
        assert found == pytest.approx(NORMS[norm_type], rel=1e-12)


def test_the_type_of_a_norm_needs_one():
    with pytest.raises(ScenarioError, match=r"norm_type: inf is of clip_grad_norm, which is not"):
        trained("ddp", 2, norm_type="inf")
