"""Machine files, scenarios and reports from records: those of the repository, and small ones."""

import json
from pathlib import Path

import pytest
import yaml
from for_each import for_each

import simdp
from simdp.cli import run_command_line
from simdp.files import read_yaml
from simdp.probes import collectives, findings, report
from simdp.probes.findings import Failure, Findings
from simdp.probes.record import (
    DDPRecord,
    DeviceFigures,
    FullStep,
    LayersRecord,
    LayersStep,
    MeasuredCompute,
    MeasuredPoint,
    ModelSteps,
    PrecisionSteps,
)
from simdp.probes.report import SimulatedStep
from simdp.scenario import load_scenario
from simdp.units import parse

RECORDS = Path(__file__).parents[2] / "records"
H200, CPU = RECORDS / "h200-1gpu", RECORDS / "cpu-gloo-2core"


@pytest.fixture(scope="module")
def of_gpu():
    ddp = DDPRecord.read(H200 / "ddp_1rank.yaml")
    names = ("resnet50", "gpt2")
    return Findings(
        {name: LayersRecord.read(H200 / name / "steps.yaml") for name in names},
        dict.fromkeys(names, ddp),
    )


@pytest.fixture(scope="module")
def of_cpu():
    names = ("mlp", "transformer")
    ddp = {name: DDPRecord.read(CPU / f"{name}.yaml") for name in names}
    return Findings(ddp=ddp, logs={2: CPU / "gloo_cpu_2ranks.log"})


def shown(found, predictions=(), seconds=90.0):
    text = report.report(found, predictions, seconds)
    prose = [line for line in text.splitlines() if not line.startswith("  ")]
    assert max(map(len, prose)) <= 80
    return text


def row(text, *words):
    """Figures of the first line of a table that begins with some words."""
    lines = [line.split() for line in text.splitlines()]
    return next(line[len(words) :] for line in lines if line[: len(words)] == list(words))


# Device and link ---------------------------------------------------------------------------------


