"""Jobs without a trace: what is out of line is found, with what such a job should take."""

import json
from pathlib import Path

import pytest
from for_each import for_each

import simdp
from simdp.cli import run_command_line
from simdp.errors import ScenarioError
from simdp.reports import diagnosis_table
from simdp.reports.page import page_of
from simdp.scenario import checked
from simdp.studies.diagnose.reported import diagnose_reported, reported_job

GIVEN = {"step": "320ms", "comm": "40%", "gpus": 8, "device": "a100-sxm4-80gb"}
MODEL = {"kind": "gpt2", "n_layer": 2, "sequence_length": 256}


def found(**options):
    remedies = options.pop("remedies", False)
    return diagnose_reported(reported_job(GIVEN | options), remedies)


def words(diagnosis):
    return " ".join(" ".join(diagnosis_table.lines(diagnosis, "a job")).split())


def causes(diagnosis):
    assert sum(one.share for one in diagnosis.verdict) == pytest.approx(1, abs=3e-3)
    return {one.cause: one for one in diagnosis.verdict}


def simulated(strategy="ddp", microbatch=16, **cluster):
    """A job that simdp simulates: what its user would report of it."""
    raw = {
        "cluster": {"machine": "dgx-a100", "world_size": 8, **cluster},
        "workload": {
            "model": MODEL,
            "microbatch": microbatch,
            "steps": 3,
            "precision": {"kind": "amp", "dtype": "bfloat16"},
            "optimizer": "adamw",
        },
        "strategy": strategy,
        "numerics": False,
    }
    m = simdp.simulate(checked(raw, Path())).metrics
    comm = m["exposed_comm_s"] + m["wait_s"]
    return {"step": f"{m['step_time_s']} s", "comm": f"{comm} s", "model": MODEL}


def test_without_a_model_it_says_how_much_the_links_move_in_the_time():
    diagnosis = found()
    first, second = diagnosis.verdict
    assert (first.cause, first.seconds) == ("exposed_communication", pytest.approx(0.128))
    assert (second.cause, second.seconds) == ("compute_bound", pytest.approx(0.192))
    # Seven eighths of the buffer leave a GPU twice, at 224 GB/s: 0.128 s x 224 / 1.75 = 16.4 GB.
    assert "links all_reduce 16.4 GB among 8 GPUs (90 %: " in first.evidence
    assert "bus bandwidth 224 GB/s" in first.evidence
    assert "4.1 billion parameters in float32" in first.evidence
    assert diagnosis.expected is None
    assert "python -m simdp diagnose FOLDER" in diagnosis.remarks[-1]


def test_with_parameters_the_bandwidth_that_the_time_implies_is_compared():
    diagnosis = found(parameters="1e9")
    slow = causes(diagnosis)["slow_link"]
    # 2 x 7/8 x 4 GB leave each GPU in 128 ms.
    assert "7 GB per GPU in 128 ms is a bus bandwidth of 54.7 GB/s" in slow.evidence
    assert "dgx-a100 gives " in slow.evidence
    low, high = diagnosis.expected["interval_s"]
    assert low <= diagnosis.expected["step_time_s"] <= high < 0.25
    assert "should take: " in words(diagnosis)
    assert "(simulated; 90 %: " in words(diagnosis)


def test_a_job_that_is_as_it_should_be_has_nothing_out_of_line():
    diagnosis = found(**simulated(), microbatch=16)
    each = causes(diagnosis)
    assert set(each) <= {"compute_bound", "exposed_communication"}
    expected = diagnosis.expected
    assert expected["step_time_s"] == pytest.approx(diagnosis.step_time_s, rel=0.02)
    assert expected["interval_s"][0] < diagnosis.step_time_s < expected["interval_s"][1]
    assert "the MFU is" in each["compute_bound"].evidence


def test_compute_beyond_its_interval_is_unexplained_and_the_rest_is_not():
    job = simulated()
    slower = {"step": f"{2 * float(job['step'].split()[0])} s", "comm": job["comm"]}
    diagnosis = found(**(job | slower), microbatch=16)
    each = causes(diagnosis)
    assert diagnosis.verdict[0].cause == "unexplained"
    assert each["unexplained"].share == pytest.approx(0.5, abs=0.03)
    assert "a trace says which" in each["unexplained"].evidence


