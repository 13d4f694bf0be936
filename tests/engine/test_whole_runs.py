"""Whole runs, from a scenario to its result: what only shows when all floors work together."""

import gc
import json
import tracemalloc
from pathlib import Path

import pytest
from for_each import for_each, for_some, one_in

import simdp
from simdp.cli import run_command_line
from simdp.engine import threads
from simdp.scenario import checked
from simdp.strategies.memory import host_memory_needed, largest_microbatches

pytestmark = pytest.mark.slow

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def raw(**workload):
    return {
        "cluster": {
            "world_size": 4,
            "device": "a100-sxm4-80gb",
            "topology": "switch",
            "link": {"alpha": "5 us", "bandwidth": "25 GB/s"},
        },
        "workload": {
            "model": {"kind": "mlp", "widths": [8, 16, 4]},
            "dataset": {"kind": "regression", "num_samples": 64},
            "microbatch": 4,
            "steps": 4,
            **workload,
        },
    }


@for_each("width", [16, 400])  # the wide one has a thread per rank
def test_a_run_that_diverges_has_no_loss_and_no_warnings(width):
    model = {"kind": "mlp", "widths": [8, width, width, 4]}
    result = simdp.simulate(
        checked(raw(model=model, optimizer={"kind": "sgd", "lr": 1e30}), Path())
    )
    study = simdp.Study("0", {}, [result])
    losses = json.loads(study.to_json())["points"][0]["metrics"]["loss"]
    assert losses[0] > 0
    assert losses[-1] is None


def test_a_swept_kind_keeps_the_options_of_the_files_own_kind():
    scenario = checked(
        {
            **raw(optimizer={"kind": "sgd", "lr": 0.1, "momentum": 0.9}),
            "sweep": {"workload.optimizer.kind": ["sgd", "adam"]},
        },
        Path(),
    )
    for again in (scenario, checked(scenario.resolved(), Path())):
        (_, sgd), (_, adam) = again.points()
        assert sgd.workload.optimizer.model_dump()["momentum"] == 0.9
        assert adam.workload.optimizer.lr == 1e-3


def names_only(value):
    """Plain data with files by their names alone."""
    if isinstance(value, dict):
        return {k: Path(v).name if k == "path" else names_only(v) for k, v in value.items()}
    return [names_only(inner) for inner in value] if isinstance(value, list) else value


@for_some("path", sorted(SCENARIOS.glob("*.yaml")), 6, ids=lambda path: path.stem)
def test_a_saved_result_loads_again_from_where_it_lies(path, tmp_path):
    scenario = simdp.load_scenario(path)
    saved = tmp_path / "runs" / "result.json"
    saved.parent.mkdir(exist_ok=True)
    saved.write_text(json.dumps({"scenario": scenario.resolved(saved.parent)}))
    again = simdp.load_scenario(saved)
    assert names_only([c for c, _ in again.points()]) == names_only(
        [c for c, _ in scenario.points()]
    )
    assert '"/' not in saved.read_text()  # no absolute path


def test_run_writes_paths_that_start_from_the_folder(tmp_path):
    out = tmp_path / "out"
    arguments = [str(SCENARIOS / "seed_mlp.yaml"), "--out", str(out), "--quiet", "--no-plots"]
    assert run_command_line(["run", *arguments]) == 0
    assert run_command_line(["check", str(out / "result.json")]) == 0


def test_a_setting_of_a_swept_key_ends_its_sweep():
    scenario = simdp.load_scenario(SCENARIOS / "scaling.yaml", {"cluster.world_size": 4})
    assert scenario.sweep == {}
    assert scenario.cluster.world_size == 4
    swept = simdp.load_scenario(SCENARIOS / "scaling.yaml", {"sweep.cluster.world_size": [2, 4]})
    assert swept.sweep == {"cluster.world_size": [2, 4]}
    assert simdp.load_scenario(SCENARIOS / "scaling.yaml", {"sweep": None}).sweep == {}


def test_a_straggler_whose_rank_is_swept_must_exist_at_every_point():
    with pytest.raises(simdp.ScenarioError, match="rank 99 does not exist"):
        checked(
            {
                **raw(),
                "cluster": {
                    **raw()["cluster"],
                    "stragglers": [{"kind": "slow_rank", "rank": 3, "factor": 2}],
                },
                "sweep": {"cluster.stragglers.0.rank": [99, 0]},
            },
            Path(),
        )


