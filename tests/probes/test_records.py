"""What the probes write: tables that calibrate reads, profiles, and scenarios that are valid."""

from pathlib import Path

import pytest
import yaml
from for_each import for_each

import simdp
from simdp.files import format_yaml, parse_yaml, read_yaml
from simdp.probes import collectives, figures, record, zoo
from simdp.probes.figures import LayerTimes, StepSeconds, csv
from simdp.results.collective import NAMES, read_nccl_tests
from simdp.scenario import checked, load_scenario

MACHINE = record.Machine(
    cpu="A CPU", cores=4, threads_per_rank=1, platform="Linux", python="3.11.7", torch="2.13.0"
)
DEVICE = {
    "peak": {"float32": "200 GFLOP/s", "bfloat16": "400 GFLOP/s"},
    "efficiency": 1.0,
    "memory": "20 GB",
    "memory_bandwidth": "30 GB/s",
    "launch": "2 us",
}
ABOUT = record.About("gloo", "cpu", 1, {"mlp": 64}, "full", "sgd", None)


def run(n, variant, cap, *rounds):
    """Rounds of step times [ms], a quarter of which is forward and a tenth the update."""
    steps = [
        StepSeconds(*([share * t / 1e3 for t in times] for share in (1.0, 0.25, 0.65, 0.1)))
        for times in rounds
    ]
    logging = {"world_size": n} if variant == "ddp" else {}
    return record.RunTimes(n, variant, cap, [0.01, 0.02], steps, logging)


def found(*runs, name="mlp", machine=MACHINE):
    model = record.ModelTimes(zoo.MODELS[name], 14, 29_290_400, list(runs))
    return record.DDPTimes(machine, record.DeviceFigures(**DEVICE), {name: model})


ALONE = run(1, "baseline", None, [20, 20, 21], [20, 22, 20])
RUNS = [
    ALONE,
    run(1, "ddp", None, [25]),
    run(1, "skipped", None, [25]),
    run(1, "no_sync", None, [20]),
    run(2, "baseline", None, [21]),
    run(2, "ddp", None, [40, 41, 42]),
    run(2, "skipped", None, [26]),
    run(2, "no_sync", None, [22]),
    run(2, "ddp", 1, [38], [42]),
    run(2, "skipped", 1, [26]),
    run(2, "no_sync", 1, [22]),
]


def made(about=ABOUT, *runs):
    settings = {key: [] for key in record.DDPSettings.model_fields} | {"out": "not recorded"}
    settings |= {"backend": "gloo", "device": "cpu", "optimizer": "sgd", "table": None}
    counts = ("threads", "ranks_per_device", "warm_up", "steps", "max_foreign", "tries", "rounds")
    settings = record.DDPSettings(**settings | dict.fromkeys(counts, 3))
    return record.ddp_record(found(*(runs or RUNS)), about, settings).model_dump()


# Records -----------------------------------------------------------------------------------------


def test_a_record_tells_times_and_what_is_exposed():
    runs = made()["models"]["mlp"]["runs"]
    (two,) = (
        r
        for r in runs
        if (r["world_size"], r.get("bucket_cap")) == (2, "default") and r["variant"] == "ddp"
    )
    assert two["step_time"] == {
        "p10": "40.2 ms",
        "p50": "41 ms",
        "p75": "41.5 ms",
        "p90": "41.8 ms",
    }
    assert two["exposed_communication"] == {"over_skipped": "15 ms", "over_no_sync": "19 ms"}
    assert (two["forward"], two["noise"], two["foreign"]) == ("10.25 ms", "0 %", "2 %")
    assert two["logging"] == {"world_size": 2}
    assert "bucket_cap" not in runs[0]
    assert "logging" not in runs[0]


def test_a_record_is_yaml_that_reads_back(tmp_path):
    path = tmp_path / "new" / "record.yaml"
    record.write_yaml(path, made(), "One line\nand another")
    assert path.read_text().startswith("# One line\n# and another\nprobe: ddp\n")
    assert read_yaml(path) == made()


def test_yaml_that_is_written_has_no_anchors():
    shared = [1, 2]
    text = format_yaml({"a": shared, "b": shared, "c": {"d": "25 MiB", "e": 1e-5}})
    assert "&" not in text
    assert parse_yaml(text, "it") == {"a": [1, 2], "b": [1, 2], "c": {"d": "25 MiB", "e": 1e-5}}


# Scenarios ---------------------------------------------------------------------------------------


def test_a_scenario_is_calibrated_on_one_rank_and_predicts_ddp():
    scenario = made()["scenarios"]["mlp"]
    assert scenario["workload"]["compute"] == {
        "kind": "measured",
        "points": [{"microbatch": 64, "step_time": "20 ms"}],
        "forward_fraction": 0.2778,
    }
    assert scenario["measured"]["points"] == [
        {
            "set": {"cluster.world_size": 1, "strategy": "single"},
            "step_time": "20 ms",
            "role": "calibration",
        },
        {"set": {"cluster.world_size": 1}, "step_time": "25 ms", "role": "calibration"},
        {"set": {"cluster.world_size": 2}, "step_time": "41 ms", "role": "predicted"},
        {
            "set": {"cluster.world_size": 2, "strategy.bucket_cap": "1 MiB"},
            "step_time": "40 ms",
            "role": "predicted",
        },
    ]
    assert scenario["measured"]["noise"] == "2.5 %"


def load_points(scenario):
    """World sizes of the measured points, each of which is checked when the scenario is."""
    points = checked(scenario, Path()).measured.points
    return [point.set["cluster.world_size"] for point in points]