@pytest.mark.long
def test_communication_without_overlap_is_recognised_and_its_repair_is_simulated():
    """A billion gradients take 25 ms, all of which is exposed where nothing overlaps backward."""
    diagnosis = found(step="220ms", comm="30ms", parameters="1e9")
    each = causes(diagnosis)
    assert "slow_link" not in each
    exposed = each["exposed_communication"]
    assert "without any overlap with backward it would be " in exposed.evidence
    assert exposed.remedies == ()
    (first, *_) = causes(found(step="220ms", comm="30ms", parameters="1e9", remedies=True))[
        "exposed_communication"
    ].remedies
    assert first.step_time_s < 0.2


@pytest.mark.long
def test_an_exchange_after_each_micro_batch_is_recognised_and_its_repair_comes_first():
    """The figures of huggingface/accelerate#1153, as simulated: 789 ms, of it 306 ms exposed."""
    nodes = {"machine": "aws-g4dn", "device": None, "gpus": 2, "parameters": "110M"}
    diagnosis = found(step="789.4ms", comm="306.2ms", **nodes, **{"grad-accum": 4}, remedies=True)
    first, *_ = diagnosis.verdict
    assert first.cause == "exposed_communication"
    assert "with gradients exchanged after each micro-batch it would be" in first.evidence
    assert first.remedies[0].change.startswith("gradients exchanged once a step (no_sync")
    assert first.remedies[0].step_time_s == pytest.approx(789.4e-3 / 1.41, rel=0.01)


@pytest.mark.slow
def test_remedies_are_simulated_on_the_job_as_it_was_reported():
    diagnosis = found(parameters="350M", remedies=True)
    (slow,) = [one for one in diagnosis.verdict if one.cause == "slow_link"]
    steps = {one.change.partition(" (")[0]: one.step_time_s for one in slow.remedies}
    # Four micro-steps share one exchange, and it stretches the compute of one of them only.
    assert 0.15 < steps["workload.grad_accum: 4"] < 0.192 + 0.128 / 4
    assert steps["links as they should be, and no slow rank"] == pytest.approx(0.192, rel=0.05)
    assert steps["strategy.comm_hook: bf16"] < 0.29
    assert diagnosis.replayed_s == pytest.approx(0.32)
    said = words(diagnosis)
    assert "instead of 320 ms" in said
    assert "less, simulated)" in said


def test_a_microbatch_that_is_not_given_is_chosen_by_the_compute():
    diagnosis = found(**simulated(microbatch=24))
    assert diagnosis.expected["microbatch"] in (22, 23, 24, 25, 26)
    assert diagnosis.remarks[0] == "samples of 256 tokens; --sequence-length sets another length."
    assert "--microbatch is not given" in diagnosis.remarks[1]


def test_compute_that_contradicts_the_model_is_said_first_and_nothing_else_is_blamed():
    usual = {**simulated(microbatch=8), "microbatch": 8}
    diagnosis = found(**usual, **{"sequence-length": 1024})
    first, *others = diagnosis.verdict
    assert first.cause == "compute_bound"
    assert first.evidence.startswith("the figures contradict the model: ")
    assert "8 x 1 sample(s) of 1,024 tokens take; is it a shorter sequence" in first.evidence
    assert "slow_link" not in [one.cause for one in others]
    assert "contradict" not in words(found(**usual, **{"sequence-length": 256}))


def test_of_two_step_times_the_loss_of_scaling_is_held_against_what_is_due():
    options = {"comm": None, "gpus": None, "parameters": "350M"}
    good = found(**options, step="150ms@8,160ms@16")
    (line,) = [line for line in good.remarks if line.startswith("from 8 to 16 GPUs a step goes ")]
    assert "from 150 ms to 160 ms: 10 ms more, where " in line
    assert "slow_link" not in [one.cause for one in good.verdict]
    lost = found(**options, step="510ms@16,150ms@8")
    assert lost.verdict[0].cause == "slow_link"
    assert 340e-3 < lost.exposed_comm_s < 410e-3


