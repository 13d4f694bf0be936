"""The numbers of a run: equal to torch's, to one device's, and untouched by time."""

from pathlib import Path

import numpy as np
import pytest
from draws import draws
from for_each import for_each, for_some
from hypothesis import given, settings
from hypothesis import strategies as st

import simdp
from simdp.scenario import checked

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden"

DEVICE = {
    "peak": {"float32": "10 TFLOP/s", "float64": "5 TFLOP/s"},
    "memory": "10 GB",
    "memory_bandwidth": "1 TB/s",
}


def scenario(folder, world_size, workload, **more):
    raw = {
        "cluster": {
            "world_size": world_size,
            "device": DEVICE,
            "topology": "full_mesh",
            "link": {"alpha": "5 us", "bandwidth": "25 GB/s"},
            **more.pop("cluster", {}),
        },
        "workload": {"dtype": "float64", **workload},
        "strategy": {"kind": "ddp"},
        **more,
    }
    return checked(raw, folder)


def flat(weights, order):
    return np.concatenate([weights[name].ravel() for name in order])


LINEAR_NAMES = [f"layers.{i}.{name}" for i in range(3) for name in ("weight", "bias")]


def store(folder, data, weights):
    np.savez(folder / "data.npz", **data)
    np.savez(folder / "weights.npz", **weights)
    return {"dataset": {"kind": "npz", "path": "data.npz"}, "weights": "weights.npz"}


def few_lengths(make, num_steps):
    """Results of runs that end after the first two steps and the last."""
    return {steps: simdp.simulate(make(steps)) for steps in (1, 2, num_steps)}


# Against real torch ----------------------------------------------------------------------------


@pytest.fixture
def seed_mlp(tmp_path):
    golden = np.load(GOLDEN / "g02_mlp.npz")
    weights = {
        f"layers.{i}.{name}": golden[f"init_{key}{i + 1}"]
        for i in range(3)
        for key, name in (("W", "weight"), ("b", "bias"))
    }
    files = store(tmp_path, {"x": golden["X"], "y": golden["T"]}, weights)
    workload = {
        "model": {"kind": "mlp", "widths": [5, 8, 6, 2]},
        "optimizer": {"kind": "sgd", "lr": 0.01},
        **files,
    }
    return golden, workload


def assert_equals_golden(golden, key, make, num_steps):
    results = few_lengths(make, num_steps)
    losses = golden[f"{key}_loss"]
    final = results[num_steps].metrics
    if losses.ndim == 2:
        np.testing.assert_allclose(final["loss_per_rank"], losses[:num_steps], rtol=1e-12)
    else:
        np.testing.assert_allclose(final["loss"], losses[:num_steps], rtol=1e-12)
    norms = np.linalg.norm(golden[f"{key}_grad"][:num_steps], axis=1)
    np.testing.assert_allclose(final["grad_norm"], norms, rtol=1e-12)
    for steps, result in results.items():
        for replica in result.replicas:
            found = flat(replica, LINEAR_NAMES)
            np.testing.assert_allclose(found, golden[f"{key}_w"][steps - 1], rtol=0, atol=1e-12)
    assert final["replicas_identical"] is True


def test_one_process_trains_as_torch(tmp_path, seed_mlp):
    golden, workload = seed_mlp

    def make(steps):
        return scenario(
            tmp_path,
            1,
            {**workload, "global_batch": 30, "steps": steps},
            strategy={"kind": "single"},
        )

    assert_equals_golden(golden, "single", make, 16)


