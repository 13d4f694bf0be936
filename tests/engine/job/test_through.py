"""Through: runs that fail and go on end where the policy says, in bits or in torch's arithmetic."""

import json
from pathlib import Path

import numpy as np
import pytest
from every_strategy import scenario as of_strategy
from for_each import for_each, for_some, one_in
from small_scenario import FAST

from simdp import simulate
from simdp.engine.job.history import Attempt, GroupEvent, History, RestartEvent, train_through
from simdp.errors import ScenarioError
from simdp.scenario import checked

pytestmark = pytest.mark.slow

LR, MOMENTUM, EACH, SAMPLES = 0.1, 0.9, 2, 60
AMP = {"kind": "amp", "dtype": "float16", "growth_interval": 2}
OVERFLOW = {"precision": AMP, "inject": [{"kind": "inf", "rank": 1, "step": 3}]}
NOISY = {
    "kind": "sequential",
    "layers": [
        {"kind": "linear", "in_features": 6, "out_features": 8},
        {"kind": "batch_norm1d", "num_features": 8},
        {"kind": "dropout", "p": 0.3},
        {"kind": "linear", "in_features": 8, "out_features": 3},
    ],
}


def linear(world_size, strategy="ddp", **options):
    """A linear model in float64, whose training a test can do by hand."""
    workload = {
        "model": {"kind": "mlp", "widths": [6, 3]},
        "dataset": {"kind": "regression", "num_samples": SAMPLES},
        "optimizer": {"kind": "sgd", "lr": LR, "momentum": MOMENTUM},
        "microbatch": EACH,
        "steps": 12,
        "dtype": "float64",
    }
    cluster = {**FAST, "world_size": world_size, **options.pop("cluster", {})}
    raw = {"cluster": cluster, "workload": workload | options, "strategy": strategy}
    return checked(raw, Path())


class ByHand:
    """Momentum SGD on a linear model with the loss of nn.MSELoss, as torch does it."""

    def __init__(self, case):
        workload = case.workload
        arrays = workload.dataset.arrays(workload.model, workload.loss, case.seed, case.base)
        self.x, self.y = arrays["x"].astype(float), arrays["y"].astype(float)
        start = workload.initial_weights(case.seed, 0, case.base)
        self.w, self.b = (start[f"layers.0.{name}"].copy() for name in ("weight", "bias"))
        self.speed = [np.zeros_like(self.w), np.zeros_like(self.b)]

    def gradient(self, samples):
        error = 2 * (self.x[samples] @ self.w.T + self.b - self.y[samples]) / (len(samples) * 3)
        return [error.T @ self.x[samples], error.sum(axis=0)]

    def step(self, parts, divisor):
        """Sum the gradients of some parts, divide, and update."""
        for place, own in enumerate(zip(*map(self.gradient, parts), strict=True)):
            self.speed[place] = MOMENTUM * self.speed[place] + sum(own) / divisor
        self.w = self.w - LR * self.speed[0]
        self.b = self.b - LR * self.speed[1]

    def agrees(self, result, ranks):
        for rank in ranks:
            for name, value in (("weight", self.w), ("bias", self.b)):
                found = result.replicas[rank][f"layers.0.{name}"]
                np.testing.assert_allclose(found, value, rtol=1e-12, atol=1e-13)


def sampled(iteration, rank, world_size, begin=0):
    """The samples of a rank in an iteration, as torch's elastic sampler deals what is left."""
    mine = np.arange(begin, SAMPLES)[rank::world_size]
    return mine[iteration * EACH : (iteration + 1) * EACH]


# Restarts ----------------------------------------------------------------------------------------