@pytest.mark.long
def test_nodes_may_be_of_another_size():
    options = {"gpus": 16, "parameters": "1e9", "comm": "10%"}
    whole, parts = found(**options), found(**options, **{"node-size": 2})
    assert parts.machine_from == f"{whole.machine_from}; nodes of 2"
    assert parts.expected["exposed_comm_s"] > whole.expected["exposed_comm_s"]


def test_links_of_another_machine_with_the_same_device_are_named():
    """8 A100 that move as little as those of virtual machines whose traffic crosses the host."""
    slow = causes(found(parameters="1e9", step="6 s", comm="4.7 s"))["slow_link"]
    assert "lambda-a100-sxm4" in slow.evidence


def test_the_json_has_the_fields_of_a_diagnosis(capsys):
    arguments = "diagnose --step 320ms --comm 128ms --gpus 8 --device a100-sxm4-80gb --json"
    assert run_command_line(arguments.split()) == 0
    out = capsys.readouterr().out
    arguments = arguments.replace("a100-sxm4-80gb", "A100-SXM4-80GB")
    assert run_command_line(arguments.split()) == 0
    assert capsys.readouterr().out == out
    told = json.loads(out)
    assert told["source"] == "reported"
    assert told["exposed_comm_s"] == pytest.approx(0.128)
    for field in ("step_time_s", "compute_s", "hidden_comm_s", "idle_s", "num_ranks", "buckets"):
        assert field in told
    assert set(told["verdict"][0]) >= {"cause", "share", "evidence", "ranks", "remedies"}


def test_the_page_shows_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = "--step 320ms --comm 40% --gpus 8 --machine dgx-a100 --parameters 1e8 --no-remedies"
    assert run_command_line(f"diagnose {options} --html page.html".split()) == 0
    out = capsys.readouterr().out
    assert out.startswith("1e8 parameters on dgx-a100: 8 ranks, step 320 ms")
    assert "should take" in Path("page.html").read_text()
    titles = [section.title for section in page_of(found(parameters="1e8")).sections]
    assert "Verdict" in titles
    assert "Where a step's time goes" in titles


