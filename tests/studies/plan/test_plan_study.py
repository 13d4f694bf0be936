"""Plans: the pruned search finds what an exhaustive one finds, and says what binds."""

import random
from pathlib import Path

import pytest
import yaml
from for_each import for_each

import simdp
from simdp.errors import ScenarioError
from simdp.job.targets import SamplesNeeded
from simdp.results.plan import Option
from simdp.scenario import checked
from simdp.studies.executor import executor_for
from simdp.studies.plan import PlanRequest, plan, ready
from simdp.studies.plan.report import why_alone, why_best
from simdp.studies.plan.request import (
    chance,
    doubled,
    factors_of,
    luck_of,
    machines_for,
    parse_limit,
    parse_sure,
    usual_choices,
)
from simdp.studies.store import Store

SMALL = {
    "name": "small",
    "cluster": {
        "world_size": 4,
        "devices_per_node": 2,
        "device": "a100-sxm4-80gb",
        "link": {"alpha": "5 us", "bandwidth": "5 GB/s"},
        "inter_node": {"topology": "switch", "link": {"alpha": "20 us", "bandwidth": "1 GB/s"}},
        "price": "1 USD/h",
        "power": {"rest": "50 W", "waiting": "80 W", "busy": "300 W"},
    },
    "workload": {
        "model": {"kind": "mlp", "widths": [512, 1024, 512]},
        "optimizer": "adam",
        "microbatch": 4,
        "grad_accum": 4,
    },
    "numerics": False,
    "target": {"samples": 1e8},
}

KEYS = {
    "nodes": [1, 2, 4],
    "strategy": ["ddp", "zero1", "zero2", "fsdp", {"kind": "ddp", "comm_hook": "fp16"}],
    "workload.microbatch": [1, 2, 4, 8, 16],
    "cluster.price": ["1 USD/h", "2 USD/h"],
    "cluster.inter_node.link.bandwidth": ["500 MB/s", "10 GB/s"],
    "cluster.device": ["a100-sxm4-80gb", "v100-sxm2-16gb", "t4-16gb"],
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


def everything(file, asked):
    """Play all points of a plan, and find the front and the best by looking at each."""
    found = plan(file, PlanRequest(asked.goal, choices=asked.choices))
    from simdp.studies.plan import _timing_only, as_written
    from simdp.studies.plan.request import PlanPoint, Space

    raw = _timing_only(as_written(file), asked)
    batch = 4 * 4 * 4
    space = Space(raw, file.parent, asked.choices, batch)
    rows = []
    for point in space.points():
        if not isinstance(point, PlanPoint):
            continue
        try:
            scenario = space.scenario(point.settings)
        except ScenarioError:
            continue
        result = simdp.simulate(scenario)
        seconds = 1e8 / result.metrics["throughput_samples_per_s"]
        cost = result.target["cost_usd"]["mean"]
        energy = result.target["energy_kwh"]["mean"]
        memory = max(result.metrics["peak_memory_bytes"])
        rows.append((seconds, cost, memory, energy))
    return found, rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "goal"),
    [
        pytest.param(0, "cheapest", marks=pytest.mark.long),
        (1, "fastest"),
        pytest.param(2, "greenest", marks=pytest.mark.long),
    ],
)
def test_the_pruned_search_finds_what_looking_at_everything_finds(file, seed, goal):
    dealt = random.Random(seed)
    choices = {
        key: dealt.sample(values, dealt.randint(1, min(3, len(values))))
        for key, values in KEYS.items()
    }
    found, rows = everything(file, PlanRequest(goal, choices=choices))
    place = {"fastest": 0, "cheapest": 1, "greenest": 3}[goal]
    values = [(o.finish_s, o.cost_usd, o.energy_kwh)[min(place, 2)] for o in found.best]
    assert values == pytest.approx(sorted(row[place] for row in rows)[:5], rel=1e-6)
    front = {
        tuple(f"{v:.6g}" for v in row[:3])
        for row in rows
        if not any(
            all(a <= b * (1 + 1e-9) for a, b in zip(other, row[:3], strict=True))
            and any(a < b * (1 - 1e-9) for a, b in zip(other, row[:3], strict=True))
            for other in (r[:3] for r in rows)
        )
    }
    told = {
        tuple(f"{v:.6g}" for v in (o.finish_s, o.cost_usd, o.peak_memory_bytes))
        for o in found.front
    }
    assert told == front
    assert found.num_simulated < found.num_points or found.num_points < 20
    counted = found.num_simulated + sum(found.pruned.values())
    assert counted == found.num_points