EXACT = {
    "ddp": ("ddp", {}),
    "fsdp": ("fsdp", {"optimizer": {"kind": "adamw", "lr": 0.01}, "clip_grad_norm": 0.05}),
    "zero1": ("zero1", {"optimizer": {"kind": "adam", "lr": 0.01}, "shuffle": True}),
    "zero3": ("zero3", {}),
    "hsdp": ({"kind": "hsdp", "shard_size": 2}, {"shuffle": True}),
    "local_sgd": ({"kind": "local_sgd", "local_steps": 3}, {"shuffle": True}),
    "loss scale": ("ddp", OVERFLOW),
    "loss scale of each rank": ({"kind": "local_sgd", "local_steps": 2}, OVERFLOW),
    "dropout and batch norm": ("ddp", {"model": NOISY, "shuffle": True}),
    "compression": ({"kind": "ddp", "comm_hook": {"kind": "top_k", "ratio": 0.2}}, {}),
    "backup ranks": ({"kind": "ddp", "backup_ranks": 1}, {}),
    "asynchronous": ({"kind": "parameter_server", "updates": "asynchronous"}, {}),
    "uneven epochs": (
        "ddp",
        {"epochs": 2, "steps": None, "dataset": {"kind": "regression", "num_samples": 110}},
    ),
}
LATE = [{"kind": "lognormal", "sigma": 0.3}]


@for_some("name", EXACT, 6)
def test_a_restarted_run_ends_with_the_bits_of_the_run_that_never_failed(name):
    strategy, options = EXACT[name]
    strategy = {"kind": strategy} if isinstance(strategy, str) else strategy
    run = {"steps": 8, "numerics": True, "cluster": {"stragglers": LATE}}
    case = of_strategy(strategy, **(run | options))
    whole = simulate(case)
    num_steps = len(whole.metrics["lr"])
    history = History.restarted(
        num_steps, 3, [RestartEvent(2), RestartEvent(4), RestartEvent(5), RestartEvent(6)]
    )
    assert [attempt[:3] for attempt in history.attempts] == [
        (0, 2, "lost"),
        (0, 3, "kept"),
        (3, 4, "lost"),
        (3, 5, "lost"),
        (3, 6, "kept"),
        (6, num_steps, "kept"),
    ]
    result = train_through(case, history)
    for rank, weights in enumerate(whole.replicas):
        for key, value in weights.items():
            assert result.replicas[rank][key].tobytes() == value.tobytes(), (rank, key)
    assert json.dumps(dict(result.metrics)) == json.dumps(
        dict(whole.metrics)
    )  # nan equals itself here
    tried, losses = result.participation["attempts"], whole.metrics["loss"]
    assert tried[0]["loss"] == losses[:2]
    assert [tried[2]["loss"], tried[3]["loss"]] == [losses[3:4], losses[3:5]]


def test_what_is_done_again_is_told():
    result = train_through(linear(3), History.restarted(10, 4, [RestartEvent(6), RestartEvent(9)]))
    told = result.participation
    assert (told["counted"], told["repeated"], told["uncommitted"]) == (60, 6 * 3, 0)
    assert "samples done again: 18" in " ".join(result.summary().split())


# Other numbers of ranks --------------------------------------------------------------------------


def test_fewer_ranks_train_on_what_is_left_of_the_epoch():
    history = History.restarted(
        12, 3, [RestartEvent(4, world_size=2), RestartEvent(8, world_size=3)]
    )
    result = train_through(linear(4), history)
    hand = ByHand(linear(4))
    for iteration in range(3):
        hand.step([sampled(iteration, rank, 4) for rank in range(4)], 4)
    for iteration in range(3):
        hand.step([sampled(iteration, rank, 2, begin=24) for rank in range(2)], 2)
    for iteration in range(4):
        hand.step([sampled(iteration, rank, 3, begin=36) for rank in range(3)], 3)
    for iteration in range(2):
        hand.step([sampled(iteration, rank, 3) for rank in range(3)], 3)
    hand.agrees(result, range(3))
    assert result.metrics["replicas_identical"]
    assert result.participation["counted"] == 3 * 8 + 3 * 4 + 6 * 6
    assert result.participation["repeated"] == 8 + 2 * 4


