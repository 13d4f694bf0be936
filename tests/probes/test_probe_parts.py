"""``python -m simdp probe`` without torch: its options, its parts and their estimates."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from for_each import for_each

from simdp.cli import run_command_line
from simdp.probes import arguments, plan, zoo
from simdp.probes.arguments import ProbeError, printed_lines
from simdp.probes.findings import Failure, Findings
from simdp.probes.plan import ProbeOptions, ProbePart, ProbeRequest, QuickStep

HELP = "; see --help."
NO_TORCH = "probes: run real torch, which is not installed; pip install 'simdp[torch]'.\n"

REQUEST = ProbeRequest(
    device="cpu",
    models={"mlp": zoo.MODELS["mlp"], "gpt2": zoo.MODELS["gpt2"]},
    changes=["mlp.widths=[8, 16, 4]", "gpt2.n_layer=2"],
    precisions=["full", "bf16"],
    microbatches={"mlp": [8, 64], "gpt2": [1]},
    optimizer="adamw",
    world_sizes=[1, 2],
    backend="gloo",
    steps=10,
    minutes=None,
    out=Path("out"),
)

QUICK = {
    ("mlp", "full", 8): QuickStep(0.5, 0.01, 4 * 2**20),
    ("mlp", "full", 64): QuickStep(0.5, 0.04, 4 * 2**20),
    ("mlp", "bf16", 8): QuickStep(0.5, 0.02, 4 * 2**20),
    ("gpt2", "full", 1): QuickStep(4.0, 1.0, 2**29),
}


# Options -----------------------------------------------------------------------------------------


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)


@pytest.fixture
def refused(no_torch, capsys):
    def refused(*given):
        assert run_command_line(["probe", *given]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1
        return printed.err

    return refused


def test_without_torch_the_command_says_what_to_install(refused):
    assert refused() == NO_TORCH


@for_each(
    ("given", "line"),
    [
        (
            ["--device", "tpu"],
            f"--device: unknown device 'tpu'. Did you mean 'cpu'? Known: cpu, cuda{HELP}",
        ),
        (
            ["--models", "resnet"],
            "--models: unknown model 'resnet'. Did you mean 'resnet50'? Known: mlp, "
            "transformer, bert-base, resnet50, gpt2, llama-1b.",
        ),
        (
            ["--models", "mlp,mlp"],
            f"--models: 'mlp,mlp' has something twice; give each once{HELP}",
        ),
        (
            ["--models", "mlp", "--set", "gpt2.n_layer=2"],
            "--set: 'gpt2.n_layer=2' names none of the models that are measured; write for example "
            "mlp.widths=VALUE.",
        ),
        (
            ["--precision", "int8"],
            f"--precision: unknown precision 'int8'; known: full, tf32, bf16, fp16{HELP}",
        ),
        (["--microbatch", "0"], f"--microbatch: '0' is not a whole number >= 1{HELP}"),
        (["--world-sizes", "1,x"], f"--world-sizes: 'x' is not a whole number >= 1{HELP}"),
        (
            ["--backend", "glo"],
            f"--backend: unknown backend 'glo'. Did you mean 'gloo'? Known: gloo, nccl{HELP}",
        ),
        (
            ["--optimizer", "sgdm"],
            "--optimizer: unknown optimizer 'sgdm'. Did you mean 'sgd'? Known: sgd, adam, adamw"
            f"{HELP}",
        ),
        (["--steps", "0"], f"--steps: 0 is not a number of 1 to 1000000{HELP}"),
        (["--minutes", "0"], f"--minutes: 0 is not > 0 and <= 10000{HELP}"),
        (
            ["--minutes", "5", "--steps", "3"],
            "--minutes: decides the number of steps; leave --steps out.",
        ),
        (
            ["--device", "cpu", "--precision", "tf32"],
            "--precision: a CPU has no tf32; write full, bf16 or fp16.",
        ),
        (
            ["--device", "cpu", "--backend", "nccl"],
            "--backend: nccl has no CPU tensors; write --device cuda, or gloo.",
        ),
    ],
)
def test_wrong_options_are_refused_in_one_line(refused, given, line):
    assert refused(*given) == f"{line}\n"


def test_options_that_are_no_numbers_are_refused_in_one_line(refused):
    assert refused("--steps", "many").startswith("Invalid value for '--steps': ")


def test_the_help_lists_every_allowed_value(capsys):
    assert run_command_line(["probe", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for values in (zoo.MODELS, arguments.PRECISIONS):
        assert f"Some of {', '.join(values)}" in text
    for values in (arguments.DEVICES, arguments.BACKENDS, arguments.OPTIMIZERS):
        assert "|".join(values) in text
    assert "a few minutes on two CPU cores or on one GPU" in text
    for device, names in plan.MODELS.items():
        assert ", ".join(names) in text
        assert f"{plan.STEPS[device]}" in text
        assert set(plan.MICROBATCHES[device]) == set(zoo.MODELS)


def test_options_need_no_device(no_torch):
    with pytest.raises(ProbeError) as caught:
        plan.read_options(ProbeOptions(models="mlp", changes=["mlp.widths=[3, 4]"], minutes=0.5))
    assert f"{caught.value}\n" == NO_TORCH


# Parts -------------------------------------------------------------------------------------------


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def test_parts_are_layers_of_each_model_then_collectives_then_ddp(cores):
    titles = [part.title for part in plan.parts(REQUEST, QUICK)]
    assert titles == [
        "mlp: steps and layers, micro-batches 8, 64, full, bf16",
        "gpt2: steps and layers, micro-batches 1, full, bf16",
        "all_reduce, all_gather of 2 ranks, gloo, 1 KiB to 128 MiB",
        "mlp: DDP of 1, 2 ranks, gloo, full",
        "gpt2: DDP of 1, 2 ranks, gloo, full",
    ]
    alone = plan.parts(REQUEST._replace(world_sizes=[1]), QUICK)
    assert [part.title for part in alone] == [
        *titles[:2],
        *("mlp: DDP of 1 ranks, gloo, full", "gpt2: DDP of 1 ranks, gloo, full"),
    ]


def test_estimates_follow_from_the_quick_steps(cores):
    mlp, _, together, ddp, _ = plan.parts(REQUEST, QUICK)
    assert mlp.per_step == pytest.approx((1 + plan.HOOKS) * 0.07)
    assert mlp.fixed == pytest.approx(plan.FIGURES + 1.5 + plan.WARM_UP * mlp.per_step)
    assert mlp.seconds(4) == mlp.fixed + 4 * mlp.per_step
    assert mlp.num_lines == 5
    assert ddp.num_lines == 15
    # one rank, and two on one core; those of DDP send the gradients
    wire = len(plan.BUCKET_CAPS) * 4 * 2**20 / plan.SPEED["gloo"]
    each = plan.ROUNDS * plan.NUM_KINDS * 0.04
    assert ddp.per_step == pytest.approx(each + 2 * each + plan.ROUNDS * wire)
    assert together.num_lines == 3
    cold = 64 * 1e-4 * len(plan._sizes(REQUEST, QUICK)) + 2 * plan.PAUSE
    warm = plan.WARM_UP * together.per_step + 2 * plan.ROUNDS * cold
    assert together.fixed == pytest.approx(plan.START + warm)
    on_gpu = plan.parts(REQUEST._replace(device="cuda"), QUICK)[0]
    assert on_gpu.per_step == pytest.approx((2 + plan.HOOKS) * 0.07)


def test_parts_of_models_that_do_not_fit_take_no_time_of_steps():
    for part in plan.parts(REQUEST._replace(models={"mlp": {}}), {}):
        assert part.seconds(100) < 60


def test_collectives_reach_the_gradients_of_the_largest_model():
    small = {("mlp", "full", 8): QuickStep(0.5, 0.01, 3 * 2**20)}
    assert plan._sizes(REQUEST, small) == [2**k for k in range(10, 23)]
    assert plan._sizes(REQUEST, {}) == [2**k for k in range(10, 21)]
    assert plan._sizes(REQUEST, QUICK)[-1] == 2**27
    assert plan._sizes(REQUEST._replace(device="cuda"), QUICK)[-1] == 2**29


def test_a_budget_takes_as_many_steps_as_fit():
    found = [ProbePart("a", 20.0, 1.0, 1, None), ProbePart("b", 10.0, 1.0, 1, None)]
    assert plan.affordable_steps(REQUEST, found) == 10
    assert plan.affordable_steps(REQUEST._replace(minutes=0.7), found) == 6
    assert plan.affordable_steps(REQUEST._replace(minutes=60.0), found) == 10
    assert plan.affordable_steps(REQUEST._replace(minutes=60.0), []) == 10
    with pytest.raises(ProbeError) as caught:
        plan.affordable_steps(REQUEST._replace(minutes=0.55), found)
    assert str(caught.value) == (
        "--minutes: 0.55 is less than the 0.6 that the fewest steps take; write 0.7, or fewer "
        "--models, --microbatch or --precision."
    )


# Arguments of the probes -------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    found = []
    for name in ("layers", "collectives", "ddp"):
        probe = getattr(plan, name)

        def main(given, name=name, probe=probe):
            found.append((name, probe.parser().parse_args(given)))

        monkeypatch.setattr(probe, "main", main)
    for record in (plan.LayersRecord, plan.DDPRecord):
        monkeypatch.setattr(record, "read", lambda path: path.as_posix())
    return found


def test_each_part_is_a_call_of_a_probe(calls, monkeypatch):
    found = Findings()
    microbatches = {"mlp": 8, "gpt2": 1}
    monkeypatch.setattr(plan, "_of_ddp", lambda request, name, found: microbatches[name])
    for part in plan.parts(REQUEST, QUICK):
        part.run(7, found)
    assert [name for name, _ in calls] == ["layers", "layers", "collectives", "ddp", "ddp"]
    first, _, together, _, last = (args for _, args in calls)
    assert (first.models, first.set) == (["mlp"], ["mlp.widths=[8, 16, 4]"])
    assert (first.precision, first.microbatch) == (["full", "bf16"], [8, 64])
    assert (first.steps, first.optimizer, first.device) == (7, "adamw", "cpu")
    assert (together.world_sizes, together.calls, together.backend) == ([2], 7, "gloo")
    assert together.collectives == ["all_reduce", "all_gather"]
    assert (together.sizes[0], together.sizes[-1]) == (1024, 2**27)
    assert (last.models, last.set) == (["gpt2"], ["gpt2.n_layer=2"])
    assert (last.microbatch, last.precision, last.world_sizes) == ([1], ["full"], [1, 2])
    assert (last.bucket_caps, last.tries, last.steps) == ([1, 25], plan.TRIES, 7)
    assert found.layers["mlp"] == "out/layers/mlp/steps.yaml"
    assert found.ddp["gpt2"] == "out/ddp/gpt2.yaml"
    assert found.logs == {2: Path("out/gloo_cpu_2ranks.log")}


def record(*steps):
    from test_findings import FullStep, LayersRecord, ModelSteps, PrecisionSteps, device

    machine = dict.fromkeys(("cpu", "platform", "python", "torch"), "")
    steps = [*steps, FullStep(microbatch=128)]
    precisions = {"full": PrecisionSteps(steps=steps)}
    return LayersRecord(
        machine={**machine, "cores": 1, "threads_per_rank": 1},
        device=device(10),
        models={"mlp": ModelSteps(model={}, precisions=precisions)},
    )


def test_ddp_takes_the_largest_microbatch_that_fits_beside_its_replicas():
    """Four more of 1 GB and their buckets, in 9 of 10 GB, leave 3 GB."""
    from test_findings import step

    def of_gpu(microbatch, allocated):
        return step(microbatch, "1 ms", memory={"at_rest": "1 GB", "allocated": allocated})

    small, middle, large = of_gpu(8, "2 GB"), of_gpu(32, "3 GB"), of_gpu(64, "3.1 GB")

    def chosen(*steps):
        found = Findings(layers={"mlp": record(*steps)} if steps else {})
        return plan._of_ddp(REQUEST, "mlp", found)

    assert chosen(small, middle, large) == 32
    assert chosen(step(8, "1 ms"), step(64, "1 ms")) == 64  # a CPU has no such figures
    assert chosen() == 8
    with pytest.raises(ProbeError) as caught:
        chosen(large)
    assert str(caught.value) == (
        "no micro-batch leaves room for 5 replicas in memory; run simdp.probes.ddp with fewer "
        "--bucket-caps."
    )


# Runs --------------------------------------------------------------------------------------------


def test_parts_run_in_order_and_one_that_fails_leaves_the_others():
    moved, finished = [], []
    progress = plan.PartProgress(moved.append, lambda *given: finished.append(given))

    def good(steps, found):
        arguments.progress("half")
        subprocess.run([sys.executable, "-c", f"print({steps})"], check=True)
        found.logs[steps] = Path("log")

    def bad(error):
        def run(steps, found):
            raise error

        return run

    parts = [
        ProbePart("good", 6.0, 1.0, 4, good),
        ProbePart("refused", 1.0, 0.0, 1, bad(ProbeError("rank 0 failed: no"))),
        ProbePart("broken", 1.0, 0.0, 1, bad(RuntimeError("CUDA error\nmore"))),
        ProbePart("silent", 1.0, 0.0, 1, bad(RuntimeError())),
    ]
    found = plan.run_parts(parts, 4, progress)
    assert found.logs == {4: Path("log")}
    assert moved == [2.5, 5.0, 10.0, 11.0, 12.0, 13.0]
    assert found.failures == [
        *(Failure("refused", "rank 0 failed: no"), Failure("broken", "CUDA error")),
        Failure("silent", "RuntimeError"),
    ]
    assert [(title, reason) for title, _, reason in finished] == [
        *(("good", None), ("refused", "rank 0 failed: no"), ("broken", "CUDA error")),
        ("silent", "RuntimeError"),
    ]


def test_a_defect_of_the_probe_is_not_hidden():
    def run(steps, found):
        raise KeyError("defect")

    progress = plan.PartProgress(lambda done: None, lambda *given: None)
    with pytest.raises(KeyError):
        plan.run_parts([ProbePart("a", 1.0, 0.0, 1, run)], 4, progress)


def test_lines_of_this_process_and_of_others_are_passed_on(capfd):
    lines = []
    other = [sys.executable, "-c", "print('from another'); print(); print('last', end='')"]
    with printed_lines(lines.append):
        arguments.progress("from here")
        subprocess.run(other, check=True)
    arguments.progress("afterwards")
    subprocess.run([sys.executable, "-c", "print('by another')"], check=True)
    assert lines == ["from here", "from another", "last"]
    assert capfd.readouterr().out == "afterwards\nby another\n"


def test_the_output_is_restored_after_an_error(capfd):
    lines = []
    with pytest.raises(ProbeError), printed_lines(lines.append):
        arguments.progress("before")
        raise ProbeError("no")
    arguments.progress("afterwards")
    assert lines == ["before"]
    assert capfd.readouterr().out == "afterwards\n"


# Command -----------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """The command, with parts in place of the measurements."""
    monkeypatch.setattr(
        plan, "read_options", lambda options: REQUEST._replace(out=options.out, steps=3)
    )
    monkeypatch.setattr(plan, "quick_steps", lambda request: QUICK)
    chosen = []
    monkeypatch.setattr(plan, "parts", lambda request, quick: chosen)

    def command(*parts):
        chosen[:] = parts
        status = run_command_line(["probe", "--out", str(tmp_path / "out")])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return command


def test_a_machine_of_which_nothing_is_measured_has_no_files(command, tmp_path):
    def run(steps, found):
        raise ProbeError("rank 0 failed: no")

    status, out, err = command(ProbePart("mlp: steps", 100.0, 10.0, 1, run))
    assert (status, err) == (2, "mlp: steps: rank 0 failed: no\n")
    assert out.splitlines() == [
        "two steps of each model, for an estimate ...",
        "  1. mlp: steps: about 130 s",
        "about 2 min in all on cpu, with 3 timed steps of each kind; longer if other programs use "
        "the machine",
        "mlp: steps: not measured: rank 0 failed: no",
    ]
    assert not (tmp_path / "out").exists()


def test_what_is_measured_is_written_and_what_failed_is_listed(command, tmp_path):
    from test_findings import CPU, DDPRecord

    def run(steps, found):
        found.ddp["mlp"] = DDPRecord.read(CPU / "mlp.yaml")

    def fail(steps, found):
        raise ProbeError("rank 1 was ended: signal 9")

    status, out, err = command(
        ProbePart("mlp: DDP", 1.0, 0.0, 1, run), ProbePart("gpt2: DDP", 1.0, 0.0, 1, fail)
    )
    assert (status, err) == (2, "gpt2: DDP: rank 1 was ended: signal 9\n")
    folder = tmp_path / "out"
    assert {path.name for path in folder.iterdir()} == {
        *("machine.yaml", "scenario.yaml", "report.txt")
    }
    text = (folder / "report.txt").read_text()
    assert text in out
    assert "Not measured\n  gpt2: DDP: rank 1 was ended" in text
    assert "predicted steps" in text
    last = f"files in {folder}; next: python -m simdp validate {folder / 'scenario.yaml'}"
    assert out.splitlines()[-1] == last


def test_a_terminal_has_a_bar_instead_of_lines(command, monkeypatch):
    from contextlib import contextmanager

    from simdp.cli import probe

    moved = []

    @contextmanager
    def bar(what, silent):
        yield lambda done, total: moved.append((done, total))

    monkeypatch.setattr(probe, "progress_bar", bar)
    _, out, _ = command(ProbePart("mlp: steps", 100.0, 10.0, 1, lambda steps, found: None))
    assert moved == [(130, 130)]
    assert "mlp: steps: 0 s" not in out