@pytest.mark.long
@for_each("world_size", [2, 3, 4])
@for_each("weighted", [False, True])
def test_contiguous_shards_train_as_torch(tmp_path, seed_mlp, world_size, weighted):
    golden, workload = seed_mlp

    def make(steps):
        return scenario(
            tmp_path,
            world_size,
            {**workload, "global_batch": 30, "steps": steps},
            strategy={"kind": "ddp", "weight_by_shard": weighted},
        )

    key = f"w{world_size}_chunk" + "_weighted" * weighted
    assert_equals_golden(golden, key, make, 16)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_distributed_sampler_shards_train_as_torch(tmp_path, seed_mlp, world_size):
    golden, workload = seed_mlp

    def make(steps):
        return scenario(
            tmp_path,
            world_size,
            {**workload, "microbatch": 30 // world_size, "steps": steps},
        )

    num_steps = len(golden[f"w{world_size}_sampler_loss"])
    assert_equals_golden(golden, f"w{world_size}_sampler", make, num_steps)


def test_four_epochs_are_sixteen_steps(tmp_path, seed_mlp):
    _, workload = seed_mlp
    result = simdp.simulate(scenario(tmp_path, 4, {**workload, "global_batch": 30, "epochs": 4}))
    assert len(result.metrics["loss"]) == 16


@for_each("dtype", ["float64", "float32"])
@for_each("world_size", [2, 3, 4, 8])
def test_einsum_gradients_average_as_torchs(tmp_path, dtype, world_size):
    golden = np.load(GOLDEN / "g03_einsum.npz")
    weights = {"weight": golden["W"]}
    files = store(tmp_path, {"x": golden["X"], "y": golden["Y"]}, weights)
    result = simdp.simulate(
        scenario(
            tmp_path,
            world_size,
            {
                "model": {"kind": "einsum", "equation": "bd,df->bf", "d": 32, "f": 16},
                "optimizer": {"kind": "sgd", "lr": 1.0},
                "global_batch": 64,
                "steps": 1,
                "dtype": dtype,
                **files,
            },
        )
    )
    # With a learning rate of 1 the weight moves by the gradient.
    gradient = golden["W"].astype(dtype) - result.replicas[-1]["weight"]
    key = f"w{world_size}_{dtype}_avg"
    tolerance = 1e-12 if dtype == "float64" else 1e-6
    np.testing.assert_allclose(gradient, golden[key], rtol=0, atol=tolerance)
    np.testing.assert_allclose(
        result.metrics["loss_per_rank"][0], golden[f"w{world_size}_{dtype}_loss"], rtol=tolerance
    )


@for_some("world_size", [2, 4], 2)
@for_each(
    ("case", "accumulate", "no_sync"),
    [("equal4_nosync", 4, True), ("equal4_syncall", 4, False), ("uneven_weighted", None, True)],
)
def test_accumulated_gradients_equal_torchs(tmp_path, world_size, case, accumulate, no_sync):
    golden = np.load(GOLDEN / "g09_accum.npz")
    weights = {name: golden[f"init{i}"] for i, name in enumerate(LINEAR_NAMES)}
    files = store(tmp_path, {"x": golden["X"], "y": golden["T"]}, weights)
    uneven = {2: [16, 8, 6, 2], 4: [8, 4, 2, 2]}[world_size]

    def make(steps):
        return scenario(
            tmp_path,
            world_size,
            {
                "model": {"kind": "mlp", "widths": [5, 8, 6, 2]},
                "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9},
                "global_batch": 64,
                "grad_accum": accumulate or uneven,
                "steps": steps,
                **files,
            },
            strategy={"kind": "ddp", "no_sync": no_sync},
        )

    results = few_lengths(make, 3)
    for steps, result in results.items():
        found = flat(result.replicas[-1], LINEAR_NAMES)
        expected = golden[f"w{world_size}.{case}.w"][steps - 1]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    norms = np.linalg.norm(golden[f"w{world_size}.{case}.grad"], axis=1)
    np.testing.assert_allclose(results[3].metrics["grad_norm"], norms, rtol=1e-12)
    calls = [
        span
        for span in results[1].trace.spans
        if span.rank == 0 and span.activity == "comm" and span.step == 0
    ]
    assert len(calls) == (1 if no_sync else 4)


# Identities ------------------------------------------------------------------------------------

WORKLOAD = {
    "model": {"kind": "mlp", "widths": [6, 7, 5, 3], "activation": "tanh"},
    "dataset": {"kind": "regression", "num_samples": 96},
    "optimizer": {"kind": "adam", "lr": 0.01},
    "steps": 3,
}


@draws(6, 12, deadline=None)
@given(
    world_size=st.sampled_from([1, 2, 3, 4, 6, 8]),
    per_rank=st.integers(1, 4),
    accumulate=st.sampled_from([1, 2]),
    all_reduce=st.sampled_from(["ring", "tree", "naive", {"kind": "ring", "chunking": "gloo"}]),
    bucket_cap=st.sampled_from([None, "0 B", "200 B", "1 MiB"]),
    topology=st.sampled_from(["ring", "switch", "full_mesh"]),
    find_unused=st.booleans(),
)
def test_n_ranks_of_b_equal_one_rank_of_n_times_b(
    world_size, per_rank, accumulate, all_reduce, bucket_cap, topology, find_unused
):
    batch = world_size * per_rank * accumulate
    strategy = {"kind": "ddp", "find_unused_parameters": find_unused}
    if bucket_cap:
        strategy["bucket_cap"] = bucket_cap
    many = simdp.simulate(
        scenario(
            Path(),
            world_size,
            {**WORKLOAD, "global_batch": batch, "grad_accum": accumulate},
            strategy=strategy,
            collectives={"all_reduce": all_reduce},
            cluster={"topology": topology},
        )
    )
    one = simdp.simulate(
        scenario(Path(), 1, {**WORKLOAD, "global_batch": batch}, strategy={"kind": "single"})
    )
    assert many.metrics["replicas_identical"] is True
    np.testing.assert_allclose(many.metrics["loss"], one.metrics["loss"], rtol=1e-12)
    for name, weight in one.replicas[0].items():
        np.testing.assert_allclose(many.replicas[-1][name], weight, rtol=0, atol=1e-12)


def test_unequal_shards_give_the_mean_of_means_until_they_are_weighted():
    # 10 samples over 4 ranks: torch.chunk gives 3, 3, 3, 1.
    workload = {**WORKLOAD, "global_batch": 10, "steps": 2, "optimizer": {"kind": "sgd", "lr": 0.1}}
    one = simdp.simulate(scenario(Path(), 1, workload, strategy={"kind": "single"}))
    plain = simdp.simulate(scenario(Path(), 4, workload))
    weighted = simdp.simulate(
        scenario(Path(), 4, workload, strategy={"kind": "ddp", "weight_by_shard": True})
    )
    for name, weight in one.replicas[0].items():
        np.testing.assert_allclose(weighted.replicas[0][name], weight, rtol=0, atol=1e-12)
    name = "layers.0.weight"
    assert np.abs(plain.replicas[0][name] - one.replicas[0][name]).max() > 1e-4


def test_weighting_by_shard_counts_targets_where_some_are_ignored(tmp_path):
    random = np.random.default_rng(0)
    labels = random.integers(3, size=24)
    labels[[0, 1, 2, 9, 16]] = -100
    np.savez(tmp_path / "data.npz", x=random.standard_normal((24, 6)), y=labels)
    workload = {
        **WORKLOAD,
        "dataset": {"kind": "npz", "path": "data.npz"},
        "loss": "cross_entropy",
        "optimizer": {"kind": "sgd", "lr": 0.5},
        "global_batch": 24,
    }
    one = simdp.simulate(scenario(tmp_path, 1, workload, strategy={"kind": "single"}))
    many = simdp.simulate(
        scenario(
            tmp_path,
            4,
            {**workload, "grad_accum": 2},
            strategy={"kind": "ddp", "weight_by_shard": True},
        )
    )
    np.testing.assert_allclose(many.metrics["loss"], one.metrics["loss"], rtol=1e-12)
    for name, weight in one.replicas[0].items():
        np.testing.assert_allclose(many.replicas[0][name], weight, rtol=0, atol=1e-12)


@for_some("strategy", ["ddp", "fsdp", "zero2"], 3)
@for_each("kind", ["cross_entropy", "nll"])
@for_each("reduction", ["mean", "sum"])
def test_weighting_by_shard_counts_the_weights_of_classes(tmp_path, kind, reduction, strategy):
    """And ranks whose losses are sums add them up; 22 samples give them 6, 6, 6 and 4."""
    random = np.random.default_rng(0)
    labels = random.integers(3, size=22)
    labels[[0, 1, 2, 9]] = -100
    np.savez(tmp_path / "data.npz", x=random.standard_normal((22, 6)), y=labels)
    workload = {
        **WORKLOAD,
        "dataset": {"kind": "npz", "path": "data.npz"},
        "loss": {"kind": kind, "weight": [0.2, 1, 3], "reduction": reduction},
        "optimizer": {"kind": "sgd", "lr": 0.02},
        "global_batch": 22,
    }
    if kind == "nll":
        layers = [{"kind": "linear", "in_features": 6, "out_features": 3}, "log_softmax"]
        workload["model"] = {"kind": "sequential", "layers": layers}
    one = simdp.simulate(scenario(tmp_path, 1, workload, strategy={"kind": "single"}))
    micro = scenario(tmp_path, 1, {**workload, "grad_accum": 2}, strategy={"kind": "single"})
    strategy = {"kind": strategy, "weight_by_shard": True}
    many = scenario(tmp_path, 4, {**workload, "grad_accum": 2}, strategy=strategy)
    for result in [simdp.simulate(many), *([simdp.simulate(micro)] * (reduction == "sum"))]:
        np.testing.assert_allclose(result.metrics["loss"], one.metrics["loss"], rtol=1e-12)
        for name, weight in one.replicas[0].items():
            np.testing.assert_allclose(result.replicas[-1][name], weight, rtol=0, atol=1e-12)


def test_ddp_averages_the_gradients_of_sums():
    """Without weights, its step is that of one device at a world_size-th of the rate."""
    workload = {**WORKLOAD, "loss": {"kind": "mse", "reduction": "sum"}, "global_batch": 12}
    rate = {"kind": "sgd", "lr": 0.02}
    many = simdp.simulate(scenario(Path(), 4, {**workload, "optimizer": rate}))
    rate = {"kind": "sgd", "lr": 0.02 / 4}
    alone = scenario(Path(), 1, {**workload, "optimizer": rate}, strategy={"kind": "single"})
    one = simdp.simulate(alone)
    np.testing.assert_allclose(many.metrics["loss"], one.metrics["loss"], rtol=1e-12)
    for name, weight in one.replicas[0].items():
        np.testing.assert_allclose(many.replicas[0][name], weight, rtol=0, atol=1e-12)
    each = np.array(many.metrics["loss_per_rank"])
    np.testing.assert_allclose(each.sum(axis=1), many.metrics["loss"], rtol=1e-12)


@for_each("loss_in_forward", [False, True])
def test_data_parallel_adds_up_or_averages_sums(loss_in_forward):
    """A loss of all outputs is one sum; losses of each device are averaged, as a script does."""
    workload = {**WORKLOAD, "loss": {"kind": "mse", "reduction": "sum"}, "global_batch": 12}
    share = 4 if loss_in_forward else 1
    rate = {"kind": "sgd", "lr": 0.004 * share}
    strategy = {"kind": "data_parallel", "loss_in_forward": loss_in_forward}
    many = simdp.simulate(scenario(Path(), 4, {**workload, "optimizer": rate}, strategy=strategy))
    workload["optimizer"] = {"kind": "sgd", "lr": 0.004}
    one = simdp.simulate(scenario(Path(), 1, workload, strategy={"kind": "single"}))
    found = np.array(many.metrics["loss"]) * share
    np.testing.assert_allclose(found, one.metrics["loss"], rtol=1e-12)
    for name, weight in one.replicas[0].items():
        np.testing.assert_allclose(many.replicas[0][name], weight, rtol=0, atol=1e-12)


def test_a_rank_without_samples_has_no_loss_and_a_gradient_of_zero():
    # 10 over 8 is 2, 2, 2, 2, 2: three ranks have nothing.
    workload = {**WORKLOAD, "global_batch": 10, "steps": 1}
    result = simdp.simulate(scenario(Path(), 8, workload))
    losses = result.metrics["loss_per_rank"][0]
    assert [loss is None for loss in losses] == [False] * 5 + [True] * 3
    assert result.metrics["replicas_identical"] is True
    compute = {
        span.rank
        for span in result.trace.spans
        if span.activity == "forward" and span.end > span.start
    }
    assert compute == set(range(5))


@pytest.mark.long
@settings(max_examples=8, deadline=None)
@given(
    factor=st.floats(1, 3),
    sigma=st.floats(0, 0.5),
    bandwidth=st.sampled_from(["1 GB/s", "100 GB/s"]),
    fabric=st.sampled_from(["event", "auto"]),
    overlap=st.booleans(),
)
def test_timing_changes_when_but_never_what(factor, sigma, bandwidth, fabric, overlap):
    workload = {**WORKLOAD, "microbatch": 3, "dtype": "float32"}
    plain = simdp.simulate(scenario(Path(), 4, workload))
    disturbed = simdp.simulate(
        scenario(
            Path(),
            4,
            workload,
            cluster={
                "link": {"alpha": "1 us", "bandwidth": bandwidth},
                "stragglers": [
                    {"kind": "slow_rank", "rank": 2, "factor": factor},
                    {"kind": "lognormal", "sigma": sigma},
                    {"kind": "pause", "rank": 0, "every": "100 us", "duration": "30 us"},
                ],
            },
            strategy={"kind": "ddp", "overlap": overlap},
        ),
        fabric=fabric,
    )
    assert disturbed.metrics["loss"] == plain.metrics["loss"]
    for name, weight in plain.replicas[0].items():
        assert disturbed.replicas[3][name].tobytes() == weight.tobytes()
    assert disturbed.metrics["step_time_s"] != plain.metrics["step_time_s"]


def test_the_constructor_gives_every_rank_rank_0s_weights():
    workload = {**WORKLOAD, "microbatch": 2, "optimizer": "none", "steps": 1}
    many = simdp.simulate(scenario(Path(), 3, workload))
    one = simdp.simulate(scenario(Path(), 1, workload, strategy={"kind": "single"}))
    for name, weight in one.replicas[0].items():
        for replica in many.replicas:
            assert replica[name].tobytes() == weight.tobytes()
    broadcasts = [span for span in many.trace.spans if span.name == "broadcast parameters 0"]
    assert {span.step for span in broadcasts} == {-1}


def test_a_run_without_numerics_takes_the_same_time():
    workload = {**WORKLOAD, "microbatch": 3}
    cluster = {"stragglers": [{"kind": "lognormal", "sigma": 0.3}]}
    full, bare = (
        simdp.simulate(scenario(Path(), 4, workload, cluster=cluster, numerics=numerics))
        for numerics in (True, False)
    )
    for name in ("step_time_s", "exposed_comm_s", "simulated_s", "bytes_sent_per_rank"):
        assert bare.metrics[name] == pytest.approx(full.metrics[name], rel=1e-12)
    assert bare.replicas is None
    assert bare.metrics["loss"] is bare.metrics["replicas_identical"] is None