FEW = PlanRequest("cheapest", choices={"nodes": [1, 2], "strategy": ["ddp", "fsdp"]})


@pytest.mark.long
@pytest.mark.slow
def test_the_answer_is_the_same_for_any_number_of_workers_and_from_a_store(file, tmp_path):
    alone = plan(file, FEW)
    with executor_for(2) as executor:
        shared = plan(file, FEW, executor=executor)
    assert alone.to_json() == shared.to_json()
    kept = tmp_path / "kept"
    with Store(kept) as store:
        plan(file, FEW, store=store)
    with Store(kept, go_on=True) as store:
        assert plan(file, FEW, store=store).to_json() == alone.to_json()
        assert store.num_found >= alone.num_simulated


def test_each_option_has_a_scenario_that_plays_it(file, tmp_path):
    asked = PlanRequest("fastest", choices={"nodes": [1, 2], "workload.microbatch": [1, 4]})
    found = plan(file, asked)
    scenarios = ready(file, found, folder=tmp_path)
    assert [option.file for option in found.options] == list(scenarios)
    for option in found.options:
        path = tmp_path / option.file
        path.write_text(yaml.safe_dump(scenarios[option.file]))
        metrics = simdp.simulate(simdp.load_scenario(path)).metrics
        assert metrics["step_time_s"] == pytest.approx(option.step_time_s, rel=1e-9)
        assert max(metrics["peak_memory_bytes"]) == option.peak_memory_bytes
        assert option.low_s is None or option.low_s <= option.step_time_s <= option.high_s


def test_a_deadline_binds_and_says_so(file):
    choices, fast = {"nodes": [1, 2, 4]}, {"cluster.inter_node.link.bandwidth": "100 GB/s"}
    free = plan(file, PlanRequest("cheapest", choices=choices, global_batch=4096), fast)
    assert free.binding is None
    assert free.front[0].finish_s < free.best[0].finish_s
    between = (free.front[0].finish_s + free.best[0].finish_s) / 2
    asked = PlanRequest("cheapest", deadline=between, choices=choices, global_batch=4096)
    bound = plan(file, asked, fast)
    assert bound.binding == "deadline"
    assert bound.best[0].finish_s <= between
    assert bound.best[0].cost_usd > free.best[0].cost_usd


def test_where_nothing_meets_the_limits_it_tells_the_nearest(file):
    choices = {"nodes": [1, 2, 4]}
    free = plan(file, PlanRequest("fastest", choices=choices))
    fastest = free.best[0]
    asked = PlanRequest("cheapest", deadline=fastest.finish_s / 2, budget=1e9, choices=choices)
    found = plan(file, asked)
    assert found.best == found.front == ()
    assert found.binding == "deadline"
    assert found.nearest.set == fastest.set
    assert found.nearest.misses == pytest.approx({"deadline": 2.0})
    assert found.nearest.low_s < found.nearest.step_time_s < found.nearest.high_s
    assert "misses deadline by 100 %" in found.nearest.why


def test_a_device_that_is_too_small_is_told_as_memory(file):
    asked = PlanRequest("fastest", memory=1e6, choices={"strategy": ["ddp", "fsdp"]})
    found = plan(file, asked)
    assert found.best == ()
    assert found.binding == "memory"
    assert found.nearest.set["strategy"] == "fsdp"


def test_failures_make_a_job_longer(file):
    over = {"cluster.failures": [{"kind": "exponential", "per": "node", "mtbf": "1 h"}]}
    over |= {"checkpoint": {"every": "5 min", "write": "10 s"}}
    asked = PlanRequest("fastest", choices={"nodes": [2]})
    plain, failing = plan(file, asked).best[0], plan(file, asked, over).best[0]
    assert failing.step_time_s == plain.step_time_s
    assert failing.finish_s > plain.finish_s


