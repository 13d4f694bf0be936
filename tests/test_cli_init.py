"""``init``: from an empty folder to a scaling plot of one's own model on one's own cluster."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from simdp.cli import run_command_line
from simdp.cluster.hardware import MACHINES, read_machine
from simdp.engine.simulate import memory_needed, simulate
from simdp.files import parse_yaml
from simdp.scenario import checked, load_scenario
from simdp.studies.first_scenario import first_scenario
from simdp.studies.fits import fitting
from simdp.studies.methods import FitsRequest, place_of
from simdp.workload.models import PRESETS, read_model

pytestmark = pytest.mark.slow

FLAGS = ["--machine", "dgx-h100", "--model", "bert-large", "--gpus", "32"]
PLAIN = ["--strategy", "ddp", "--recompute", "none"]


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Run one command in an empty folder, where nobody can be asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)

    def say(*arguments):
        status = run_command_line([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return say


def answered(monkeypatch, *answers):
    """Be a terminal at which somebody types."""
    left, asked = list(answers), []

    def prompt(question, default):
        asked.append((question, default))
        return left.pop(0) or default

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", prompt)
    return asked


@pytest.mark.long
def test_three_commands_lead_to_a_scaling_plot(say):
    small = [*FLAGS[:-1], "16", "--microbatch", "8"]
    assert say("init", *small) == (
        0,
        "wrote scenario.yaml; next: python -m simdp run scenario.yaml\n",
        [],
    )
    assert say("check", "scenario.yaml")[0] == 0
    status, out, err = say("run", "scenario")
    assert (status, err) == (0, [])
    assert "eff." in out
    assert Path("runs/bert-large_dgx-h100_16/scaling.png").stat().st_size > 10_000


def test_every_key_has_a_comment_and_the_file_asks_a_question(say):
    say("init", *FLAGS, *PLAIN, "--microbatch", "16", "--out", "mine/bert.yaml")
    lines = Path("mine/bert.yaml").read_text().splitlines()
    assert lines[0] == "# How does bert-large scale on dgx-h100, from 1 to 32 GPUs?"
    assert max(map(len, lines)) <= 100
    for above, line in pairwise(lines):
        if re.match(r" *[a-z_.]+:", line) and line.split(":")[0] not in ("cluster", "workload"):
            assert above.strip().startswith("#") or above == "sweep:", line
    scenario = load_scenario("mine/bert.yaml")
    assert scenario.sweep == {"cluster.world_size": [1, 2, 4, 8, 16, 32]}
    assert scenario.workload.precision.kind == "mixed"
    assert scenario.workload.precision.dtype == "bfloat16"
    assert not scenario.numerics


@pytest.mark.long
def test_every_machine_and_some_models_make_a_scenario_that_is_valid():
    file, least = Path("scenario.yaml"), {"strategy": "zero3", "method": "offload"}
    pairs = [(machine, "resnet18") for machine in MACHINES]
    pairs += [("dgx-a100", model) for model in list(PRESETS)[::8]]
    for machine, model in pairs:
        size = place_of(machine, None).usual_size if model == "resnet18" else 2
        recompute = "blocks" if read_model(model).graph.blocks else "none"
        told = {"strategy": "ddp"} if model == "resnet18" else least
        asked = FitsRequest(model, size, machine, microbatch=1, recompute=recompute, **told)
        raw = parse_yaml(first_scenario(asked, file), machine)
        scenario = checked(raw, Path())
        assert scenario.cluster.machine == machine
        assert scenario.cluster.world_size == size


def test_the_nodes_in_the_comment_can_stand_in_place_of_the_machine():
    for machine in ("dgx-h100", "horovod-25g-rdma", "cpu-gloo-2core", "aws-g4dn"):
        size = place_of(machine, None).usual_size
        asked = FitsRequest("resnet18", size, machine, strategy="ddp", recompute="none")
        text = first_scenario(asked, Path("x.yaml"))
        head, _, rest = text.partition("  # Not yours?")
        own, _, rest = rest.partition("\n\n")
        own = "\n".join(line.replace("  # ", "  ", 1) for line in own.splitlines()[1:])
        head = head.replace(f"  machine: {machine}\n", "")
        cluster = checked(parse_yaml(f"{head}{own}\n\n{rest}", "own"), Path()).cluster
        assert cluster.machine is None
        assert cluster.devices_per_node == read_machine(machine, Path()).cluster["devices_per_node"]


def test_the_batch_is_the_largest_that_fits():
    def batch(model, **told):
        asked = FitsRequest(model, 2, "rtx2080ti-pcie3", **told)
        return parse_yaml(first_scenario(asked, Path("x.yaml")), "x")["workload"]

    assert batch("resnet18", strategy="ddp")["microbatch"] == 640
    fitted = batch("bert-large", strategy="ddp", recompute="none")["microbatch"]
    assert 1 <= fitted < 64
    assert batch("bert-large", microbatch=5, strategy="zero1")["microbatch"] == 5
    assert batch("resnet18", strategy="data_parallel", microbatch=4)["global_batch"] == 8
    assert batch("resnet18", strategy="data_parallel")["global_batch"] == 1024


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(FitsRequest("gpt2", 8, "dgx-h100"), marks=pytest.mark.long, id="gpt2"),
        FitsRequest("resnet18", 16, device="l40s-48gb", node_size=4),
        FitsRequest("llama3.2-1b", 4, "dgx-a100", strategy="fsdp", recompute="selective"),
        pytest.param(
            FitsRequest("bert-base", 4, "aws-g4dn", precision="amp", strategy="ddp"),
            marks=pytest.mark.long,
            id="bert-base",
        ),
        FitsRequest("qwen2.5-0.5b", 2, "rtx2080ti-pcie3", method="lora", sequence_length=512),
    ],
    ids=lambda asked: asked.model,
)
def test_what_init_writes_gives_what_fits_has_of_its_row(asked):
    found = fitting(asked if asked.method else asked._replace(method="full"))
    text = first_scenario(asked, Path("x.yaml"))
    scenario = checked(parse_yaml(text, "x") | {"sweep": {}}, Path())
    row = found.chosen
    assert row.state == "yes"
    assert row.microbatch == scenario.workload.microbatch
    assert row.recompute == scenario.workload.recompute
    metrics = simulate(scenario).metrics
    assert row.step_time_s == pytest.approx(metrics["step_time_s"], rel=1e-9)
    assert row.peak_memory_bytes == pytest.approx(max(metrics["peak_memory_bytes"]), rel=1e-9)
    if metrics["tokens_per_s"]:
        assert row.tokens_per_s == pytest.approx(metrics["tokens_per_s"])


def test_only_sizes_that_fit_are_swept(say):
    where = ["--model", "llama3-8b", "--device", "h100-sxm5-80gb", "--gpus", "16"]
    say("init", *where, "--strategy", "fsdp", "--recompute", "selective")
    scenario = load_scenario("scenario.yaml")
    sizes = scenario.sweep["cluster.world_size"]
    assert sizes[-1] == 16
    assert 1 not in sizes
    first = Path("scenario.yaml").read_text().splitlines()[0]
    assert first == f"# How does llama3-8b scale on dgx-h100, from {sizes[0]} to 16 GPUs?"
    room = scenario.cluster.devices()[0].memory
    least = checked(scenario.resolved() | {"sweep": {}}, Path())
    smallest = least.model_copy(
        update={"cluster": least.cluster.model_copy(update={"world_size": sizes[0]})}
    )
    assert max(memory_needed(smallest).peak) < room


@pytest.mark.slow
def test_shorter_samples_are_advised_only_where_they_fit(say):
    job = ["--model", "llama3-8b", "--gpus", "8", "--device", "rtx4090-24gb", "--microbatch", "4"]
    _, _, (line,) = say("init", *job, "--method", "lora")
    assert "; it fits with --sequence-length 512; shorten its samples, or find how many" in line
    _, _, (line,) = say("init", *job, "--method", "full", "--strategy", "ddp")
    assert "--sequence-length" not in line
    assert "; leave out --strategy and --method and --microbatch, or find how many" in line


def test_what_does_not_fit_is_said_and_nothing_is_written(say):
    where = ["--model", "llama3-70b", "--machine", "dgx-h100", "--gpus", "8"]
    status, out, (line,) = say("init", *where, "--strategy", "ddp", "--recompute", "blocks")
    assert (status, out) == (2, "")
    first, _, rest = line.partition(" TB ")
    assert first.startswith("--gpus 8: llama3-70b does not fit: it takes 1.")
    assert rest == (
        "of 84.9 GB per GPU at least, with ddp and recompute: blocks; leave out --strategy and "
        "--recompute, or find how many it needs by `python -m simdp fits llama3-70b --gpus '?' "
        "--machine dgx-h100`."
    )
    assert not list(Path().iterdir())


def test_a_device_and_a_node_size_are_a_cluster(say):
    where = ["--model", "vit-l", "--gpus", "48", "--device", "l40s-48gb", "--node-size", "4"]
    say("init", *where, "--strategy", "ddp", "--microbatch", "32", "--recompute", "none")
    scenario = load_scenario("scenario.yaml")
    assert scenario.cluster.num_nodes == 12
    assert scenario.cluster.devices_per_node == 4
    own = ["--model", "resnet18", "--gpus", "16", "--device", "l4-24gb", "--node-size", "8"]
    say("init", *own, "--strategy", "ddp", "--microbatch", "8", "--out", "own.yaml")
    scenario = load_scenario("own.yaml")
    assert (scenario.cluster.machine, scenario.cluster.num_nodes) == (None, 2)
    assert scenario.cluster.device.name == "l4-24gb"


def test_a_mapping_and_a_machine_of_ones_own_are_taken(say):
    say("init", *FLAGS, *PLAIN, "--microbatch", "1", "--out", "first.yaml")
    Path("sub").mkdir()
    Path("sub/own.yaml").write_text(
        "cluster: {devices_per_node: 2, device: a100-sxm4-80gb, topology: switch, link: nvlink3}\n"
        "source: a bench\n"
    )
    flags = ["--machine", "sub/own.yaml", "--model", "{kind: bert-base, sequence_length: 64}"]
    options = ["--gpus", 2, "--strategy", "{kind: ddp, bucket_cap: 5 MiB}", "--precision", "full"]
    options += ["--microbatch", 2, "--recompute", "none"]
    assert say("init", *flags, *options, "--out", "other/s.yaml")[0] == 0
    scenario = load_scenario("other/s.yaml")
    assert scenario.cluster.machine == "../sub/own.yaml"
    assert scenario.name == "bert-base_own_2"
    assert scenario.strategy.bucket_cap == 5 * 2**20
    assert scenario.workload.precision.kind == "full"


def test_what_is_needed_is_said_where_nobody_can_be_asked(say):
    assert say("init") == (
        2,
        "",
        [
            "--machine, --model, --gpus: must be given where nobody can be asked; add --machine "
            "dgx-h100 --model bert-large --gpus 32."
        ],
    )
    assert say("init", "--model", "gpt2", "--machine", "dgx-1")[2] == [
        "--gpus: must be given where nobody can be asked; add --gpus 32."
    ]
    assert not list(Path().iterdir())


def test_nothing_is_written_over_unless_that_is_said(say):
    Path("scenario.yaml").write_text("mine")
    assert say("init", *FLAGS) == (
        2,
        "",
        ["scenario.yaml: is there already; add --force, or --out another file."],
    )
    assert Path("scenario.yaml").read_text() == "mine"
    assert say("init", *FLAGS, *PLAIN, "--microbatch", "1", "--force")[0] == 0
    assert "bert-large" in Path("scenario.yaml").read_text()


def test_a_wrong_answer_is_one_line_and_nothing_is_written(say):
    for flags, said in (
        (
            ["--machine", "dgx-h10"],
            "--machine: unknown machine 'dgx-h10'. Did you mean 'dgx-h100'? Known: ",
        ),
        (["--machine", "no.yaml"], "--machine: no.yaml: there is no such file."),
        (["--model", "{kind: mlp, widths: [4, x]}"], "--model.widths.1: 'x' is not a whole"),
        (["--gpus", "12"], "--gpus 12: dgx-h100 has nodes of 8; give 1 to 8, or whole nodes."),
        (["--gpus", "0"], "--gpus 0: dgx-h100 has nodes of 8; give 1 to 8, or whole nodes."),
        (
            ["--machine", "sia-quad", "--gpus", "8"],
            "--gpus 8: sia-quad is one node of 4, without a network; give 1 to 4.",
        ),
        (
            ["--strategy", "dpp"],
            "--strategy: unknown strategy 'dpp'. Did you mean 'ddp'? Known: apex, ",
        ),
        (["--strategy", "single"], "strategy.kind: single trains on one device, but cluster."),
        (["--precision", "amp, full"], "--precision: unknown precision 'amp, full'. Did "),
    ):
        status, out, (line, *_) = say("init", *FLAGS, *flags)
        assert (status, out) == (2, "")
        assert line.startswith(said), line
    assert not list(Path().iterdir())


def test_a_terminal_is_asked_until_the_answer_is_one(say, monkeypatch, capsys):
    asked = answered(monkeypatch, "dgx-a10", "dgx-a100", "", "many", "12", "8", "fsdp")
    status, _, err = say("init", "--microbatch", "1")
    assert status == 0
    assert [question for question, _ in asked] == [
        *["Machine (list machines)"] * 2,
        "Model (list models)",
        *["GPUs"] * 3,
        "Strategy (list strategies)",
    ]
    assert asked[3] == ("GPUs", "32")
    assert err[0].startswith("--machine: unknown machine 'dgx-a10'. Did you mean 'dgx-a100'? ")
    assert err[1:] == [
        "--gpus many: is not a whole number; write for example 32.",
        "--gpus 12: dgx-a100 has nodes of 8; give 1 to 8, or whole nodes.",
    ]
    scenario = load_scenario("scenario.yaml")
    assert scenario.name == "bert-large_dgx-a100_8"
    assert scenario.strategy.kind == "fsdp"


def test_a_terminal_is_asked_only_for_what_is_missing(say, monkeypatch):
    asked = answered(monkeypatch, "resnet18")
    assert say("init", "--machine", "dgx-1", "--gpus", "4", "--microbatch", "1")[0] == 0
    assert [question for question, _ in asked] == ["Model (list models)"]


def test_a_convolutional_network_is_trained_by_sgd(say):
    told = ["--machine", "dgx-h100", "--model", "resnet50", "--gpus", "2", "--microbatch", "1"]
    assert say("init", *told, *PLAIN)[0] == 0
    workload = parse_yaml(Path("scenario.yaml").read_text(), "scenario.yaml")["workload"]
    assert workload["optimizer"] == {"kind": "sgd", "lr": 0.1, "momentum": 0.9}


def test_host_memory_is_written_or_named_where_it_is_too_small(say):
    model = "{kind: llama, vocab_size: 64, hidden_size: 64, num_hidden_layers: 1, "
    model += "intermediate_size: 64, num_attention_heads: 2, sequence_length: 8}"
    told = ["init", "--model", model, "--gpus", 2, "--device", "rtx4090-24gb", "--microbatch", 1]
    told += ["--method", "offload", "--strategy", "zero3", "--recompute", "none"]
    assert say(*told)[0] == 0
    assert "# Each node needs 590 kB of host memory; its size is not known." in text_of()
    assert say(*told, "--force", "--host-memory", "1 MB")[0] == 0
    assert "  host_memory: 1 MB\n" in text_of()
    assert "# Each node needs 590 kB of host memory, 1 MB are there." in text_of()
    status, _, (line,) = say(*told, "--force", "--host-memory", "1 kB")
    assert status == 2
    assert "; offloaded it needs 590 kB of host memory, 1 kB are there; leave out" in line
    for size in ("500", "0 GB", "500 W"):
        status, _, (line,) = say(*told, "--force", "--host-memory", size)
        assert status == 2
        assert line.startswith(f"--host-memory {size}: ")


def text_of():
    return Path("scenario.yaml").read_text()