def test_a_device_has_the_middle_of_each_figure(of_gpu):
    devices = [DeviceFigures(**device(k)) for k in (3, 1, 2)]
    assert findings.device_figures(devices).model_dump() == device(2)
    gpu = of_gpu.device
    assert list(gpu.peak) == ["float32", "tfloat32", "bfloat16"]
    launches = sorted(parse(record.device.launch, "time") for record in of_gpu.records)
    assert parse(gpu.launch, "time") == launches[len(launches) // 2]


def device(k):
    return {
        "peak": {"float32": f"{k} TFLOP/s"},
        "efficiency": 1.0,
        "memory": f"{k} GB",
        "memory_bandwidth": f"{k} GB/s",
        "launch": f"{k} us",
    }


@for_each(
    ("written", "name"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("Intel(R) Xeon(R) Processor", "intel-xeon-processor"),
        ("", "device"),
    ],
)
def test_a_device_is_named_as_in_the_catalogue(written, name):
    assert findings.device_name(written) == name


def log(path, world_size, seconds):
    text = collectives.table("all_reduce", world_size, seconds, ["a cpu"] * world_size, "probe")
    path.write_text(text)
    return path


def test_a_link_is_fitted_to_what_a_simulated_ring_takes(tmp_path, capsys):
    cluster = {
        "devices_per_node": 4,
        "device": device(1),
        "topology": "switch",
        "link": {"alpha": "20 us", "bandwidth": "3 GB/s"},
    }
    path = tmp_path / "machine.yaml"
    path.write_text(yaml.safe_dump({"cluster": cluster, "source": "here"}))
    given = ["collective", "all_reduce", "--cluster", str(path), "--algorithm", "ring"]
    given += ["--world-size", "4", "--sizes", "1KiB:64MiB", "--json", "--no-plots"]
    assert run_command_line([*given, "--out", str(tmp_path / "out")]) == 0
    (curve,) = json.loads(capsys.readouterr().out)["curves"]
    times = {point["size_bytes"]: point["time_s"] for point in curve["points"]}
    fit = findings.fitted_link(log(tmp_path / "ring.log", 4, times))
    assert fit.alpha == pytest.approx(20e-6, rel=1e-3)
    assert fit.bandwidth == pytest.approx(3e9, rel=1e-3)
    assert fit.error < 1e-3
    assert fit.world_size == 4


def test_times_without_a_latency_give_the_bandwidth_of_the_last(tmp_path):
    fit = findings.fitted_link(log(tmp_path / "a.log", 2, {1024: 1e-6, 2**20: 1e-2}))
    assert fit.alpha == 0.0
    assert fit.bandwidth == pytest.approx(2**20 / 1e-2)


# Files -------------------------------------------------------------------------------------------


def written(found, folder):
    paths = findings.write_files(found, folder)
    assert all(path.read_text().startswith("# How long does a step of ") for path in paths)
    return paths


def test_a_machine_of_one_gpu_assumes_its_link_and_says_so(of_gpu, tmp_path):
    assert written(of_gpu, tmp_path) == [
        tmp_path / "scenario.yaml",
        tmp_path / "scenarios" / "gpt2.yaml",
    ]
    machine = read_yaml(tmp_path / "machine.yaml")
    assert machine["cluster"]["devices_per_node"] == 1
    assert machine["cluster"]["link"] == "pcie4-x16"
    assert "The link was not measured" in machine["caveats"][1]
    assert machine["source"]["link"] == "an assumption"
    assert (tmp_path / "machine.yaml").read_text().startswith("# NVIDIA H200: measured by python")


def test_scenarios_name_the_machine_and_take_their_points(of_gpu, tmp_path):
    for path in written(of_gpu, tmp_path):
        chosen = load_scenario(path)
        assert chosen.cluster.device.name == "nvidia-h200"
        assert chosen.cluster.overheads.copies
        assert chosen.measured.memory[0].set["strategy"] == "single"
    gpt2 = read_yaml(path)["workload"]
    assert gpt2["attention"] == "flash"
    points = {p["microbatch"]: p["step_time"] for p in gpt2["compute"]["points"]}
    assert list(points) == [1, 4, 8, 16]
    assert points[8] == of_gpu.ddp["gpt2"].models["gpt2"].runs[0].step_time.p50
    assert "attention" not in read_yaml(tmp_path / "scenario.yaml")["workload"]


def test_a_microbatch_that_contradicts_the_scenarios_is_left_out():
    point = MeasuredPoint(microbatch=4, step_time="8 ms")
    compute = MeasuredCompute(points=[point], forward_fraction=0.3)

    def points(*steps):
        return [point.microbatch for point in findings._compute(compute, steps).points]

    assert points(step(4, "9 ms")) == [4]
    assert points(step(2, "9 ms")) == [4]
    assert points(step(2, "8.2 ms")) == [2, 4]
    assert points(step(16, "9 ms"), step(8, "9 ms")) == [4, 8, 16]


def step(microbatch, time, **fields):
    times = {"forward": "1 ms", "backward": "1 ms", "update": "2 ms", **fields}
    percentiles = dict.fromkeys(("p10", "p50", "p75", "p90"), time)
    return LayersStep(microbatch=microbatch, step_time=percentiles, **times)


def test_two_ranks_give_the_link_and_the_table_of_the_scenarios(of_cpu, tmp_path):
    (tmp_path / "gloo_cpu_2ranks.log").write_bytes((CPU / "gloo_cpu_2ranks.log").read_bytes())
    paths = written(of_cpu, tmp_path)
    machine = read_yaml(tmp_path / "machine.yaml")
    assert machine["cluster"]["devices_per_node"] == 2
    assert machine["cluster"]["overheads"]["compute_slowdown"] == 1.0
    assert machine["cluster"]["link"].keys() == {"alpha", "bandwidth"}
    hooks = [parse(read_yaml(p)["cluster"]["overheads"]["hook"], "time") for p in paths]
    assert min(hooks) < parse(machine["cluster"]["overheads"]["hook"], "time") < max(hooks)
    for path in paths:
        chosen = load_scenario(path, {"cluster.world_size": 2, "measured": None})
        assert chosen.collectives.cost.kind == "table"
        two = simdp.simulate(chosen).metrics["step_time_s"]
        assert two > parse(read_yaml(path)["measured"]["points"][0]["step_time"], "time")


def test_a_machine_without_ddp_has_no_overheads_and_no_scenario(of_gpu, tmp_path):
    found = Findings(layers=of_gpu.layers)
    assert findings.write_files(found, tmp_path) == []
    machine = read_yaml(tmp_path / "machine.yaml")
    assert "overheads" not in machine["cluster"] | machine["source"]
    assert not (tmp_path / "scenario.yaml").exists()
    text = shown(found)
    assert "scenario" not in text.partition("What to send back")[2]


def test_the_machine_file_is_a_cluster_of_other_commands(of_cpu, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gloo_cpu_2ranks.log").write_bytes((CPU / "gloo_cpu_2ranks.log").read_bytes())
    written(of_cpu, tmp_path)
    model = "workload: {model: {kind: mlp, widths: [8, 8]}, microbatch: 2}\nnumerics: false\n"
    Path("mine.yaml").write_text(f"cluster: {{machine: machine.yaml, world_size: 2}}\n{model}")
    assert run_command_line(["run", "mine.yaml", "--no-plots"]) == 0
    assert "efficiency is 1" in capsys.readouterr().out
    validation = ["validate", "scenario.yaml", "scenarios", "--no-plots"]
    assert run_command_line(validation) == 0
    assert "probe_transformer" in capsys.readouterr().out


# Report ------------------------------------------------------------------------------------------


def test_the_report_begins_with_the_machine(of_gpu):
    lines = shown(of_gpu).splitlines()
    assert lines[0] == "NVIDIA H200: 1 GPU, 16 cores, torch 2.11.0+cu130, cuda 13.0, nccl 2.28.9"
    assert lines[1].endswith(" TFLOP/s in bfloat16")
    assert lines[4] == "  measured in      1.5 minutes"


def test_each_step_is_bound_by_the_host_or_the_device(of_gpu):
    text = shown(of_gpu)
    assert row(text, "gpt2", "tf32", "16")[-3:] == ["28.21", "device", "21.5"]
    assert row(text, "gpt2", "tf32", "1")[-2] == "host"
    assert row(text, "resnet50", "bf16", "8")[-2] == "both"
    rows = report.step_rows(of_gpu)
    assert f"in {sum(r.bound == 'host' for r in rows)} of {len(rows)} steps" in (
        " ".join(text.split())
    )


def test_what_is_in_no_profile_is_update_and_other(of_gpu):
    _, _, profiles = shown(of_gpu).partition("Steps and the profiles of their layers")
    for one in report.step_rows(of_gpu):
        found = row(profiles, one.model, one.precision, str(one.microbatch))
        missing, update, other = (float(found[k]) for k in (2, 4, 6))
        assert missing == pytest.approx(update + other, abs=1.6)
        assert missing == pytest.approx(100 * (1 - one.layers / one.step), abs=0.51)
        assert update == pytest.approx(100 * one.update / one.step, abs=0.51)
    assert "resnet50, bf16, 128; gpt2, tf32, 16. Take the others" in " ".join(profiles.split())


def test_a_profile_like_its_step_needs_no_advice(of_gpu):
    (good,) = (r for r in report.step_rows(of_gpu) if (r.precision, r.microbatch) == ("tf32", 16))
    text = "\n".join(report._of_profiles([good]))
    assert "Profiles within" not in text
    (bad,) = (r for r in report.step_rows(of_gpu) if r[:3] == ("resnet50", "tf32", 64))
    assert "update: none. Take the others" in " ".join(report._of_profiles([bad]))
    assert report._of_profiles([good._replace(layers=None)]) == []
    assert good._replace(layers=None).hooks == 0.0


def test_a_microbatch_that_did_not_fit_is_named(of_gpu):
    steps = [step(1, "4 ms", sum_of_layers="2 ms"), FullStep(microbatch=64)]
    model = ModelSteps(model={}, precisions={"full": PrecisionSteps(steps=steps)})
    record = of_gpu.layers["gpt2"].model_copy(update={"models": {"gpt2": model}})
    text = shown(Findings(layers={"gpt2": record}))
    assert "did not fit into memory: gpt2, full, 64" in text
    assert "A CPU computes in the calls of torch: no host bounds these steps." in text
    _, _, profiles = text.partition("Steps and the profiles")
    assert row(profiles, "gpt2", "full", "1") == ["4", "2", *("50", "%") * 2, "0", "%"]


def test_collectives_and_ddp_have_their_tables(of_cpu):
    text = shown(of_cpu)
    last = collectives_of(of_cpu)[-1]
    found = row(text, "all_reduce", "2")
    assert float(found[1]) == pytest.approx(last.nbytes / 2**20)
    assert float(found[3]) == pytest.approx(last.nbytes / last.seconds / 1e9, rel=0.01)
    assert row(text, "mlp", "baseline", "64", "1")[:2] == ["-", "23.16"]
    run = next(r for r in of_cpu.ddp["mlp"].models["mlp"].runs if r.variant == "ddp")
    exposed = run.exposed_communication.over_skipped.removesuffix(" ms")
    assert row(text, "mlp", "ddp", "64", "1", "1", "MiB")[1] == exposed


def collectives_of(found):
    from simdp.results.collective import read_nccl_tests

    return read_nccl_tests(found.logs[2], "all_reduce").rows


def test_predictions_are_beside_the_measured_steps(of_cpu):
    points = [
        SimulatedStep("a", "world_size 1", 10e-3, 10e-3, False),
        SimulatedStep("a", "world_size 2", 10e-3, 11e-3, True),
        SimulatedStep("b", "world_size 2", 10e-3, 7e-3, True),
    ]
    text = shown(of_cpu, points)
    assert row(text, "b", "world_size", "2") == ["predicted", "10", "7", "-30.0", "%"]
    assert "20 % off in the mean of 2 predicted steps" in text
    assert "1 predicted step\n" in shown(of_cpu, points[:2])
    assert "there is none of more ranks to predict" in shown(of_cpu, points[:1])
    assert "Simulated steps" not in shown(of_cpu)


def test_what_failed_is_listed_with_its_reason(of_cpu):
    assert "Not measured" not in shown(of_cpu)
    found = Findings(ddp=of_cpu.ddp, failures=[Failure("gpt2: DDP", "rank 0 failed: no")])
    assert "Not measured\n  gpt2: DDP: rank 0 failed: no\n" in shown(found)


def test_the_report_ends_with_what_to_send_back(of_cpu, of_gpu):
    *_, last = shown(of_cpu).partition("What to send back\n")
    words = " ".join(last.split())
    assert "machine.yaml, scenario.yaml, scenarios/, ddp/, gloo_cpu_2ranks.log and report" in words
    assert "no data, no weights, no code and no paths" in words
    assert "http" not in last
    one = Findings(of_gpu.layers, {"gpt2": of_gpu.ddp["gpt2"]})
    words = " ".join(shown(one).split())
    assert "machine.yaml, scenario.yaml, layers/, ddp/ and report.txt" in words