@for_each(
    ("asked", "line"),
    [
        (PlanRequest("nicest"), "--for: "),
        (PlanRequest(choices={"nodse": [1]}), "--choose nodse: "),
        (PlanRequest(choices={"nodes": [0]}), "--choose nodes: 0 is not a whole number"),
        (PlanRequest(choices={"nodes": []}), "--choose nodes: has no value"),
        (PlanRequest(choices={"nodes": [1, 1]}), "has a value twice"),
        (PlanRequest(choices={"nodes": [1], "cluster.world_size": [2]}), "keep one"),
        (PlanRequest(choices={"strategy": ["dpp"]}), "unknown strategy 'dpp'"),
        (
            PlanRequest(choices={"nodes": [1]}, global_batch=7),
            "is no multiple of GPUs x micro-batch; try --global-batch 8.",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_asked_is_said_in_a_line(file, asked, line):
    with pytest.raises(ScenarioError) as caught:
        plan(file, asked)
    assert line in caught.value.problems[0]
    assert all("\n" not in problem for problem in caught.value.problems)


@for_each(
    ("dealt", "batch"),
    [({"grad_accum": [4, 2, 2]}, 32), ({"global_batch": 64}, 64), ({"microbatch": 4}, 16)],
    ids=str,
)
def test_where_no_choice_is_of_the_batch_it_is_that_of_the_scenario(tmp_path, dealt, batch):
    kept = {k: v for k, v in SMALL["workload"].items() if k not in ("microbatch", "grad_accum")}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**SMALL, "workload": {**kept, **dealt}}))
    found = plan(
        tmp_path / "own.yaml", PlanRequest("fastest", choices={"strategy": ["ddp", "fsdp"]})
    )
    assert [option.global_batch for option in found.best] == [batch, batch]


@pytest.mark.slow
def test_nodes_that_leave_cost_nothing_by_their_bound(file):
    over = {"cluster.failures": [{"kind": "exponential", "per": "node", "mtbf": "1 h"}]}
    over |= {"checkpoint": {"every": "5 min", "write": "10 s"}, "recovery": "elastic"}
    asked = PlanRequest("cheapest", choices={"nodes": [2], "workload.microbatch": [1, 2, 4]})
    found = plan(file, asked, over)
    assert found.num_simulated == found.num_points == 3


def test_a_deadline_needs_a_target(file):
    with pytest.raises(ScenarioError, match=r"--deadline: .*add target"):
        plan(file, PlanRequest(deadline=60.0, choices={"nodes": [1]}), {"target": None})


def test_without_a_price_nothing_is_cheapest(file):
    asked = PlanRequest("cheapest", choices={"nodes": [1]})
    over = {"cluster.price": None, "cluster.device": "t4-16gb"}
    with pytest.raises(ScenarioError, match=r"these devices have no price"):
        plan(file, asked, over)


def test_a_machine_that_has_room_but_no_price_is_not_the_cheapest(file):
    over = {"workload.model.widths": [50_000, 60_000], "cluster.price": None}
    choices = {"cluster.device": ["a100-sxm4-40gb", "b200-180gb"]}
    with pytest.raises(
        ScenarioError, match=r"device: b200-180gb, .* meets the limits, but these devices have no p"
    ):
        plan(file, PlanRequest("cheapest", choices=choices), over)
    assert plan(file, PlanRequest("fastest", choices=choices), over).best[0].cost_usd is None


def test_ranges_double_and_sizes_keep_their_unit():
    assert doubled("nodes", "1:8") == [1, 2, 4, 8]
    assert doubled("strategy.bucket_cap", "1MiB:4MiB") == ["1048576 B", "2097152 B", "4194304 B"]
    with pytest.raises(ScenarioError, match=r"--choose nodes=8:1"):
        doubled("nodes", "8:1")


@for_each(
    ("name", "text", "value"),
    [("deadline", "3 days", 259200.0), ("budget", "10000 USD", 1e4), ("energy", "5 kWh", 5.0)],
)
def test_limits_have_units(name, text, value):
    assert parse_limit(name, text) == pytest.approx(value)
    for wrong in ("3", "-1 USD", "much", "3 GB/s"):
        with pytest.raises(ScenarioError, match=f"--{name} "):
            parse_limit(name, wrong)


def test_a_probability_is_written_in_percent():
    assert parse_sure("90%") == 0.9
    with pytest.raises(ScenarioError, match=r"--sure 0.9: "):
        parse_sure("0.9")


