"""``python -m simdp probe`` on real torch: from its options to a scenario that is validated."""

import pytest
from for_each import for_each

from simdp.cli import run_command_line
from simdp.files import read_yaml
from simdp.probes import plan
from simdp.probes.arguments import ProbeError
from simdp.probes.plan import ProbeOptions
from simdp.scenario import load_scenario

torch = pytest.importorskip("torch")

SMALL = [
    "mlp.widths=[8, 16, 4]",
    *("transformer.vocab_size=20", "transformer.d_model=8", "transformer.nhead=2"),
    *("transformer.num_layers=2", "transformer.dim_feedforward=16"),
    "transformer.sequence_length=5",
]


@pytest.fixture(autouse=True)
def flags():
    """Leave the process with its threads, and its flags of TF32."""
    found = torch.backends.cuda.matmul, torch.backends.cudnn
    before, threads = [one.allow_tf32 for one in found], torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    for one, allowed in zip(found, before, strict=True):
        one.allow_tf32 = allowed


# Devices -----------------------------------------------------------------------------------------


@pytest.fixture
def gpus(monkeypatch):
    def gpus(count, capability=(9, 0)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)

    return gpus


def test_a_cpu_has_small_models_and_two_ranks_over_gloo(gpus, monkeypatch):
    gpus(0)
    monkeypatch.setattr(plan.os, "cpu_count", lambda: 16)
    found = plan.read_options(ProbeOptions())
    assert (found.device, found.backend, found.precisions) == ("cpu", "gloo", ["full"])
    assert (list(found.models), found.world_sizes, found.steps) == (
        *(["mlp", "transformer"], [1, 2], 10),
    )
    assert found.microbatches["mlp"] == [8, 64]
    monkeypatch.setattr(plan.os, "cpu_count", lambda: 1)
    assert plan.read_options(ProbeOptions()).world_sizes == [1]


@for_each(
    ("count", "capability", "world_sizes", "precisions"),
    [
        (1, (9, 0), [1], ["bf16", "tf32"]),
        (2, (8, 0), [1, 2], ["bf16", "tf32"]),
        (8, (7, 5), [1, 2, 8], ["fp16", "full"]),
    ],
)
def test_gpus_are_measured_where_there_are_any(gpus, count, capability, world_sizes, precisions):
    gpus(count, capability)
    found = plan.read_options(ProbeOptions())
    assert (found.device, found.backend, found.steps) == ("cuda", "nccl", 20)
    assert (found.world_sizes, found.precisions) == (world_sizes, precisions)


def test_options_have_precedence(gpus):
    gpus(8)
    found = plan.read_options(
        ProbeOptions("cuda", "gpt2", [], "full", "4,2", "sgd", "4,2", "gloo", None, 3.0)
    )
    assert (list(found.models), found.precisions) == (["gpt2"], ["full"])
    assert found.microbatches == {"gpt2": [2, 4]}
    assert (found.world_sizes, found.backend, found.minutes) == ([2, 4], "gloo", 3.0)
    assert plan.read_options(ProbeOptions("cpu")).device == "cpu"


@for_each(
    ("count", "options", "line"),
    [
        (0, {"device": "cuda"}, "--device: torch finds no GPU here; write --device cpu."),
        (
            1,
            {"world_sizes": "1,4"},
            "--world-sizes: 4 ranks on 1 GPU; write at most 1, or run simdp.probes.ddp with "
            "--ranks-per-device.",
        ),
        (
            2,
            {"world_sizes": "3"},
            "--world-sizes: 3 ranks on 2 GPUs; write at most 2, or run simdp.probes.ddp with "
            "--ranks-per-device.",
        ),
        (
            0,
            {"backend": "nccl"},
            "--backend: nccl has no CPU tensors; write --device cuda, or gloo.",
        ),
        (0, {"precision": "tf32"}, "--precision: a CPU has no tf32; write full, bf16 or fp16."),
    ],
)
def test_what_the_machine_does_not_have_is_refused(gpus, count, options, line):
    gpus(count)
    with pytest.raises(ProbeError) as caught:
        plan.read_options(ProbeOptions(**options))
    assert str(caught.value) == line


def test_under_torchrun_it_is_refused(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(ProbeError) as caught:
        plan.read_options(ProbeOptions())
    assert str(caught.value) == (
        "torchrun: probe starts its ranks itself; run it without, or run simdp.probes.ddp and "
        "simdp.probes.collectives under torchrun."
    )


# Quick steps -------------------------------------------------------------------------------------


def test_quick_steps_leave_out_what_does_not_fit(monkeypatch):
    from simdp.probes.device import Stepper

    options = ProbeOptions("cpu", "mlp", SMALL[:1], "full,bf16", "2,4")
    run = Stepper.run

    def limited(self, *given):
        if len(self.batch[0]) == 4 and self.low is not None:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return run(self, *given)

    monkeypatch.setattr(Stepper, "run", limited)
    found = plan.quick_steps(plan.read_options(options))
    assert list(found) == [("mlp", "full", 2), ("mlp", "full", 4), ("mlp", "bf16", 2)]
    for taken in found.values():
        assert taken.gradient_bytes == 4 * (8 * 16 + 16 + 16 * 4 + 4)
        assert min(taken.start, taken.step) > 0


# Command -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_measures_this_machine_and_predicts_two_ranks(tmp_path, capsys):
    out = tmp_path / "mine"
    given = ["probe", "--device", "cpu", "--world-sizes", "1,2", "--microbatch", "2,4"]
    for change in SMALL:
        given += ["--set", change]
    status = run_command_line([*given, "--steps", "2", "--out", str(out)])
    printed = capsys.readouterr()
    assert (status, printed.err) == (0, "")
    lines = printed.out.splitlines()
    assert lines[1].startswith("  1. mlp: steps and layers, micro-batches 2, 4, full: about ")
    assert lines[6].startswith("about 1 min in all on cpu, with 2 timed steps of each kind")
    assert {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} == {
        *("machine.yaml", "scenario.yaml", "scenarios/transformer.yaml", "report.txt"),
        *("gloo_cpu_2ranks.log", "ddp/mlp.yaml", "ddp/transformer.yaml"),
        *(f"layers/{m}/{m}_full_{b}.csv" for m in ("mlp", "transformer") for b in (2, 4)),
        *("layers/mlp/steps.yaml", "layers/transformer/steps.yaml"),
    }
    report = (out / "report.txt").read_text()
    assert report in printed.out
    for title in ("Steps without DDP", "profiles of their layers", "Collectives", "Simulated"):
        assert title in report
    assert "off in the mean of 4 predicted steps" in report
    record = read_yaml(out / "layers/mlp/steps.yaml")
    assert record["optimizer"] == "adamw"
    chosen = load_scenario(out / "scenario.yaml")
    assert chosen.workload.microbatch == 4
    assert len(chosen.measured.points) == 5
    folder = ["--out", str(tmp_path / "runs"), "--no-plots"]
    assert run_command_line(["run", str(out / "scenario.yaml"), *folder]) == 0
    paths = [str(out / "scenario.yaml"), str(out / "scenarios")]
    assert run_command_line(["validate", *paths, *folder]) == 0
    assert "probe_transformer" in capsys.readouterr().out