def test_a_scenario_is_valid_and_meets_what_it_was_calibrated_on():
    scenario = made()["scenarios"]["mlp"]
    assert load_points(scenario) == [1, 1, 2, 2]
    del scenario["measured"]
    raw = {**scenario, "strategy": "single"}
    one = simdp.simulate(checked(raw, Path())).metrics
    assert one["step_time_s"] == pytest.approx(20e-3, rel=1e-6)
    wrapped = simdp.simulate(checked(scenario, Path())).metrics
    assert wrapped["step_time_s"] == pytest.approx(25e-3, rel=1e-4)
    two = checked({**scenario, "cluster": {**scenario["cluster"], "world_size": 2}}, Path())
    assert simdp.simulate(two).metrics["step_time_s"] > 25e-3


def test_what_ddp_costs_beyond_its_copies_is_the_hooks():
    scenario = made()["scenarios"]["mlp"]
    copies = 4 * 29_290_400 / 30e9
    assert scenario["cluster"]["overheads"] == {
        "copies": True,
        "hook": figures.microseconds((5e-3 - copies) / 14),
    }
    quick = [run(1, "skipped", None, [21]) if r is RUNS[2] else r for r in RUNS]
    scenario = made(ABOUT, *quick)["scenarios"]["mlp"]
    assert scenario["cluster"]["overheads"]["hook"] == "0 us"


@for_each(("cores", "crowded"), [(4, False), (3, True), (2, True)])
def test_threads_that_share_a_core_slow_each_other_down(cores, crowded):
    times = found(*RUNS, machine=MACHINE.model_copy(update={"cores": cores}))
    overheads = record.ddp_scenario("mlp", times, ABOUT).cluster.overheads
    slowdowns = {overheads.compute_slowdown, overheads.collective_slowdown}
    assert slowdowns == ({1.0} if crowded else {None})


@for_each("model", zoo.MODELS)
def test_every_model_makes_a_valid_scenario(model):
    slow = [run(*r.key, [2000]) for r in RUNS]
    about = ABOUT._replace(
        microbatch={model: 64}, device="cuda", ranks_per_device=2, precision="bf16"
    )
    scenario = record.ddp_scenario(model, found(*slow, name=model), about)
    chosen = checked(scenario.model_dump(), Path())
    assert chosen.cluster.ranks_per_device == 2
    assert chosen.workload.precision.low == "bfloat16"


def test_runs_that_begin_with_two_ranks_calibrate_on_two_side_by_side():
    scenario = made(ABOUT, *RUNS[4:])["scenarios"]["mlp"]
    assert scenario["cluster"]["world_size"] == 2
    assert scenario["workload"]["compute"]["points"] == [{"microbatch": 64, "step_time": "21 ms"}]
    assert {point["role"] for point in scenario["measured"]["points"]} == {"calibration"}


def test_a_scenario_takes_its_table(tmp_path):
    text = collectives.table("all_reduce", 2, {1024: 1e-4, 2**20: 1e-3}, ["a cpu"] * 2, "probe")
    (tmp_path / "gloo.log").write_text(text)
    scenario = made(ABOUT._replace(table="gloo.log"))["scenarios"]["mlp"]
    scenario["cluster"]["world_size"] = 2
    path = tmp_path / "probe.yaml"
    path.write_text(yaml.safe_dump(scenario))
    assert load_scenario(path).collectives.cost.kind == "table"


# Tables ------------------------------------------------------------------------------------------


@for_each("collective", collectives.PERF)
def test_a_table_reads_back_as_nccl_tests_output(collective, tmp_path):
    times = {1024: 1.25e-4, 25 * 2**20: 12.5e-3}
    path = tmp_path / "gloo.log"
    tables = [
        collectives.table(name, 2, times, ["host cpu"] * 2, "probe") for name in collectives.PERF
    ]
    path.write_text("\n".join(tables))
    log = read_nccl_tests(path, collective)
    assert (log.collective, log.world_size) == (collective, 2)
    assert {row.nbytes: row.seconds for row in log.rows} == pytest.approx(times)


def test_a_table_counts_bandwidth_as_nccl_tests_does():
    assert set(collectives.PERF) <= set(NAMES.values())
    row = collectives.table("all_reduce", 8, {10**6: 1e-3}, ["a"] * 8, "").splitlines()[-1].split()
    assert row == ["1000000", "250000", "float", "sum", "-1", "1000.00", "1.000", "1.750"]
    row = collectives.table("broadcast", 8, {10**6: 1e-3}, ["a"] * 8, "").splitlines()[-1].split()
    assert row == ["1000000", "250000", "float", "none", "0", "1000.00", "1.000", "1.000"]


# Profiles ----------------------------------------------------------------------------------------


def test_layer_times_are_a_profile_that_a_scenario_reads(tmp_path):
    times = LayerTimes(["a", "b"], [1e-3, 2e-3], [3e-3, 4e-3], [0.0, 5e-4], [4000, 8000])
    text = csv(times, "a model")
    assert text.splitlines()[1:] == [
        "name,forward_us,weight_grad_us,input_grad_us,gradient_bytes",
        "a,1000.000,3000.000,0.000,4000",
        "b,2000.000,4000.000,500.000,8000",
    ]
    (tmp_path / "layers.csv").write_text(text)
    raw = {
        "cluster": {"world_size": 1, "device": DEVICE},
        "workload": {
            "model": {"kind": "profile", "path": "layers.csv"},
            "optimizer": "none",
            "microbatch": 4,
            "steps": 2,
        },
        "strategy": "single",
    }
    metrics = simdp.simulate(checked(raw, tmp_path)).metrics
    assert metrics["step_time_s"] == pytest.approx(10.5e-3)