def test_the_cheapest_is_chosen_among_machines_with_a_price():
    assert set(machines_for("cheapest")) < set(machines_for("fastest"))
    assert "dgx-h100" in machines_for("cheapest")


def step_of(raw, strategy, steps):
    """A steady step of the small scenario under a strategy, by simulating so many steps."""
    workload = {**raw["workload"], "steps": steps}
    scenario = checked({**raw, "workload": workload, "strategy": strategy}, Path())
    return simdp.simulate(scenario).metrics["step_time_s"]


SLOW = [{"kind": "jitter", "sigma": 0.3}]


@pytest.mark.parametrize(("local_steps", "stragglers"), [(64, []), (3, []), (16, SLOW)], ids=str)
def test_a_strategy_with_a_period_is_timed_over_whole_periods(tmp_path, local_steps, stragglers):
    raw = {**SMALL, "cluster": {**SMALL["cluster"], "stragglers": stragglers}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(raw))
    strategy = {"kind": "local_sgd", "local_steps": local_steps}
    found = plan(
        tmp_path / "x.yaml", PlanRequest("fastest", choices={"strategy": [strategy, "ddp"]})
    )
    (local,) = (one for one in found.best if one.set["strategy"] != "ddp")
    assert local.step_time_s == pytest.approx(step_of(raw, strategy, 1 + local_steps), rel=1e-9)
    assert local.shares["exposed_comm"] > 0
    assert local.changes_training == [
        f"averaging: weights every {local_steps} steps in place of gradients in every step"
    ]
    written = ready(tmp_path / "x.yaml", found)[local.file]
    assert written["strategy"]["local_steps"] == local_steps
    assert written["workload"]["steps"] == 1 + local_steps


def test_several_periods_are_timed_until_they_repeat(tmp_path):
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(SMALL))
    periods = {4: 2, 32: "world"}
    strategy = {"kind": "local_sgd", "period_group_size_dict": periods, "subgroup": "node"}
    found = plan(
        tmp_path / "x.yaml", PlanRequest("fastest", choices={"strategy": [strategy, "ddp"]})
    )
    (local,) = (one for one in found.best if one.set["strategy"] != "ddp")
    assert local.step_time_s == pytest.approx(step_of(SMALL, strategy, 33), rel=1e-9)
    assert local.changes_training == [
        "averaging: weights every 4 steps among 2 ranks, every 32 steps, gradients within a node "
        "in every step in place of gradients in every step"
    ]


def test_a_hook_that_begins_late_is_timed_after_it_has_begun(file):
    hook = {"kind": "ddp", "comm_hook": "power_sgd"}
    found = plan(file, PlanRequest("fastest", choices={"strategy": [hook, "ddp"]}))
    (sent,) = (one for one in found.best if one.set["strategy"] != "ddp")
    (plain,) = (one for one in found.best if one.set["strategy"] == "ddp")
    begun = {"kind": "ddp", "comm_hook": {"kind": "power_sgd", "start_step": 0}}
    assert sent.step_time_s == pytest.approx(step_of(SMALL, begun, 2), rel=1e-9)
    assert sent.step_time_s != pytest.approx(plain.step_time_s, rel=1e-3)
    (change,) = sent.changes_training
    assert change.startswith("gradients are sent: by power_sgd")
    assert plain.changes_training == []


def test_what_changes_the_training_stands_beside_each_option(file):
    choices = {
        "workload.grad_accum": [4, 8],
        "workload.precision": ["full", {"kind": "mixed", "dtype": "bfloat16"}],
        "workload.optimizer": ["adam", "sgd"],
        "workload.recompute": ["none"],
    }
    found = plan(file, PlanRequest("fastest", choices=choices))
    for one in found.options:
        kinds = {change.split(":")[0] for change in one.changes_training}
        asked = {
            "global batch": one.set["workload.grad_accum"] != 4,
            "precision": one.set["workload.precision"] != "full",
            "optimizer": one.set["workload.optimizer"] != "adam",
        }
        assert kinds == {name for name, differs in asked.items() if differs}
    assert any("global batch: 128 in place of 64" in one.changes_training for one in found.options)