@for_each("numerics", [True, False])
def test_a_fault_on_a_rank_that_a_point_lacks_is_idle_there(numerics):
    swept = {
        **raw(precision="amp", inject=[{"kind": "nan", "rank": 2, "step": 3}]),
        "sweep": {"cluster.world_size": [2, 3]},
        "numerics": numerics,
    }
    without, with_it = simdp.sweep(checked(swept, Path())).points
    assert without.metrics["skipped_steps"] == []
    assert with_it.metrics["skipped_steps"] == [3]
    with pytest.raises(
        simdp.ScenarioError, match=r"largest world_size is 2, so ranks are 0 \.\.\. 1"
    ):
        checked({**swept, "sweep": {"cluster.world_size": [1, 2]}}, Path())


def test_buckets_are_rebuilt_after_the_first_reduced_micro_step():
    scenario = checked(
        {
            **raw(grad_accum=2, steps=1),
            "strategy": {"kind": "ddp", "no_sync": False, "bucket_cap": "0 B"},
        },
        Path(),
    )
    trace = simdp.simulate(scenario).trace
    comm = [s for s in trace.spans if s.rank == 0 and s.activity == "comm" and s.step == 0]
    assert len(comm) == 1 + 4  # one bucket with everything, then one per tensor


@for_each("all_reduce", ["ring", "tree", "naive"])
def test_equal_ranks_do_not_wait_for_slower_ones_inside_a_step(all_reduce):
    widths = [256, 256, 256, 8]
    scenario = checked(
        {
            **raw(model={"kind": "mlp", "widths": widths}, steps=1),
            "strategy": {
                "kind": "ddp",
                "bucket_order": "reverse_registration",
                "bucket_cap": "0 B",
            },
            "collectives": {"all_reduce": all_reduce, "broadcast": "naive"},
        },
        Path(),
    )
    trace = simdp.simulate(scenario).trace
    waits = [s for s in trace.spans if s.activity == "wait" and s.step == 0]
    # The constructor's broadcast lets ranks go at different times; later buckets add no wait.
    assert {span.name.split()[-1] for span in waits} <= {"0"}


def test_memory_is_counted_by_each_ranks_own_batch():
    scenario = checked(raw(microbatch=None, global_batch=9), Path())
    assert largest_microbatches(scenario.workload, 4) == [3, 3, 3, 0]
    peaks = simdp.simulate(scenario).metrics["peak_memory_bytes"]
    assert peaks[0] == peaks[1] == peaks[2] > peaks[3]


def test_the_host_counts_real_arrays_whatever_the_device_saves():
    def needed(**strategy):
        scenario = checked({**raw(), "strategy": {"kind": "ddp", **strategy}}, Path())
        return host_memory_needed(scenario.workload, scenario.strategy, 4, 64)

    assert needed(gradient_as_bucket_view=True) == needed()
    weights = 4 * (8 * 16 + 16 + 16 * 4 + 4)
    assert needed() > 4 * 3 * weights  # weights, gradients and buckets on four ranks


def test_a_single_device_has_no_buckets():
    lone = {**raw(), "strategy": "single"}
    lone["cluster"] = {**lone["cluster"], "world_size": 1}
    assert simdp.simulate(checked(lone, Path())).metrics["bucket_bytes"] is None


@pytest.mark.parametrize(
    "options",
    one_in(
        2,
        [
            {},
            {"grad_accum": 2, "optimizer": "adam"},
            {"grad_accum": 2, "precision": "amp"},
            {"grad_accum": 2, "precision": "mixed"},
        ],
        first=1,
    ),
)
def test_the_host_takes_no_more_memory_than_it_is_asked_for(options, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # cores that draw weights at the same time
    monkeypatch.setattr(threads, "_limit", 1)  # and that compute: their turns depend on the load
    model = {"kind": "mlp", "widths": [256, 512, 256, 8]}
    scenario = checked(raw(model=model, steps=2, **options), Path())
    simdp.simulate(scenario)  # what comes with modules stays, and what is kept for the next run
    needed = host_memory_needed(scenario.workload, scenario.strategy, 4, 64)
    # Garbage is collected at any time: the least of up to three.
    taken = min(takewhile_above(1.1 * needed, (_peak_of(scenario) for _ in range(3))))
    assert needed / 2 < taken < 1.1 * needed


def takewhile_above(limit, values):
    """Values up to the first that is below a limit."""
    for value in values:
        yield value
        if value < limit:
            return


def _peak_of(scenario):
    gc.collect()
    gc.freeze()  # with what other tests left, garbage in cycles would be looked for too seldom
    seldom = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    tracemalloc.start()
    try:
        simdp.simulate(scenario)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.set_threshold(*seldom)