@for_some("strategy", ["ddp", "fsdp", "zero1", "zero2", {"kind": "hsdp", "shard_size": 2}], 2)
def test_more_micro_steps_keep_the_global_batch(strategy):
    restarts = [
        RestartEvent(5, world_size=2, grad_accum=2),
        RestartEvent(9, world_size=4, grad_accum=1),
    ]
    case = linear(4, strategy, shuffle=True)
    result, whole = train_through(case, History.restarted(12, 3, restarts)), simulate(case)
    for name, value in whole.replicas[0].items():
        np.testing.assert_allclose(result.replicas[3][name], value, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(result.metrics["loss"], whole.metrics["loss"], rtol=1e-12)


def test_a_global_batch_keeps_itself():
    case = linear(4, microbatch=None, global_batch=12)
    history = History.restarted(12, 2, [RestartEvent(3, world_size=2)])
    result, whole = train_through(case, history), simulate(case)
    for name, value in whole.replicas[0].items():
        np.testing.assert_allclose(result.replicas[0][name], value, rtol=1e-12, atol=1e-13)


# Replica groups ----------------------------------------------------------------------------------

# In step 2 group 1 dies; in step 4 it is back, and copies; in step 7 group 0 dies.
EVENTS = [
    GroupEvent(2, 1, "fail"),
    GroupEvent(4, 1, "join"),
    GroupEvent(7, 0, "fail"),
]
# Of each turn of the training loop: the groups whose gradients count, or none.
TURNS = [
    *[(0, 1, 2)] * 2,
    (),
    *[(0, 2)] * 2,
    (0, 2),
    *[(0, 1, 2)] * 2,
    (),
    *[(1, 2)] * 3,
]
GROUPED = {
    "ddp": (3, "ddp"),
    "ddp, small buckets": (3, {"kind": "ddp", "bucket_cap": "0 B", "overlap": False}),
    "ddp of two ranks each": (6, "ddp"),
    "hsdp": (6, {"kind": "hsdp", "shard_size": 2}),
    "hsdp, kept together": (
        6,
        {"kind": "hsdp", "shard_size": 2, "reshard_after_forward": False, "offload": "cpu"},
    ),
}


@pytest.mark.parametrize("name", one_in(4, GROUPED))
@pytest.mark.parametrize("fabric", ["vector", "event"])
def test_groups_drop_out_and_come_back_as_under_torchft(name, fabric):
    world_size, strategy = GROUPED[name]
    size = world_size // 3
    case = linear(world_size, strategy, steps=10)
    result = train_through(case, History.of_groups(10, 3, EVENTS), fabric=fabric)
    hand, turn_of_epoch = ByHand(case), SAMPLES // (EACH * world_size)
    for turn, groups in enumerate(TURNS):
        ranks = [group * size + place for group in groups for place in range(size)]
        turn %= turn_of_epoch
        if ranks:
            hand.step([sampled(turn, rank, world_size) for rank in ranks], len(ranks))
    hand.agrees(result, range(size, world_size))
    assert result.metrics["replicas_identical"]
    assert len(result.metrics["loss"]) == 10
    told = result.participation
    assert told["counted"] == EACH * size * sum(map(len, TURNS))
    assert told["uncommitted"] == 2 * EACH * world_size
    lost = [[EACH * 3] * size, [EACH * 3] * size, [0] * size]
    assert told["dropped"] == [samples for group in lost for samples in group]


def test_a_step_that_is_not_committed_moves_nothing_but_buffers_and_samples():
    case = linear(2, model=NOISY, steps=6, shuffle=True, optimizer={"kind": "adam", "lr": 0.01})
    attempts = (Attempt(0, 3), Attempt(3, 4, "uncommitted"), Attempt(3, 6))
    result = train_through(case, History(attempts, num_groups=2))
    whole = simulate(case).metrics["loss"]
    assert result.metrics["loss"][:3] == whole[:3]
    assert result.metrics["loss"][3] != whole[3]
    counts = [own["1.num_batches_tracked"] for own in result.replicas]
    assert counts == [7, 7]
    assert len(result.metrics["loss"]) == 6


def test_groups_that_all_stay_train_as_ever():
    case = linear(4, steps=6)
    result = train_through(case, History((Attempt(0, 6),), num_groups=4))
    np.testing.assert_allclose(result.metrics["loss"], simulate(case).metrics["loss"], rtol=1e-12)


def test_spares_add_zeros():
    events = [GroupEvent(2, 0, "fail"), GroupEvent(4, 0, "join")]
    history = History.of_groups(8, 3, events, min_groups=2, fixed=True)
    result = train_through(linear(3, steps=8), history)
    hand = ByHand(linear(3))
    turns = [*[(0, 1)] * 2, (), *[(1, 2)] * 2, (1, 2), *[(0, 1)] * 3]
    for turn, groups in enumerate(turns):
        if groups:
            hand.step([sampled(turn, rank, 3) for rank in groups], 2)
    hand.agrees(result, range(3))


ALIKE = [
    {"kind": "ddp", "find_unused_parameters": True, "no_sync": False},
    {"kind": "ddp", "static_graph": True, "no_sync": False, "gradient_as_bucket_view": True},
    {"kind": "ddp", "weight_by_shard": True},
    {"kind": "hsdp", "shard_size": 2, "reshard_after_forward": 2},
    {"kind": "hsdp", "shard_size": 2, "sync": "last", "units": "whole"},
]


@for_some("strategy", ALIKE, 3, ids=str)
def test_options_send_the_same_otherwise(strategy):
    events = [GroupEvent(0, 0, "fail"), GroupEvent(3, 0, "join"), GroupEvent(4, 1, "fail")]
    options = {"grad_accum": 2, "steps": 6, "clip_grad_norm": 0.3}
    plain, other = (
        train_through(linear(4, of, **options), History.of_groups(6, 2, events))
        for of in ("ddp", strategy)
    )
    np.testing.assert_allclose(other.metrics["loss"], plain.metrics["loss"], rtol=1e-12)
    assert other.participation["dropped"] == plain.participation["dropped"]


def test_absent_groups_take_no_time_and_no_bytes():
    case = linear(
        4, steps=8, cluster={"stragglers": [{"kind": "slow_rank", "rank": 3, "factor": 9}]}
    )
    history = History.of_groups(8, 4, [GroupEvent(2, 3, "fail")])
    result, whole = train_through(case, history).metrics, simulate(case).metrics
    assert result["bytes_sent_per_rank"][3] == 0
    assert result["bytes_sent_per_rank"][0] < whole["bytes_sent_per_rank"][0]
    assert result["step_time_s"] < 0.5 * whole["step_time_s"]


def test_a_loss_scale_is_that_of_those_that_are_there():
    amp = {"kind": "amp", "dtype": "float16", "init_scale": 1024, "growth_interval": 2}
    options = {"precision": amp, "dtype": "float32", "steps": 8}
    events = [GroupEvent(1, 0, "fail"), GroupEvent(5, 0, "join")]
    result = train_through(linear(3, **options), History.of_groups(8, 3, events))
    # The step that is not committed counts for nothing.
    scales = [1024.0, 2048.0, 4096.0, 8192.0]
    assert result.metrics["loss_scale"] == np.repeat(scales, 2).tolist()
    assert result.metrics["replicas_identical"]


def test_a_period_of_local_sgd_is_lost_as_a_whole():
    case = linear(3, {"kind": "local_sgd", "local_steps": 2}, steps=8)
    events = [GroupEvent(3, 1, "fail"), GroupEvent(4, 1, "join")]
    history = History.of_groups(8, 3, events, period=2)
    result = train_through(case, history)
    workers = [ByHand(case) for _ in range(3)]
    turns = [(0, 1, 2), (), (0, 2), (0, 2), (0, 1, 2)]
    for period, there in enumerate(turns):
        if not there:
            continue
        if period == 3:  # back, with a peer's momentum
            workers[1].speed = list(workers[0].speed)
        for turn in (2 * period, 2 * period + 1):
            for rank in there:
                workers[rank].step([sampled(turn, rank, 3)], 1)
        w, b = (sum(getattr(workers[r], name) for r in there) / len(there) for name in "wb")
        for rank in {*there, 1} if period == 3 else there:
            workers[rank].w, workers[rank].b = w, b
    workers[0].agrees(result, range(3))
    assert result.metrics["replicas_identical"]


# Refusals ----------------------------------------------------------------------------------------

PAIR = History((Attempt(0, 4),), num_groups=2)
REFUSED = {
    "no groups": (
        lambda: (linear(4, "fsdp"), PAIR),
        "strategy.kind: fsdp does not support replica groups that leave steps; use ddp, hsdp "
        "or local_sgd, or a recovery that restarts all ranks.",
    ),
    "unequal": (
        lambda: (linear(4), History((Attempt(0, 4),), num_groups=3)),
        "strategy.kind: 3 replica groups do not divide the 4 ranks; use one of 2, 4.",
    ),
    "shards": (
        lambda: (linear(4, {"kind": "hsdp", "shard_size": 1}), PAIR),
        "strategy.shard_size: ranks that have all pieces together drop out together; write 2 for "
        "2 replica groups of 4 ranks.",
    ),
    "join": (
        lambda: (linear(4, {"kind": "ddp", "join": True}), PAIR),
        "strategy.kind: replica groups drop out with their gradients, but join lets ranks leave "
        "too; leave one of them out.",
    ),
    "hook": (
        lambda: (linear(4, {"kind": "ddp", "comm_hook": "top_k"}), PAIR),
        "strategy.kind: replica groups drop out with their gradients, but comm_hook: top_k keeps "
        "a part of them for later steps; use one of none, bf16, fp16.",
    ),
    "backup ranks": (
        lambda: (linear(4, {"kind": "ddp", "backup_ranks": 1}), PAIR),
        "strategy.backup_ranks: replica groups have none; leave it out.",
    ),
    "statistics of all": (
        lambda: (
            linear(
                4,
                model={
                    "kind": "sequential",
                    "layers": [
                        {"kind": "linear", "in_features": 6, "out_features": 3},
                        {"kind": "sync_batchnorm", "num_features": 3},
                    ],
                },
            ),
            PAIR,
        ),
        "strategy.kind: sync_batchnorm needs the statistics of all ranks in the middle of a step, "
        "of which some may be missing; use a batch norm that is not synchronised.",
    ),
    "warm-up": (
        lambda: (linear(4, {"kind": "local_sgd", "warmup_steps": 2}), PAIR),
        "strategy.warmup_steps: replica groups take part in whole periods, each with its average "
        "at its end; leave this out.",
    ),
    "half a period": (
        lambda: (
            linear(4, {"kind": "local_sgd", "local_steps": 4}),
            History((Attempt(0, 4), Attempt(4, 6, "uncommitted"), Attempt(4, 12)), num_groups=2),
        ),
        "history.attempts.1: local_sgd agrees every 4 steps, in which none can drop out; let it "
        "begin and end with these, and fail in 4 at a time.",
    ),
    "algorithm": (
        lambda: (
            checked(
                {
                    **linear(4).resolved(),
                    "collectives": {"all_reduce": {"kind": "torus2d", "dims": [2, 2]}},
                },
                Path(),
            ),
            History.of_groups(8, 4, [GroupEvent(2, 1, "fail")]),
        ),
        "collectives.all_reduce: in quorum groups torus2d ",
    ),
    "too long": (
        lambda: (linear(4), History.restarted(20, 4, [])),
        "history: keeps 20 steps, but the run has 12; set workload.steps to more, or end before.",
    ),
    "epochs": (
        lambda: (linear(4, steps=None, epochs=2), PAIR),
        "workload.epochs: other ranks, or steps that are not committed, change how many steps an "
        "epoch has; write workload.steps.",
    ),
    "server": (
        lambda: (
            linear(4, "parameter_server"),
            History.restarted(8, 2, [RestartEvent(4, world_size=2)]),
        ),
        "cluster: a run with a server cannot resume on another cluster, since messages ",
    ),
    "a cluster that cannot be": (
        lambda: (
            linear(4, {"kind": "hsdp", "shard_size": 2}),
            History.restarted(8, 2, [RestartEvent(4, world_size=3)]),
        ),
        "strategy.shard_size: 2 does not divide the 3 ranks; use one of 1, 3.",
    ),
    "parts of ranks": (
        lambda: (
            linear(2, {"kind": "ddp", "join": True}, samples_per_rank=[40, 20]),
            History.restarted(8, 2, [RestartEvent(4, grad_accum=2)]),
        ),
        "workload.samples_per_rank: each rank has samples of its own, so that a run cannot resume "
        "on another cluster; use the same one.",
    ),
}


@for_each("case", REFUSED)
def test_refusals(case):
    make, line = REFUSED[case]
    with pytest.raises(ScenarioError) as caught:
        train_through(*make())
    assert caught.value.problems[0].startswith(line)


def test_a_sweep_has_no_history():
    sweep = linear(4).model_copy(update={"sweep": {"seed": [1, 2]}})
    with pytest.raises(ValueError, match="the scenario has a sweep; take one of its points"):
        train_through(sweep, History.restarted(12, 4, []))