def test_points_that_cannot_be_are_counted_by_reason_with_an_option_that_frees_them(file):
    choices = {"nodes": [1, 2, 4], "workload.microbatch": [3, 4, 16, 32], "strategy": ["ddp"]}
    found = plan(file, PlanRequest("fastest", choices=choices))
    (batch,) = found.infeasible
    assert batch.reason == "a global batch of 64 is no multiple of GPUs x micro-batch"
    # 3 samples on any number of ranks; 16 on 8; 32 on 4 and 8
    assert batch.count == found.pruned["impossible"] == 6
    assert batch.option == "--global-batch 256"  # by all but ranks of 3 samples
    freed = int(batch.option.removeprefix("--global-batch "))
    more = plan(file, PlanRequest("fastest", choices=choices, global_batch=freed))
    assert more.pruned["impossible"] == 3
    hsdp = {"strategy": ["ddp", {"kind": "hsdp", "shard_size": 3}]}
    (odd,) = plan(file, PlanRequest("fastest", choices=hsdp)).infeasible
    assert (odd.count, odd.option) == (1, "strategy.shard_size")


def test_limits_are_counted_among_the_reasons(file):
    choices = {"nodes": [1, 2, 4], "workload.microbatch": [4]}
    fast = plan(file, PlanRequest("fastest", choices=choices)).best[0].finish_s
    found = plan(file, PlanRequest("fastest", deadline=1.01 * fast, choices=choices))
    assert sum(row.count for row in found.infeasible) == sum(
        count for why, count in found.pruned.items() if why not in ("worse", "sampled")
    )


BERT = {"cluster.machine": "dgx-h100", "cluster.world_size": 16, "strategy": "ddp"}


@pytest.mark.slow
def test_a_deadline_is_met_with_a_probability():
    """By the spread of MLPerf's runs, one in eleven exceeds 10 min where the mean is 9.6."""
    choices = {"workload.microbatch": [16, 32], "nodes": [2, 4]}
    found = plan("cheapest_cluster", PlanRequest(deadline=600.0, choices=choices), BERT)
    best = found.best[0]
    assert best.finish_s == pytest.approx(575, rel=0.01)
    assert best.chance_by_luck == pytest.approx(10 / 11, abs=0.02)
    assert 0.5 < best.chance_to_meet < best.chance_by_luck  # the step may be off, too
    sure = plan("cheapest_cluster", PlanRequest(deadline=600.0, choices=choices, sure=0.9), BERT)
    assert all(one.chance_to_meet >= 0.9 for one in (*sure.best, *sure.front))
    assert best.set not in [one.set for one in sure.options]
    few = {"workload.microbatch": [32], "nodes": [2]}
    none = plan("cheapest_cluster", PlanRequest(deadline=600.0, choices=few, sure=0.9), BERT)
    assert (none.best, none.binding) == ((), "deadline")
    assert "at the time that it does not exceed with 90 %" in none.nearest.why


@for_each(
    ("asked", "line"),
    [
        (PlanRequest(deadline=1e9, sure=0.3), "--sure 30 %: is out of range"),
        (PlanRequest(deadline=1e9, sure=1.0), "--sure 100 %: is out of range"),
        (PlanRequest(sure=0.9), "--sure: needs a limit"),
    ],
    ids=str,
)
def test_a_probability_needs_a_limit_and_a_range(file, asked, line):
    with pytest.raises(ScenarioError) as caught:
        plan(file, asked)
    assert line in caught.value.problems[0]


def test_chances_hold_luck_and_the_interval_of_a_step():
    luck = luck_of(SamplesNeeded(1000.0, 100.0))
    assert luck.mean() == pytest.approx(1, rel=1e-3)
    option = Option({}, 1.0, 1000.0, 50.0, None, 1.0)
    assert chance(option, {"deadline": 1000.0}, luck) == pytest.approx(0.5, abs=0.01)
    one_sd = {"deadline": 1100.0, "budget": 100.0, "memory": 1.0}
    assert chance(option, one_sd, luck) == pytest.approx(0.841, abs=0.005)
    assert chance(option, {"budget": 45.0}, luck) == pytest.approx(0.159, abs=0.005)
    assert chance(option, {"memory": 1.0}, luck) is None
    step = factors_of(luck_of(SamplesNeeded(1000.0)), (0.8, 1.5))
    ends = [float((step <= end).mean()) for end in (0.8, 1.0, 1.5)]
    assert ends == pytest.approx([0.05, 0.5, 0.95], abs=0.01)


