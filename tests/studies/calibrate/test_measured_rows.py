"""Scenarios from a table of measurements, and what is said of rows that are none."""

import json
from pathlib import Path

import pytest

from simdp.cli import run_command_line
from simdp.errors import ScenarioError
from simdp.files import parse_yaml
from simdp.scenario import load_scenario
from simdp.studies.calibrate.rows import column_name, figure_unit, scenarios_from_table
from simdp.studies.methods import SGD, FitsRequest, Method, place_of, raw_of, with_data

HEADS = "model,machine,gpus,microbatch,precision,strategy,samples/s"
ONE, EIGHT = "vgg16,dgx-a100,1,64,full,,400", "vgg16,dgx-a100,8,64,full,ddp,3000"


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Make scenarios of a table; return the result and the scenarios as plain data."""
    monkeypatch.chdir(tmp_path)

    def read(*lines, **options):
        Path("runs.csv").write_text("\n".join(lines) + "\n")
        found = scenarios_from_table(Path("runs.csv"), Path("out"), **options)
        return found, [parse_yaml(one.text, one.file) for one in found.scenarios]

    return read


@pytest.fixture
def run(read, capsys):
    """Run the command on a table; return status, output and lines of errors."""

    def run(*lines, arguments=()):
        Path("runs.csv").write_text("\n".join(lines) + "\n")
        status = run_command_line(["calibrate", "rows", "runs.csv", *arguments])
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return run


def problem(read, *lines, **options):
    with pytest.raises(ScenarioError) as caught:
        read(*lines, **options)
    return caught.value.problems


@pytest.mark.slow
def test_rows_become_a_scenario_for_each_model_machine_precision_and_strategy(run):
    fsdp = "GPT-2,DGX-A100,16,4,bf16,FSDP,2000"
    status, out, err = run(HEADS, ONE, EIGHT, fsdp, arguments=["--out", "mine"])
    assert (status, err) == (0, [])
    assert out.splitlines()[-1] == "files in mine; next: python -m simdp validate mine"
    assert max(map(len, out.splitlines())) <= 80
    ddp, sharded = "dgx-a100_vgg16_ddp_full.yaml", "dgx-a100_gpt2_fsdp_bf16.yaml"
    assert sorted(path.name for path in Path("mine").iterdir()) == [sharded, ddp]
    scenario = load_scenario(Path("mine") / ddp)
    assert scenario.workload.compute.kind == "measured"
    assert [point.role for point in scenario.measured.points] == ["calibration", "predicted"]
    assert [point.cluster.world_size for point in scenario.measured_scenarios()[0]] == [1, 8]
    scenario = load_scenario(Path("mine") / sharded)
    assert scenario.workload.compute.kind == "roofline"
    assert scenario.workload.precision.kind == "mixed"
    assert run_command_line(["validate", "mine", "--quiet", "--no-plots"]) == 0


def test_a_file_that_is_there_is_written_over_by_force_only(run):
    assert run(HEADS, EIGHT)[0] == 0
    file = Path("runs/measured/dgx-a100_vgg16_ddp_full.yaml")
    file.write_text("mine")
    assert run(HEADS, EIGHT) == (
        2,
        "",
        [f"{file}: is there already; add --force, or --out another folder."],
    )
    assert file.read_text() == "mine"
    assert run(HEADS, EIGHT, arguments=["--force", "--quiet"]) == (0, "", [])
    assert file.read_text() != "mine"


def test_rows_that_are_no_points_are_left_out_by_line_and_columns_without_meaning_are_named(run):
    rows = [
        EIGHT,
        "vgg17,dgx-a100,8,64,full,ddp,3000",
        "vgg16,dgx-a100,12,64,full,ddp,3000",
        "vgg16,dgx-a100,8,64,full,ddp,N/A",
        "vgg16,dgx-a100,eight,64,full,ddp,3000",
        "vgg16,dgx-a200,8,64,full,ddp,3000",
        "vgg16,dgx-a100,8,64,full,single,3000",
        "vgg16,dgx-a100,8,64,full,ddq,3000",
        "vgg16,dgx-a100,8,64,full,ddp,-3",
        "vgg16,dgx-a100,8,64,full,ddp,3 GB",
    ]
    status, out, err = run(f"{HEADS},date", *rows, arguments=["--json"])
    assert status == 0
    found = json.loads(out)
    assert [one["lines"] for one in found["scenarios"]] == [[2]]
    assert [one["line"] for one in found["left_out"]] == list(range(3, 12))
    assert err[-1] == "runs.csv: columns without a meaning: date"
    starts = [
        "workload.model: unknown model 'vgg17'",
        "cluster: world_size 12 is neither",
        "samples/s: is empty; give what was measured.",
        "gpus: 'eight' is not a whole number of 1 or more; write such as 8.",
        "machine: unknown machine 'dgx-a200'",
        "strategy: single is for one GPU, not 8; write such as ddp.",
        "strategy: unknown strategy 'ddq'",
        "samples/s: '-3' is not a number above 0; write such as 1234.5.",
        "samples/s: 'GB' is no unit of a throughput or step time; write such as",
    ]
    for line, (said, start) in enumerate(zip(err, starts, strict=False), 3):
        assert said.startswith(f"runs.csv: line {line} is left out: {start}"), said


def test_without_any_point_each_row_is_an_error_and_nothing_is_written(run):
    status, out, err = run(HEADS, *["vgg17,dgx-a100,8,64,full,ddp,3000"] * 25)
    assert (status, out, len(err)) == (2, "", 21)
    assert err[0].startswith("runs.csv: line 2: workload.model: unknown model 'vgg17'")
    assert err[-1] == "runs.csv: and 5 more rows, none of which is a point."
    assert not Path("runs").exists()


def test_a_table_without_a_needed_column_names_those_that_are_needed_and_found(read):
    assert problem(read, "model,gpus,when", "vgg16,8,now") == [
        "runs.csv: lacks a column for machine or device; microbatch or global_batch; a throughput "
        "or a step time with its unit, such as samples/s, tokens/s/GPU or step_time [ms]. Columns "
        "found: 'model', 'gpus', 'when'."
    ]
    assert problem(read, f"{HEADS},world_size", f"{EIGHT},8") == [
        "runs.csv: columns 'gpus' and 'world_size' are both gpus; keep one of them."
    ]
    assert problem(read, HEADS) == [
        "runs.csv: has no rows below its columns; add one for each run."
    ]
    assert problem(read, HEADS, '"vgg16') == [
        "runs.csv:2: is not valid CSV: unexpected end of data."
    ]


def test_heads_are_known_in_the_usual_spellings():
    heads = {
        "# GPUs": "gpus",
        "World Size": "gpus",
        "Batch size per GPU": "microbatch",
        "per_device_train_batch_size": "microbatch",
        "Global Batch Size": "global_batch",
        "workload.microbatch": "microbatch",
        "workload.optimizer.lr": "workload.optimizer.lr",
        "date": "",
    }
    assert {head: column_name(head) for head in heads} == heads


def test_units_of_figures_are_read_in_heads_and_cells():
    heads = {
        "images/sec": ("samples", 1.0, False),
        "Throughput (tokens per second per GPU)": ("tokens", 1.0, True),
        "ktokens/s": ("tokens", 1e3, False),
        "Throughput (k tokens/sec)": ("tokens", 1e3, False),
        "it/s": ("steps", 1.0, False),
        "step_time_ms": ("time", 1e-3, False),
        "time per iteration [s]": ("time", 1.0, False),
        "throughput per GPU": ("samples", 0.0, True),
        "step time": ("time", 0.0, False),
    }
    assert {head: tuple(figure_unit(head)) for head in heads} == heads
    assert figure_unit("batch size per GPU") is figure_unit("time [ms]") is None
    assert tuple(figure_unit("ms", in_cell=True)) == ("time", 1e-3, False)


def test_all_figures_of_a_run_mean_the_same_step(read):
    """64 samples on each of 8 GPUs in 0.2 s, with 1,024 tokens a sample."""
    heads = "model,machine,gpus,batch,"
    figures = {
        "throughput": "2560 samples/s",
        "samples/s/GPU": "320",
        "tokens/s": "2,621,440",
        "steps/s": "5",
        "step time": "200 ms",
    }
    for head, cell in figures.items():
        _, (raw,) = read(heads + head, f'gpt2,dgx-a100,8,64,"{cell}"')
        (point,) = raw["measured"]["points"]
        assert point.get("throughput", "2560 samples/s") == "2560 samples/s", head
        assert point.get("step_time", "200 ms") == "200 ms", head
    assert "has no unit" in problem(read, heads + "throughput", "gpt2,dgx-a100,8,64,9")[0]
    assert "has no tokens" in problem(read, heads + "tokens/s", "vgg16,dgx-a100,8,64,9")[0]


def test_batches_follow_from_global_ones(read):
    heads = "model,machine,gpus,global_batch,microbatch,grad_accum,step_time [ms]"
    _, (raw,) = read(heads, "vgg16,dgx-a100,8,1024,64,,90", "vgg16,dgx-a100,16,1024,,1,50")
    assert [point["set"] for point in raw["measured"]["points"]] == [
        {"cluster.world_size": 8, "workload.grad_accum": 2},
        {"cluster.world_size": 16, "workload.grad_accum": 1},
    ]
    assert problem(read, heads, "vgg16,dgx-a100,8,1000,64,,90") == [
        "runs.csv: line 2: global_batch: 1000 is not a multiple of 8 GPUs x microbatch 64; correct "
        "one of them."
    ]


def test_equal_runs_become_their_mean_with_the_scatter_as_noise(read):
    rows = ("vgg16,dgx-a100,8,64,full,ddp,90 ms", "vgg16,dgx-a100,8,64,full,ddp,110 ms")
    _, (raw,) = read(HEADS, *rows)
    assert raw["measured"]["noise"] == "10 %"
    assert [point["step_time"] for point in raw["measured"]["points"]] == ["100 ms"]


def test_a_row_of_one_gpu_counts_for_every_strategy_and_size_of_nodes(read):
    heads = "model,machine,gpus,nodes,batch,strategy,step_time [ms]"
    rows = ["8,1,64,ddp,90", "8,8,64,ddp,99", "8,1,64,horovod,95", "1,1,64,single,80"]
    with_ddp = ("1,1,64,ddp,80", *rows[:3])
    found, _ = read(heads, *(f"vgg16,dgx-a100,{row}" for row in with_ddp))
    assert [one.lines for one in found.scenarios] == [(2, 3), (2, 4), (5,)]
    _, alone = read(heads, *(f"vgg16,dgx-a100,{row}" for row in ("1,1,64,ddp,80", rows[3])))
    assert [raw["strategy"] for raw in alone] == ["ddp", "single"]
    found, scenarios = read(heads, *(f"vgg16,dgx-a100,{row}" for row in rows))
    assert [one.lines for one in found.scenarios] == [(2, 5), (3, 5), (4, 5)]
    assert [raw["cluster"].get("devices_per_node") for raw in scenarios] == [None, 1, None]
    for raw in scenarios:
        assert raw["workload"]["compute"]["points"] == [{"microbatch": 64, "step_time": "80 ms"}]
        sizes = [point["set"]["cluster.world_size"] for point in raw["measured"]["points"]]
        assert sizes == [1, 8]


def test_compute_can_be_chosen(read):
    _, (raw,) = read(HEADS, ONE, EIGHT, compute="roofline")
    assert "compute" not in raw["workload"]
    assert {point["role"] for point in raw["measured"]["points"]} == {"predicted"}
    assert problem(read, HEADS, EIGHT, compute="measured") == [
        "runs.csv: line 2: --compute measured: needs a row of one GPU with the same model, "
        "machine, precision and keys, without grad_accum; add it, or leave the option out."
    ]
    assert problem(read, HEADS, EIGHT, compute="guess") == [
        "--compute: unknown compute 'guess'; known: measured, roofline."
    ]


def test_other_columns_set_the_scenario(read):
    heads = (
        "model;gpu;nodes;gpus_per_node;mbs;dtype;sharding;seq_len;gradient_checkpointing;"
        "optimizer;noise;role;reference;comment;workload.clip_grad_norm;step_time [ms]"
    )
    row = "gpt2;NVIDIA A100-SXM4-80GB;2;8;4;fp16;zero-2;512;yes;"
    row += "sgd;3 %;calibration;a log;slow;1.5;900"
    found, (raw,) = read(heads, row)
    assert raw["cluster"] == {"machine": "dgx-a100", "world_size": 16}
    assert found.assumed[0].startswith("links as in dgx-a100")
    workload, measured = raw["workload"], raw["measured"]
    assert workload["model"] == {"kind": "gpt2", "sequence_length": 512}
    assert workload["precision"] == {"kind": "mixed", "dtype": "float16"}
    assert (workload["recompute"], workload["optimizer"]) == ("blocks", "sgd")
    assert workload["clip_grad_norm"] == 1.5
    assert raw["strategy"] == {"kind": "zero2", "communication": "deepspeed"}
    assert (measured["source"], measured["noise"]) == ("a log", "3 %")
    assert measured["points"] == [
        {
            "set": {"cluster.world_size": 16},
            "step_time": "900 ms",
            "role": "calibration",
            "note": "slow",
        }
    ]


def test_cells_that_mean_nothing_are_refused(read):
    heads = "model,machine,device,gpus,nodes,batch,role,noise,strategy,step_time [ms]"
    for row, said in {
        ",dgx-a100,,8,,64,,,,9": "model: is empty",
        "vgg16,,,8,,64,,,,9": "machine: is empty",
        "vgg16,,a200,8,,64,,,,9": "device: unknown device 'a200'",
        "vgg16,dgx-a100,,,,64,,,,9": "gpus: is empty",
        "vgg16,dgx-a100,,9,2,64,,,,9": "nodes: 9 GPUs are not 2 equal nodes",
        "vgg16,dgx-a100,,8,,,,,,9": "microbatch: is empty",
        "vgg16,dgx-a100,,8,,64,other,,,9": "role: unknown role 'other'",
        "vgg16,dgx-a100,,8,,64,,3,,9": "noise: '3' is not a share",
        "vgg16,dgx-a100,,8,,64,,,{a,9": "strategy",
        "vgg16,dgx-a100,,8,,64,,,ddp,9,9": "has 11 cells for 10 columns",
    }.items():
        assert problem(read, heads, row)[0].startswith(f"runs.csv: line 2: {said}"), row


def test_machines_of_a_file_are_found_from_the_folder_of_the_scenarios(read):
    Path("mine.yaml").write_text(
        "source: a bench\n"
        "cluster: {devices_per_node: 4, device: a100-sxm4-40gb, topology: switch, link: nvlink3}\n"
    )
    _, (raw,) = read(HEADS, "vgg16,mine.yaml,4,64,full,ddp,1000")
    assert raw["cluster"] == {"machine": "../mine.yaml", "world_size": 4}


def test_a_model_has_the_optimizer_that_init_takes_for_it(read):
    found = {}
    for model in ("resnet18", "vit-b", "gpt2"):
        _, (raw,) = read(HEADS, f"{model},dgx-a100,8,1,full,ddp,1000")
        place, method = place_of("dgx-a100", None), Method("full", "ddp", "full", "none")
        _, own = with_data(raw_of(FitsRequest(model, 8), place, 8, method), 1)
        found[model] = raw["workload"]["optimizer"]
        assert found[model] == own["workload"]["optimizer"]
    assert found == {"resnet18": SGD, "vit-b": "adamw", "gpt2": "adamw"}
    assert SGD == {"kind": "sgd", "lr": 0.1, "momentum": 0.9}


def test_a_model_of_a_config_json_is_read_relative_to_the_table(read):
    config = {"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16}
    Path("config.json").write_text(json.dumps(config))
    heads = HEADS.replace(",", ";").replace("samples", "tokens")
    row = "{kind: transformers, path: config.json};dgx-a100;8;2;full;ddp;1600"
    found, (raw,) = read(heads, row)
    assert raw["measured"]["points"][0]["throughput"] == "100 samples/s"  # of 16 tokens
    Path("out").mkdir()
    Path("out/a.yaml").write_text(found.scenarios[0].text)
    assert load_scenario(Path("out/a.yaml")).workload.model.kind == "gpt2"
