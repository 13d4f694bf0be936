"""The numbers of comm hooks: what is sent, what is lost, and what comes back of it."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each, for_some
from hypothesis import given, settings
from hypothesis import strategies as st
from small_scenario import FAST

import simdp
from simdp.engine.compression import Largest, LowRank, add, largest, orthonormalise, times
from simdp.engine.payload import FlatBuffers
from simdp.scenario import checked
from simdp.steps.partition import Bucket, Factor, Factoring
from simdp.strategies.comm_hooks import COMM_HOOKS
from simdp.workload.precision import numpy_dtype

pytestmark = pytest.mark.slow

OWN_HOOKS = Path(__file__).parents[1] / "own_hooks.py"
EARLY = {"kind": "power_sgd", "rank": 2, "start_step": 0, "min_compression_rate": 1}
HOOKS = {kind: {"kind": kind} for kind in COMM_HOOKS} | {
    "power_sgd": EARLY,
    "batched_power_sgd": {"kind": "batched_power_sgd", "rank": 2, "start_step": 0},
    "python": {"kind": "python", "path": str(OWN_HOOKS), "name": "first_half"},
    "top_k": {"kind": "top_k", "ratio": 0.2},
}


def play(strategy, world_size=4, cluster=None, collectives=None, **workload):
    raw = {
        "cluster": {"world_size": world_size, **FAST, **(cluster or {})},
        "workload": {
            "model": {"kind": "mlp", "widths": [12, 16, 3], "activation": "tanh"},
            "dataset": {"kind": "regression", "num_samples": 256},
            "optimizer": {"kind": "sgd", "lr": 0.2},
            "microbatch": 8,
            "steps": 12,
            "dtype": "float64",
            **workload,
        },
        "strategy": strategy,
        "collectives": collectives or {},
    }
    return simdp.simulate(checked(raw, Path()))


def hooked(hook, *args, **options):
    return play({"kind": "ddp", "comm_hook": hook}, *args, **options)


def gradients(seed, world_size, shapes, dtype="float64"):
    """A bucket with random gradients on every rank."""
    random = np.random.default_rng(seed)
    bucket = FlatBuffers(shapes, world_size, numpy_dtype(dtype))
    for flat in bucket.flat:
        flat[...] = random.standard_normal(flat.size)
    return bucket


def sum_over_ranks(buffers):
    total = sum(flat.astype(np.float64) for flat in buffers.flat)
    for flat in buffers.flat:
        flat[...] = total


def factoring(factors, rest=(), feedback=True, warm=True, epsilon=0.0):
    none = Bucket((), 0, "float64", 0.0)
    left = none._replace(names=tuple(rest))
    return Factoring(none, left, none, none, tuple(factors), feedback, warm, epsilon, False, "")


def power_step(state, bucket, how):
    """What PowerSGD makes of a bucket, with a plain sum as its all_reduce."""
    thin = state.take(bucket, how)
    sum_over_ranks(thin.rest)
    sum_over_ranks(thin.p)
    state.turn(bucket, how, thin)
    sum_over_ranks(thin.q)
    state.join(bucket, how, thin, len(bucket.flat))


def means(bucket):
    """Mean over the ranks of everything in a bucket, by name."""
    return {name: np.mean(bucket.views(name), axis=0) for name in bucket.names()}


# PowerSGD ----------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(
    widths=st.lists(st.integers(3, 9), min_size=2, max_size=3),
    world_size=st.integers(1, 4),
    warm=st.booleans(),
)
def test_power_sgd_of_full_rank_averages_as_ddp_does(widths, world_size, warm):
    full = {"kind": "power_sgd", "rank": 9, "start_step": 0, "min_compression_rate": 1e-6}
    model = {"model": {"kind": "mlp", "widths": widths, "activation": "tanh"}, "steps": 3}
    plain = play({"kind": "ddp"}, world_size, **model)
    compressed = hooked({**full, "warm_start": warm}, world_size, **model)
    for name, weight in plain.replicas[0].items():
        np.testing.assert_allclose(compressed.replicas[0][name], weight, rtol=0, atol=1e-10)


@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**16),
    world_size=st.integers(1, 4),
    rank=st.integers(1, 4),
    warm=st.booleans(),
)
def test_what_power_sgd_applied_and_what_it_has_lost_is_all_there_was(seed, world_size, rank, warm):
    """Also where buckets are sorted anew in between, as in the second step of DDP."""
    shapes = {"m": (7, 5), "bias": (6,), "k": (4, 3, 2)}
    factors = {"m": Factor("m", 7, 5, rank), "k": Factor("k", 4, 6, rank)}
    state = LowRank(world_size)
    there, applied = [dict.fromkeys(shapes, 0.0) for _ in range(2)]
    for step, layout in enumerate([["m", "bias", "k"], ["k"], ["bias", "m"], ["k"], ["m", "bias"]]):
        bucket = gradients(seed + step, world_size, {name: shapes[name] for name in layout})
        for name, mean in means(bucket).items():
            there[name] = there[name] + mean
        mine = [factors[name] for name in layout if name in factors]
        power_step(state, bucket, factoring(mine, [n for n in layout if n == "bias"], warm=warm))
        for name in layout:
            views = bucket.views(name)
            assert all((view == views[0]).all() for view in views)
            applied[name] = applied[name] + views[0]
    for name in shapes:
        lost = np.mean(state.errors.lost[name], axis=0)
        np.testing.assert_allclose(applied[name] + lost, there[name], atol=1e-12)


@settings(max_examples=8)
@given(world_size=st.integers(1, 4), warm=st.booleans(), cap=st.sampled_from([None, "200 B"]))
def test_a_bucket_as_a_matrix_of_full_rank_averages_as_ddp_does(world_size, warm, cap):
    full = {"kind": "batched_power_sgd", "rank": 99, "start_step": 0, "warm_start": warm}
    model = {"model": {"kind": "mlp", "widths": [5, 7, 3], "activation": "tanh"}, "steps": 3}
    options = {"kind": "ddp", **({"bucket_cap": cap} if cap else {})}
    plain = play(options, world_size, **model)
    compressed = play({**options, "comm_hook": full}, world_size, **model)
    for name, weight in plain.replicas[0].items():
        np.testing.assert_allclose(compressed.replicas[0][name], weight, rtol=0, atol=1e-10)


def test_a_bucket_is_the_product_of_what_was_sent_of_its_square():
    square, state = Factor("all", 4, 4, 1), LowRank(3)
    how = factoring([square])._replace(is_square=True)
    lost, q = [np.zeros((4, 4))] * 3, None
    for step in range(4):
        bucket = gradients(step, 3, {"m": (2, 5), "bias": (3,)})
        wanted = [np.append(flat, [0, 0, 0]).reshape(4, 4) for flat in bucket.flat]
        thin = state.take(bucket, how)
        q = thin.q.views("all")[0].copy() if q is None else q / np.linalg.norm(q)
        sums = [matrix + error for matrix, error in zip(wanted, lost, strict=True)]
        p = sum(matrix @ q for matrix in sums)
        p /= np.linalg.norm(p)
        sum_over_ranks(thin.p)
        state.turn(bucket, how, thin)
        sum_over_ranks(thin.q)
        q = sum(matrix.T @ p for matrix in sums) / 3
        state.join(bucket, how, thin, 3)
        for flat in bucket.flat:
            np.testing.assert_allclose(flat, (p @ q.T).reshape(-1)[:13], atol=1e-12)
        lost = [matrix - p @ q.T for matrix in sums]
    kept = state.state_dict()
    np.testing.assert_allclose(kept["2/lost/all"], lost[2], atol=1e-12)


def test_a_warm_start_comes_to_the_best_approximation_of_its_rank():
    """Of a matrix that stays the same: one step of subspace iteration each time."""
    matrix, state = np.diag([9.0, 7.0, 1.0, 0.5]) + 0.1, LowRank(1)
    left, sizes, right = np.linalg.svd(matrix)
    best = left[:, :2] * sizes[:2] @ right[:2]
    far = []
    for _ in range(25):
        bucket = FlatBuffers({"m": (4, 4)}, 1, np.dtype("float64"))
        bucket.views("m")[0][...] = matrix
        power_step(state, bucket, factoring([Factor("m", 4, 4, 2)], feedback=False))
        far.append(np.abs(bucket.views("m")[0] - best).max())
    assert far[0] > 1e-2
    assert far[-1] < 1e-10


def test_without_a_warm_start_every_step_draws_anew_and_all_ranks_the_same():
    drawn = {}
    for warm in (True, False):
        state, found = LowRank(3), []
        for _ in range(2):
            bucket = gradients(1, 3, {"m": (6, 5)})
            how = factoring([Factor("m", 6, 5, 3)], warm=warm, feedback=False)
            thin = state.take(bucket, how)
            views = thin.q.views("m")
            assert all((view == views[0]).all() for view in views)
            found.append(views[0].copy())
            state.join(bucket, how, thin, 3)
        drawn[warm] = found
    assert (drawn[True][0] == drawn[False][0]).all()
    assert np.abs(drawn[False][0] - drawn[False][1]).max() > 0.1
    np.testing.assert_allclose(drawn[True][0] * 3, drawn[True][1] * 3, atol=1e-12)


@for_each("columns", [1, 2, 3, 5])
@for_each(("dtype", "close"), [("float64", 1e-12), ("float16", 5e-3)])
def test_columns_become_orthonormal_and_span_what_they_did(columns, dtype, close):
    start = np.random.default_rng(columns).standard_normal((8, columns))
    matrix = start.astype(numpy_dtype(dtype))
    orthonormalise(matrix)
    wide = matrix.astype(np.float64)
    np.testing.assert_allclose(wide.T @ wide, np.eye(columns), atol=close)
    np.testing.assert_allclose(wide @ (wide.T @ start), start, atol=20 * close)


def test_a_column_of_zeros_stays_and_an_epsilon_shortens_the_others():
    matrix = np.zeros((4, 2))
    matrix[0, 1] = 3.0
    orthonormalise(matrix)
    np.testing.assert_array_equal(matrix, [[0, 1], [0, 0], [0, 0], [0, 0]])
    orthonormalise(matrix, epsilon=1.0)
    np.testing.assert_array_equal(matrix[0], [0, 0.5])


def test_sixteen_bit_factors_are_multiplied_in_32():
    ones = np.ones((1, 4096), dtype=np.float16)
    assert times(ones, ones.T) == 4096 == times(ones.astype(np.float64), ones.T)
    assert times(ones, ones.T).dtype == np.float32


# Top-k -------------------------------------------------------------------------------------------


@given(
    values=st.lists(st.integers(-4, 4), min_size=1, max_size=40),
    part=st.floats(0, 1),
    dtype=st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
)
def test_the_largest_are_those_of_a_stable_sort(values, part, dtype):
    array = np.array(values, dtype=numpy_dtype(dtype))
    count = max(1, round(part * len(values)))
    wanted = np.sort(np.argsort(-np.abs(np.array(values)), kind="stable")[:count])
    np.testing.assert_array_equal(largest(array, count), wanted)


def test_what_is_no_number_counts_as_infinite():
    places = largest(np.array([1.0, np.nan, -np.inf, 5.0, np.inf]), 3)
    assert places.tolist() == [1, 2, 4]


@settings(max_examples=12)
@given(seed=st.integers(0, 2**16), world_size=st.integers(1, 4), count=st.integers(1, 12))
def test_what_top_k_applied_and_what_it_has_lost_is_all_there_was(seed, world_size, count):
    shapes = {"a": (3, 4), "b": (5,)}
    state = Largest()
    there, applied = [dict.fromkeys(shapes, 0.0) for _ in range(2)]
    for step, layout in enumerate([["a", "b"], ["b"], ["a"], ["b"], ["a"]]):
        bucket = gradients(seed + step, world_size, {name: shapes[name] for name in layout})
        for name, mean in means(bucket).items():
            there[name] = there[name] + mean
        size = bucket.flat[0].size
        add(state.select(bucket, min(count, size), world_size, True), bucket)
        for name in layout:
            applied[name] = applied[name] + bucket.views(name)[0]
    for name in shapes:
        lost = np.mean(state.errors.lost[name], axis=0)
        np.testing.assert_allclose(applied[name] + lost, there[name], atol=1e-12)


def test_without_error_feedback_what_is_not_sent_is_gone():
    state, bucket = Largest(), FlatBuffers({"a": (4,)}, 2, np.dtype("float64"))
    for flat, values in zip(bucket.flat, ([1, -8, 2, 0], [3, 4, -6, 1]), strict=True):
        flat[...] = values
    add(state.select(bucket, 2, 2, False), bucket)
    for flat in bucket.flat:
        np.testing.assert_array_equal(flat, [0, -2, -2, 0])
    assert state.errors.lost == {}


@for_each("feedback", [True, False])
def test_top_k_of_everything_averages_as_ddp_does(feedback):
    everything = {"kind": "top_k", "ratio": 1, "error_feedback": feedback}
    plain, sparse = play({"kind": "ddp"}), hooked(everything)
    for name, weight in plain.replicas[0].items():
        np.testing.assert_allclose(sparse.replicas[0][name], weight, rtol=0, atol=1e-12)


# Whole runs --------------------------------------------------------------------------------------


@for_some("kind", HOOKS, 3)
def test_replicas_stay_equal_and_the_loss_falls_under_every_hook(kind):
    result = hooked(HOOKS[kind], 3)
    assert result.metrics["replicas_identical"] == (kind != "noop")
    assert result.metrics["loss"][-1] < 0.6 * result.metrics["loss"][0]


@for_some("kind", HOOKS, 3)
def test_timing_changes_no_bit_under_any_hook(kind):
    slow = {"stragglers": [{"kind": "slow_rank", "rank": 1, "factor": 3.0}]}
    hasty, late = hooked(HOOKS[kind]), hooked(HOOKS[kind], cluster=slow)
    assert late.metrics["step_time_s"] > hasty.metrics["step_time_s"]
    for name, weight in hasty.replicas[0].items():
        assert weight.tobytes() == late.replicas[0][name].tobytes()


@pytest.mark.parametrize("kind", ["power_sgd", pytest.param("top_k", marks=pytest.mark.long)])
def test_error_feedback_learns_what_compression_alone_forgets(kind):
    """Top-k sends one entry in twenty; PowerSGD, of a matrix of rank 3, one direction."""
    hard = {"kind": kind, "ratio": 0.05} if kind == "top_k" else {**EARLY, "rank": 1}
    steps = {"steps": 60, "optimizer": {"kind": "sgd", "lr": 0.1}}
    with_it, without = (
        hooked({**hard, "error_feedback": feedback}, **steps).metrics["loss"][-1]
        for feedback in (True, False)
    )
    assert with_it < without


@for_each("kind", ["power_sgd", "top_k"])
@for_each("precision", ["mixed", "amp"])
def test_hooks_work_in_sixteen_bits(kind, precision):
    low = {"dtype": "float32", "precision": {"kind": precision, "dtype": "bfloat16"}}
    metrics = hooked(HOOKS[kind], **low).metrics
    assert metrics["replicas_identical"]
    assert metrics["loss"][-1] < metrics["loss"][0]


@for_each("kind", ["power_sgd", "top_k"])
def test_ranks_that_have_run_out_of_samples_take_part(kind):
    joined = {"kind": "ddp", "join": True, "comm_hook": HOOKS[kind]}
    parts = {"samples_per_rank": [96, 48], "steps": None, "epochs": 2}
    dataset = {"dataset": {"kind": "regression", "num_samples": 144}}
    metrics = play(joined, 2, **dataset, **parts).metrics
    assert metrics["replicas_identical"]
    assert metrics["loss_per_rank"][-1][1] is None
    assert metrics["loss"][-1] < metrics["loss"][0]