def test_a_better_option_is_explained_by_gpu_hours_and_price(file):
    found = plan(
        file, PlanRequest("cheapest", choices={"nodes": [1, 2], "workload.microbatch": [4]})
    )
    best, other = found.best
    assert best.gpu_hours == pytest.approx(best.finish_s * best.world_size / 3600)
    hours = f"{best.gpu_hours:.3g} GPU hours in place of {other.gpu_hours:.3g}, each 1 USD"
    assert hours in best.why


def test_means_of_jobs_that_differ_by_less_than_their_noise_are_a_tie():
    def option(cost, error):
        return Option({"x": cost}, 1.0, 3600.0, cost, None, 1.0, gpu_hours=8.0, mean_error=error)

    tie = why_best(option(10.0, 0.02), option(10.3, 0.02), "cheapest")
    assert tie.startswith("no difference from the next one beyond the noise")
    assert why_best(option(10.0, 0.001), option(10.3, 0.001), "cheapest").startswith(
        "2.91 % cheaper"
    )


def test_a_plan_for_energy_states_how_far_the_power_of_waiting_decides_about_it(file):
    choices = {"nodes": [1, 2], "workload.microbatch": [4]}
    known = plan(file, PlanRequest("greenest", choices=choices))
    assert not any("waiting GPU" in note for note in known.notes)
    left_out = {"cluster.power": {"rest": "50 W", "busy": "300 W"}}
    found = plan(file, PlanRequest("greenest", choices=choices), left_out)
    assert any("number 1 may take" in note for note in found.notes)


@for_each(
    ("strategy", "tried"),
    [
        ("ddp", ["ddp", "zero1", "zero2", "fsdp", "hsdp"]),
        (
            {"kind": "ddp", "no_sync": False},
            [{"kind": "ddp", "no_sync": False}, "ddp", "zero1", "zero2", "fsdp", "hsdp"],
        ),
    ],
)
def test_the_files_strategy_is_tried_with_its_options_and_without(strategy, tried):
    scenario = checked({**SMALL, "strategy": strategy}, Path())
    assert usual_choices(scenario, "fastest")["strategy"] == tried


def test_the_only_option_is_explained_by_what_became_of_the_others():
    assert why_alone(1, 1, {"memory": 0}) == "the only point"
    left = why_alone(1200, 3, {"memory": 1, "budget": 0, "worse": 1196})
    assert left == (
        "the only one left of 1,200 points: 2 simulated miss the limits or memory, 1 needs more "
        "memory, 1,196 are no better than one that was simulated"
    )


def test_devices_without_a_price_are_named(file):
    devices = ["a100-sxm4-80gb", "l40s-48gb", "t4-16gb"]
    settings = {"cluster.price": None}
    chosen = {"cluster.device": devices}
    found = plan(file, PlanRequest("cheapest", choices=chosen), settings)
    line = "left out for want of a price: l40s-48gb, t4-16gb; give cluster.price"
    assert line in found.notes
    assert found.pruned["price"] == found.num_points - found.num_simulated == 2
    (best,) = found.best
    assert best.why == "the only one left of 3 points: 2 have no known price"
    capped = plan(file, PlanRequest("fastest", choices=chosen, budget=1e9), settings)
    assert capped.pruned["price"] == 2
    assert not capped.pruned["budget"]
    assert line not in plan(file, PlanRequest("fastest", choices=chosen), settings).notes
    assert not any("for want" in note for note in plan(file, PlanRequest(choices=chosen)).notes)


@pytest.mark.long
def test_machines_that_a_plan_never_tries_are_named(file, monkeypatch):
    for key, few in (("DEFAULT_NODES", [1]), ("DEFAULT_MICRO", [1]), ("STRATEGIES", ["ddp"])):
        monkeypatch.setattr(f"simdp.studies.plan.request.{key}", few)
    found = plan(file, PlanRequest("cheapest"), {"cluster.price": None, "target.samples": 1e6})
    (note,) = [note for note in found.notes if "for want" in note]
    devices = note.removeprefix("left out for want of a price: ").partition(";")[0].split(", ")
    assert {"l40s-48gb", "rtx4090-24gb", "mi300x-192gb"} <= set(devices)
    assert not {"h100-sxm5-80gb", "a100-sxm4-80gb"} & set(devices)