@for_each(
    ("options", "line"),
    [
        (
            {"comm": None, "gpus": None},
            "--comm, --gpus: missing for a diagnosis without a trace; add --comm 40% --gpus 8.",
        ),
        (
            {"gpus": None, "step": "320ms@8,510ms@16", "model": "bert-large"},
            "--comm 40%: follows from two step times; give one of the two.",
        ),
        (
            {"comm": None, "gpus": None, "step": "1s@8,2s@12,3s@16", "model": "bert-large"},
            "--step 1s@8,2s@12,3s@16: is not TIME@GPUS,TIME@GPUS, two sizes without --gpus; ",
        ),
        ({"device": None}, "--device, --machine: neither given; give one of them."),
        ({"device": "a100"}, "--device: unknown device 'a100'. Did you mean "),
        (
            {"machine": "dgx-h100"},
            "--device a100-sxm4-80gb, --machine dgx-h100: contradict each other, as that machine "
            "has h100-sxm5-80gb; leave one out.",
        ),
        ({"machine": "dgx-a1000"}, "--machine: "),
        (
            {"model": "bert-large", "parameters": "1e9"},
            "--model, --parameters: both given; a model has its parameters, leave one out.",
        ),
        ({"model": "bert-larg"}, "--model: unknown model 'bert-larg'. Did you mean "),
        ({"microbatch": 8}, "--microbatch: needs a model whose samples these are; add --model."),
        (
            {"strategy": "fsdp"},
            "--strategy: needs a model or its size; add --model or --parameters.",
        ),
        ({"grad-accum": 4}, "--grad-accum: needs a model or its size; add --model or --para"),
        (
            {"precision": "full"},
            "--precision: needs a model or its size; add --model or --parameters.",
        ),
        (
            {"strategy": "dpp", "parameters": "1e9"},
            "--strategy: unknown strategy 'dpp'. Did you mean ",
        ),
        ({"precision": "half", "parameters": "1e9"}, "--precision: unknown precision 'half'"),
        (
            {"step": "320ms@8"},
            "--step 320ms@8: is not TIME@GPUS,TIME@GPUS, two sizes without --gpus; write for "
            "example 320ms@8,510ms@16.",
        ),
        (
            {"step": "1s@8,2s@16", "gpus": None},
            "--step: of two sizes needs a model or its size; add --model.",
        ),
        (
            {"device": "a10g-24gb"},
            "--device a10g-24gb: no machine of the catalogue has it, and so its links are not "
            "known; add --node-size 8 to assume pcie4-x16 and 100gbe, or give --machine FILE.yaml "
            "with its cluster.",
        ),
        ({"step": "320"}, "--step: 320 has no unit; write for example "),
        ({"step": "0ms"}, "--step 0ms: must be a time above 0; write for example 320ms."),
        ({"comm": "forty"}, "--comm forty: is no share and no time; write for example 40% or"),
        ({"comm": "100%"}, "--comm 100%: must be below 100 % of the step; compute takes some."),
        ({"comm": "-4%"}, "--comm: '-4%' is not a share of 0 % or more; write for example "),
        ({"comm": "400ms"}, "--comm 400ms: must be less than the step of 320 ms."),
        ({"parameters": "many"}, "--parameters many: is no whole number of 1 to 1e13; write for"),
        ({"gpus": 1}, "--gpus 1: one GPU has no communication; give --comm 0%, or more GPUs."),
        ({"gpus": 12}, "--gpus 12: dgx-a100 has nodes of 8; give 1 to 8, or whole nodes."),
    ],
)
def test_options_that_lack_something_or_contradict_each_other_are_refused(options, line):
    with pytest.raises(ScenarioError) as refused:
        reported_job(GIVEN | options)
    (said,) = refused.value.problems
    assert said.startswith(line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            "traces --step 320ms",
            "traces, --step: contradict each other, as --step is for a job without a trace; leave "
            "one of them out.",
        ),
        (
            "",
            "FILE, --step: neither given; give a trace or a log, or, without one, for example "
            "--step 320ms --comm 40% --gpus 8 --device a100-sxm4-80gb.",
        ),
    ],
)
def test_a_trace_or_its_figures_but_not_both(arguments, line, capsys):
    assert run_command_line(["diagnose", *arguments.split()]) == 2
    assert capsys.readouterr().err == f"{line}\n"


def test_one_gpu_without_communication_is_compute():
    diagnosis = found(gpus=1, comm="0%", parameters="1e8")
    assert [one.cause for one in diagnosis.verdict] == ["compute_bound"]


SMALL_NODES = {
    "comm": "71%",
    "step": "870ms",
    "gpus": 4,
    "device": "a10g-24gb",
    "node-size": 2,
    "model": MODEL,
    "microbatch": 8,
}


def test_nodes_that_no_machine_has_are_assumed_and_said_to_be():
    diagnosis = found(**SMALL_NODES)
    assert diagnosis.machine is None
    assert diagnosis.machine_from.startswith("nodes of 2 x a10g-24gb, pcie4-x16 in a node and one ")
    assert "links are assumed, and what is said of communication" in diagnosis.remarks[0]
    text = " ".join(one.evidence for one in diagnosis.verdict)
    assert "exposed communication over the network between 2 nodes" in text
    assert "where nothing is hidden, and the assumed hardware gives " in text
    one_node = found(**{**SMALL_NODES, "node-size": 4})
    assert "network between" not in words(one_node)
    assert one_node.expected["exposed_comm_s"] < diagnosis.expected["exposed_comm_s"]


@pytest.mark.long
def test_a_smaller_job_has_nodes_of_the_same_size():
    options = {**SMALL_NODES, "gpus": None, "comm": None, "step": "400ms@4,870ms@8"}
    few, many = (
        next(text for text in found(**options | {"node-size": size}).remarks if "from 4 to" in text)
        for size in (2, 4)
    )
    assert few != many  # four GPUs of two nodes expose more
    with pytest.raises(ScenarioError, match=r"--gpus 3: a10g-24gb has nodes of 2; give 1 to 2, or"):
        reported_job({**options, "step": "400ms@3,870ms@8"})
