"""Whole runs with a parameter server: the numbers, and that the clock decides what it should."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from draws import draws
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from small_scenario import FAST

import simdp
from simdp.engine.samples import BatchSamples
from simdp.errors import ScenarioError
from simdp.scenario import checked

pytestmark = pytest.mark.slow

MLP = {"kind": "mlp", "widths": [5, 7, 3], "activation": "tanh"}
EINSUM = {"kind": "einsum", "equation": "bd,df->bf", "d": 6, "f": 4}
LINEAR = {"kind": "mlp", "widths": [4, 3]}
CONVOLUTION = {
    "kind": "sequential",
    "input_shape": [2, 4, 4],
    "layers": [
        {"name": "conv", "kind": "conv2d", "in_channels": 2, "out_channels": 3, "kernel_size": 3},
        "relu",
        "flatten",
        {"name": "fc", "kind": "linear", "in_features": 12, "out_features": 2},
    ],
}
BATCH_NORM = {
    "kind": "sequential",
    "layers": [
        {"name": "l1", "kind": "linear", "in_features": 4, "out_features": 5},
        {"name": "bn", "kind": "batch_norm1d", "num_features": 5},
        {"name": "l2", "kind": "linear", "in_features": 5, "out_features": 2},
    ],
}
SYNC = {"kind": "parameter_server"}
ASYNC = {"kind": "parameter_server", "updates": "asynchronous"}
SLOW = {"stragglers": [{"kind": "slow_rank", "rank": 1, "factor": 4.0}]}
JITTER = {"stragglers": [{"kind": "lognormal", "sigma": 0.5}]}

models = st.sampled_from([MLP, EINSUM, CONVOLUTION])
optimizers = st.sampled_from(
    [
        {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
        {"kind": "adam", "lr": 0.01, "eps": 1e-3},
        {"kind": "sgd", "lr": 0.05, "weight_decay": 0.1},
    ]
)
world_sizes = st.integers(1, 5)
seeds = st.integers(0, 2**16)
few = draws(5, 10)


def scenario(strategy, world_size=4, cluster=None, seed=0, numerics=True, sweep=None, **workload):
    raw = {
        "seed": seed,
        "cluster": {**FAST, "world_size": world_size, **(cluster or {})},
        "workload": {
            "model": MLP,
            "dataset": {"kind": "regression", "num_samples": 120},
            "optimizer": {"kind": "sgd", "lr": 0.05},
            "dtype": "float64",
            "microbatch": 3,
            "steps": 4,
            "shuffle": True,
            **workload,
        },
        "strategy": strategy,
        "numerics": numerics,
        "sweep": sweep or {},
    }
    return checked(raw, Path())


def play(*args, **options):
    return simdp.simulate(scenario(*args, **options))


def same_bits(one, other):
    return all(
        array.tobytes() == b[name].tobytes()
        for a, b in zip(one.replicas, other.replicas, strict=True)
        for name, array in a.items()
    )


def of_server(result):
    return result.replicas[result.server["rank"]]


# Synchronous -------------------------------------------------------------------------------------


@few
@given(models, world_sizes, optimizers, seeds, st.data())
def test_synchronous_updates_learn_what_ddp_does(model, world_size, optimizer, seed, data):
    options = {"model": model, "optimizer": optimizer, "clip_grad_norm": 0.5}
    server = data.draw(st.integers(0, world_size - 1))
    together = play({**SYNC, "server": server}, world_size, seed=seed, **options)
    wanted = play("ddp", world_size, seed=seed, **options)
    for own in together.replicas:
        for name, array in wanted.replicas[0].items():
            np.testing.assert_allclose(own[name], array, rtol=0, atol=1e-12)
    assert together.metrics["replicas_identical"]
    for key in ("loss", "grad_norm", "lr"):
        np.testing.assert_allclose(together.metrics[key], wanted.metrics[key], rtol=1e-10)


@few
@given(world_sizes, seeds, st.data())
def test_without_backup_no_timing_changes_a_bit(world_size, seed, data):
    plain = play(SYNC, world_size, seed=seed, dtype="float32")
    server = data.draw(st.integers(0, world_size - 1))
    slow_link = {"topology": "switch", "link": {"alpha": "1 ms", "bandwidth": "1 MB/s"}}
    for cluster in (SLOW | slow_link if world_size > 1 else slow_link, JITTER):
        other = play({**SYNC, "server": server}, world_size, cluster, seed, dtype="float32")
        assert same_bits(plain, other)
        assert other.metrics["loss"] == plain.metrics["loss"]


def test_a_synchronous_step_takes_what_the_formula_says():
    n, alpha, bandwidth = 5, 5e-6, 25e9
    result = play(SYNC, n, {"topology": "switch"}, optimizer="none")
    m, nbytes = result.metrics, sum(w.nbytes for w in result.replicas[0].values())
    message = 2 * alpha + (n - 1) * nbytes / bandwidth  # all share the server's port
    average = (n + 1) * nbytes / 1e12
    assert m["step_time_s"] == pytest.approx(m["compute_s"] + 2 * message + average, rel=1e-12)
    assert m["exposed_comm_s"] == pytest.approx(2 * message * (n - 1) / n, rel=1e-12)
    assert m["bytes_sent_per_rank"] == [(n - 1) * nbytes] + [nbytes] * (n - 1)
    assert result.network["links"][0]["nbytes"] == (n - 1) * nbytes


def test_the_server_needs_no_link_to_its_own_rank():
    result = play(SYNC, 1)
    m, alone = result.metrics, play("single", 1)
    assert m["comm_s"] == m["wait_s"] == 0
    assert m["bytes_sent_per_rank"] == [0]
    assert m["step_time_s"] == pytest.approx(alone.metrics["step_time_s"], rel=1e-12)
    assert result.network["num_links_used"] == 0
    assert same_bits(result, alone)


def test_micro_steps_are_pushed_once():
    once, cut = play(SYNC), play(SYNC, grad_accum=3, microbatch=1)
    assert cut.metrics["bytes_sent_per_rank"] == once.metrics["bytes_sent_per_rank"]
    for name, array in of_server(once).items():
        np.testing.assert_allclose(of_server(cut)[name], array, rtol=0, atol=1e-12)


# Backup ------------------------------------------------------------------------------------------


@few
@given(st.integers(2, 5), seeds, st.booleans(), st.data())
def test_a_step_takes_the_first_gradients_and_counts_the_others(n, seed, jitter, data):
    backup = data.draw(st.integers(0, n - 1))
    strategy = {**SYNC, "backup": backup}
    result = play(strategy, n, JITTER if jitter else None, seed)
    server, steps = result.server, 4
    assert server["updates"] == steps
    assert server["applied"] == steps * (n - backup)
    begun = len(
        {
            (s.rank, s.start)
            for s in result.trace.spans
            if s.name == "layers.0" and s.activity == "forward"
        }
    )
    assert begun == server["applied"] + server["dropped"] + server["under_way"]
    for losses in result.metrics["loss_per_rank"]:
        assert sum(loss is not None for loss in losses) == n - backup
    assert server["staleness"]["max"] == 0


@for_each("backup", [1, 2, 3])
@for_each("cluster", [{"topology": "switch"}, JITTER], ids=["even", "jitter"])
def test_a_worker_without_samples_takes_nobodys_place(backup, cluster):
    """torch.chunk hands out 2, 2, 2, and rank 3 gets nothing."""
    few = {"microbatch": None, "global_batch": 6}
    result = play({**SYNC, "backup": backup}, 4, {**cluster}, **few)
    assert result.server["applied"] == 4 * min(4 - backup, 3)
    assert all(losses[3] is None for losses in result.metrics["loss_per_rank"])
    assert result.metrics["bytes_sent_per_rank"][3] == 0
    parts = ("compute_s", "update_s", "exposed_comm_s", "wait_s", "other_s")
    m = result.metrics
    assert sum(m[key] for key in parts) == pytest.approx(m["step_time_s"], rel=1e-12)


def test_a_backup_that_no_batch_needs_waits_for_all_that_have_samples():
    """The fourth rank has none, and nobody is dropped: the mean of three gradients is applied."""
    few = {"microbatch": None, "global_batch": 6}
    four, three = play({**SYNC, "backup": 1}, 4, JITTER, **few), play(SYNC, 3, JITTER, **few)
    assert four.metrics["loss"] == three.metrics["loss"]
    assert (four.server["dropped"], four.server["applied"]) == (0, 12)


def test_ties_go_to_the_lower_rank():
    result = play({**SYNC, "backup": 2}, 4, {"topology": "switch"})
    for losses in result.metrics["loss_per_rank"]:
        assert [loss is not None for loss in losses] == [True, True, False, False]


def test_dropped_gradients_leave_what_the_others_alone_would_learn():
    """With rank 1 too slow to be heard, the rest is DDP on the samples of the others."""
    slow = {"stragglers": [{"kind": "slow_rank", "rank": 1, "factor": 1e6}]}
    result = play({**SYNC, "backup": 1}, 2, slow, shuffle=False)
    alone = play("single", 1, shuffle=False, steps=4, samples_per_rank=[120])
    weights = run_by_hand(scenario(SYNC, 2, shuffle=False, model=LINEAR))
    got = play({**SYNC, "backup": 1}, 2, slow, shuffle=False, model=LINEAR)
    for name, array in weights.items():
        np.testing.assert_allclose(of_server(got)[name], array, rtol=0, atol=1e-12)
    assert result.server["dropped"] == 0
    assert result.server["under_way"] == 1
    assert alone.metrics["loss"] != result.metrics["loss"]


def run_by_hand(point):
    """Let rank 0 alone learn a linear layer from its share of the samples."""
    hand = ByHand(point)
    for step in range(4):
        hand.apply(hand.gradient(0, step, hand.weights))
    return hand.weights


class ByHand:
    """A linear layer under mean squared error and plain SGD, in a few lines."""

    def __init__(self, point):
        self.workload = point.workload
        self.arrays = BatchSamples(point).arrays
        n = point.cluster.world_size
        self.batches = list(self.workload.batches(n, point.seed, point.base))
        self.weights = self.workload.initial_weights(point.seed, 0, point.base)

    def gradient(self, rank, step, weights):
        part = self.batches[step].micro[0][rank]
        x, y = self.arrays["x"][part], self.arrays["y"][part]
        error = x @ weights["layers.0.weight"].T + weights["layers.0.bias"] - y
        slope = 2 * error / error.size
        return {"layers.0.weight": slope.T @ x, "layers.0.bias": slope.sum(axis=0)}

    def apply(self, gradient):
        lr = self.workload.optimizer.lr
        self.weights = {name: w - lr * gradient[name] for name, w in self.weights.items()}


# Asynchronous ------------------------------------------------------------------------------------


def replay(point, result):
    """Apply gradients by hand in the order in which the trace says that they came."""
    hand, n = ByHand(point), point.cluster.world_size
    pulled, step_of, stale = [(hand.weights, 0)] * n, [0] * n, []
    spans = [s for s in result.trace.spans if s.activity == "update"]
    for number, span in enumerate(sorted(spans, key=lambda s: s.end)):
        rank = span.rank
        assert span.step == step_of[rank]
        weights, version = pulled[rank]
        stale.append(number - version)
        hand.apply(hand.gradient(rank, step_of[rank], weights))
        pulled[rank], step_of[rank] = (hand.weights, number + 1), step_of[rank] + 1
    return hand.weights, stale


@few
@given(st.integers(1, 5), seeds, st.integers(0, 4), st.booleans())
def test_asynchronous_updates_are_a_replay_in_the_order_of_arrival(n, seed, server, jitter):
    strategy = {**ASYNC, "server": server % n}
    cluster = JITTER if jitter else {"topology": "switch"}
    point = scenario(strategy, n, cluster, seed, model=LINEAR)
    result = simdp.simulate(point)
    weights, stale = replay(point, result)
    for name, array in weights.items():
        np.testing.assert_allclose(of_server(result)[name], array, rtol=0, atol=1e-12)
    found = result.server["staleness"]
    assert found["histogram"] == np.bincount(stale).tolist()
    assert found["max"] == max(stale)
    assert found["mean"] == pytest.approx(np.mean(stale))


@few
@given(st.integers(2, 5), seeds, st.integers(0, 3))
def test_staleness_is_bounded_as_asked_for(n, seed, limit):
    """A worker at most s steps ahead sees 2 s + 1 updates of each other one at most."""
    slow = {"stragglers": [*SLOW["stragglers"], *JITTER["stragglers"]]}
    result = play({**ASYNC, "max_staleness": limit}, n, slow, seed, steps=6, numerics=False)
    server = result.server
    assert server["staleness"]["max"] <= (2 * limit + 1) * (n - 1)
    assert server["applied"] == server["updates"] == 6 * n
    assert server["dropped"] == server["under_way"] == 0
    ends, pulls = {}, {}
    for span in result.trace.spans:
        if span.activity == "update":
            ends[span.rank, span.step] = span.end
        if span.activity == "forward" and span.name == "layers.0":
            pulls[span.rank, span.step] = span.start
    for (_, step), start in pulls.items():
        late = [r for r in range(n) for k in [step - limit - 1] if k >= 0 and ends[r, k] > start]
        assert late == []


@few
@given(seeds, st.sampled_from([SYNC, {**SYNC, "backup": 1}, ASYNC, {**ASYNC, "max_staleness": 1}]))
def test_the_same_seed_gives_the_same_bits_and_instants(seed, strategy):
    one, other = (play(strategy, 4, JITTER, seed, dtype="float32") for _ in range(2))
    assert same_bits(one, other)
    assert list(one.trace.spans) == list(other.trace.spans)
    assert one.metrics == other.metrics
    assert one.server == other.server


@pytest.mark.long
def test_bits_do_not_depend_on_the_number_of_processes():
    point = scenario(ASYNC, 4, JITTER, sweep={"strategy.server": [0, 2]})
    one, two = (simdp.sweep(point, workers=n).to_json() for n in (1, 2))
    assert one == two


def test_timing_changes_what_is_learned():
    steady, delayed = play(ASYNC), play(ASYNC, cluster=SLOW)
    assert not same_bits(steady, delayed)
    assert delayed.server["staleness"]["max"] > steady.server["staleness"]["max"]


def test_a_worker_without_samples_pushes_nothing():
    result = play(ASYNC, 4, microbatch=None, global_batch=6)  # torch.chunk: 2, 2, 2
    assert result.server["applied"] == 12
    assert all(losses[3] is None for losses in result.metrics["loss_per_rank"])
    assert result.metrics["bytes_sent_per_rank"][3] == 0


def test_the_learning_rate_follows_the_updates():
    schedule = {"kind": "step_lr", "step_size": 4, "gamma": 0.5}
    steps = play(SYNC, lr_schedule=schedule, steps=8).metrics["lr"]
    assert steps == [0.05] * 4 + [0.025] * 4
    updates = play(ASYNC, lr_schedule=schedule, steps=3).metrics["lr"]
    assert updates == [0.05, 0.025, 0.0125]  # of rank 0's gradient, with four in each step


# Stragglers --------------------------------------------------------------------------------------


def typical_step(result):
    """Median over ranks, of a steady step [s]."""
    steps = 9
    ends = np.zeros((4, steps + 1))
    for span in result.trace.spans:
        ends[span.rank, span.step + 1] = max(ends[span.rank, span.step + 1], span.end)
    return float(np.median(ends[:, -1] - ends[:, 1])) / (steps - 1)


def test_a_slow_rank_holds_up_all_but_asynchronous_workers_and_backups():
    def slowdown(strategy):
        # Micro-steps, so that workers take long beside the server, which launches its updates.
        longer = {"steps": 9, "grad_accum": 3, "microbatch": 1}
        steady, slow = (play(strategy, cluster=c, **longer) for c in (None, SLOW))
        return typical_step(slow) / typical_step(steady)

    assert slowdown("ddp") > 3
    assert slowdown(SYNC) > 3
    assert slowdown({**ASYNC, "max_staleness": 0}) > 3
    assert slowdown({**SYNC, "backup": 1}) == pytest.approx(1, abs=0.02)
    assert slowdown(ASYNC) == pytest.approx(1, abs=0.02)


def test_a_backup_is_heard_of_in_throughput():
    def throughput(strategy, samples):
        found = play(strategy, cluster=SLOW, steps=9).metrics
        assert found["throughput_samples_per_s"] * found["step_time_s"] == pytest.approx(samples)
        return found["throughput_samples_per_s"]

    # Three of four gradients of 3 samples count, four times as often.
    assert throughput({**SYNC, "backup": 1}, 3 * 3) > 2.5 * throughput(SYNC, 4 * 3)


# Time --------------------------------------------------------------------------------------------

EVERY = [SYNC, {**SYNC, "backup": 2}, ASYNC, {**ASYNC, "max_staleness": 1, "server": 2}]


@for_each("strategy", EVERY, ids=lambda s: ", ".join(map(str, s.values())))
def test_spans_of_a_lane_never_overlap_and_fill_the_step(strategy):
    busy = {**JITTER, "topology": "switch"}
    result = play(strategy, 4, busy, steps=6, host={"step": "20 us"})
    trace, m = result.trace, result.metrics
    same = (np.diff(trace.rank) == 0) & (np.diff(trace.lane) == 0)
    assert (trace.start[1:][same] >= trace.end[:-1][same]).all()
    parts = ("compute_s", "update_s", "exposed_comm_s", "wait_s", "other_s")
    assert sum(m[key] for key in parts) == pytest.approx(m["step_time_s"], rel=1e-12)
    assert m["other_s"] == pytest.approx(20e-6 * np.exp(0), rel=1.0)
    assert m["simulated_s"] == pytest.approx(trace.end.max())


@for_each("strategy", EVERY, ids=lambda s: ", ".join(map(str, s.values())))
def test_time_and_memory_do_not_depend_on_numerics(strategy):
    real, timed = (play(strategy, 4, JITTER, numerics=numerics) for numerics in (True, False))
    assert list(real.trace.spans) == list(timed.trace.spans)
    assert real.server == timed.server
    assert timed.replicas is None
    for key in ("peak_memory_bytes", "memory_bytes", "step_time_s", "bytes_sent_per_rank", "lr"):
        assert real.metrics[key] == timed.metrics[key]
    assert timed.metrics["loss"] is None


def test_messages_cost_what_the_software_does():
    plain = play(SYNC, 2).metrics
    costly = {"overheads": {"launch": "7 us", "message": "11 us", "message_per_rank": "1 us"}}
    dear = play(SYNC, 2, costly).metrics
    assert dear["step_time_s"] - plain["step_time_s"] == pytest.approx(7e-6 + 2 * 13e-6)


def test_a_worker_waits_for_its_batches():
    slow_input = {"per_sample": "1 ms"}
    result = play({**SYNC, "backup": 1}, 2, SLOW, input=slow_input)
    waits = [s for s in result.trace.spans if s.activity == "input"]
    assert {s.rank for s in waits} == {0, 1}
    assert result.metrics["step_time_s"] > 3e-3  # three samples


def test_an_update_queues_behind_others():
    big = {"model": {"kind": "parameters", "num_params": 10**6}, "dataset": "none", "steps": 3}
    big["shuffle"] = False
    quick = {"compute": {"kind": "measured", "points": [{"microbatch": 3, "step_time": "1 ms"}]}}
    result = play(ASYNC, 3, numerics=False, dtype="float32", **big, **quick)
    waits = [s for s in result.trace.spans if s.activity == "wait" and s.name == "for the server"]
    updates = sorted((s.start, s.end) for s in result.trace.spans if s.activity == "update")
    assert waits
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(updates))
    busy = sum(end - start for start, end in updates)
    assert result.server["utilization"] == pytest.approx(busy / result.metrics["simulated_s"])


def test_the_vectorised_fabric_is_refused():
    with pytest.raises(ScenarioError, match="'vector' cannot simulate a server; use 'event'"):
        simdp.simulate(scenario(SYNC), fabric="vector")
    event = simdp.simulate(scenario(SYNC), fabric="event")
    assert event.network["fabric"] == "event"


# Memory ------------------------------------------------------------------------------------------


def test_the_server_keeps_weights_state_and_gradients_beside_its_worker():
    adam = {"optimizer": {"kind": "adam"}, "numerics": False}
    result = play({**SYNC, "server": 2}, 4, **adam)
    nbytes = 8 * (5 * 7 + 7 + 7 * 3 + 3)
    peaks, parts = result.metrics["peak_memory_bytes"], result.metrics["memory_bytes"]
    assert peaks[0] == peaks[1] == peaks[3] < peaks[2] == sum(parts.values())
    assert parts["parameters"] == 2 * nbytes  # the worker's and the server's
    assert parts["optimizer_state"] == 2 * nbytes
    assert parts["buckets"] == 3 * nbytes  # one from each of the others
    assert parts["gradients"] == nbytes


def test_a_dropped_gradient_gives_its_room_back():
    result = play({**SYNC, "backup": 1}, 3, numerics=False, steps=2)
    assert (result.server["dropped"], result.server["under_way"]) == (2, 0)
    held = {}
    for one in result.trace.memory:
        for rank, nbytes in zip(
            one.ranks, np.broadcast_to(one.nbytes, len(one.ranks)), strict=True
        ):
            held[rank, one.part] = held.get((rank, one.part), 0) + nbytes
    nbytes = 8 * (5 * 7 + 7 + 7 * 3 + 3)
    left = {rank: [total for (r, _), total in held.items() if r == rank] for rank in range(3)}
    assert sum(left[0]) == 2 * nbytes  # both models; plain SGD has no state
    assert [sum(left[rank]) for rank in (1, 2)] == [nbytes] * 2


def test_memory_needed_is_that_of_a_run():
    from simdp.engine.simulate import memory_needed

    point = scenario(ASYNC, numerics=False, steps=2)
    peaks = [int(peak) for peak in memory_needed(point).peak]
    assert peaks == simdp.simulate(point).metrics["peak_memory_bytes"]


# Precision, buffers, faults ----------------------------------------------------------------------


@for_each("kind", ["amp", "mixed"])
def test_bfloat16_learns_nearly_the_same(kind):
    full = play(ASYNC, dtype="float32")
    low = play(ASYNC, dtype="float32", precision={"kind": kind, "dtype": "bfloat16"})
    for name, array in of_server(full).items():
        gap = np.abs(of_server(low)[name] - array).max()
        assert 0 < gap < 0.03
    ratio = low.metrics["bytes_sent_per_rank"][1] / full.metrics["bytes_sent_per_rank"][1]
    assert ratio == (0.5 if kind == "mixed" else 1)


def test_every_worker_has_buffers_of_its_own():
    result = play(SYNC, 2, model=BATCH_NORM)
    mean = [own["bn.running_mean"] for own in result.replicas]
    assert not np.array_equal(*mean)
    assert result.metrics["replicas_identical"]
    wanted = play({"kind": "ddp", "broadcast_buffers": False}, 2, model=BATCH_NORM)
    for own, other in zip(result.replicas, wanted.replicas, strict=True):
        for name in own:
            np.testing.assert_allclose(own[name], other[name], rtol=0, atol=1e-12)


def test_a_fault_spoils_the_gradient_of_its_worker():
    fault = {"inject": [{"kind": "nan", "rank": 1, "step": 2}]}
    assert np.isnan(of_server(play(ASYNC, 2, **fault))["layers.0.weight"]).any()
    slow = {"stragglers": [{"kind": "slow_rank", "rank": 1, "factor": 1e6}]}
    dropped = play({**SYNC, "backup": 1}, 2, slow, **fault)
    assert np.isfinite(of_server(dropped)["layers.0.weight"]).all()


# What a user sees --------------------------------------------------------------------------------


def test_result_json_tells_of_the_server(tmp_path):
    from simdp.results.result import Study

    study = simdp.sweep(scenario(ASYNC))
    study.save(tmp_path / "result.json")
    loaded = Study.load(tmp_path / "result.json").points[0]
    assert loaded.server == study.points[0].server
    assert list(loaded.server) == [
        "rank",
        "updates",
        "utilization",
        "applied",
        "dropped",
        "under_way",
        "staleness",
    ]
    assert "server" not in simdp.sweep(scenario("ddp")).to_json().partition('"points"')[2]


def test_the_summary_tells_of_staleness(capsys):
    from rich.console import Console

    from simdp.reports.table import summary

    study = simdp.sweep(scenario(ASYNC))
    Console(width=100).print(summary(study))
    said = capsys.readouterr().out
    stale = study.points[0].server["staleness"]
    assert "gradients:" in said
    assert "16 applied in 16 updates, 0 dropped" in said
    assert f"{stale['mean']:.4g} updates on average, {stale['max']} at most" in said


def test_progress_is_told_step_by_step():
    told = []
    simdp.simulate(scenario(ASYNC, cluster=JITTER), progress=told.append)
    assert told == [1, 2, 3, 4]


def test_workers_losses_that_are_sums_add_up_and_their_gradients_are_averaged():
    sums = {"loss": {"kind": "mse", "reduction": "sum"}, "grad_accum": 2}
    sums["optimizer"] = {"kind": "sgd", "lr": 0.005}
    server, ddp = play(SYNC, **sums), play({"kind": "ddp"}, **sums)
    np.testing.assert_allclose(server.metrics["loss"], ddp.metrics["loss"], rtol=1e-12)
    for name, weight in ddp.replicas[0].items():
        np.testing.assert_allclose(server.replicas[0][name], weight, rtol=0, atol=1e-12)
