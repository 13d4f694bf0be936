"""Arguments of the probes: what is read, and what is refused in one line."""

import pytest
from for_each import for_each

from simdp.errors import ScenarioError
from simdp.probes import arguments, collectives, contention, ddp, layers, zoo
from simdp.probes.arguments import ProbeError

HELP = "; see --help."


def refusal(main, *given):
    with pytest.raises((ProbeError, ScenarioError)) as caught:
        main(list(given))
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.setattr(arguments, "find_spec", lambda name: None)


@for_each("main", [ddp.main, collectives.main, layers.main, contention.main])
def test_without_torch_a_probe_says_what_to_install(main, no_torch):
    assert refusal(main) == (
        "probes: run real torch, which is not installed; pip install 'simdp[torch]'."
    )


@for_each(
    ("main", "option"),
    [
        *((main, "--out") for main in (ddp.main, collectives.main, layers.main, contention.main)),
        *((ddp.main, "--scenarios"), (layers.main, "--memory"), (layers.main, "--traces")),
    ],
)
def test_an_output_is_refused_before_anything_is_measured(main, option, tmp_path, no_torch):
    (tmp_path / "file").write_text("")
    assert "is no folder; name one to write to." in refusal(main, option, str(tmp_path / "file/x"))


def test_a_probe_that_is_refused_exits_with_2_and_one_line(no_torch, capsys):
    assert arguments.run(ddp.main, []) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert arguments.run(lambda given: None, []) == 0


@for_each(
    ("given", "line"),
    [
        (["--world-sizes", "1,0"], "argument --world-sizes: '0' is not a whole number >= 1"),
        (
            ["--world-sizes", "2,2"],
            "argument --world-sizes: '2,2' has something twice; give each once",
        ),
        (
            ["--backend", "glo"],
            "argument --backend: unknown backend 'glo'. Did you mean 'gloo'? Known: gloo, nccl",
        ),
        (
            ["--device", "tpu"],
            "argument --device: unknown device 'tpu'. Did you mean 'cpu'? Known: cpu, cuda",
        ),
        (
            ["--precision", "int8"],
            "argument --precision: unknown precision 'int8'; known: full, tf32, bf16, fp16",
        ),
        (
            ["--max-foreign", "0.05"],
            "argument --max-foreign: '0.05' is not a share of 0 % or more; "
            'write for example "2 %"',
        ),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(given, line):
    assert refusal(ddp.main, *given) == f"simdp.probes.ddp: {line}{HELP}"


@for_each(
    ("given", "line"),
    [
        (
            ["--backend", "nccl"],
            "--backend: nccl has no CPU tensors; write --device cuda, or gloo.",
        ),
        (
            ["--backend", "nccl", "--device", "cuda", "--ranks-per-device", "2"],
            "--ranks-per-device: nccl refuses 2 ranks on one GPU; write --backend gloo.",
        ),
        (
            ["--ranks-per-device", "2"],
            "--ranks-per-device: ranks on a CPU share its cores anyway; leave this out, "
            "or write --device cuda.",
        ),
        (["--precision", "tf32"], "--precision: a CPU has no tf32; write full, bf16 or fp16."),
        (
            ["--precision", "full,bf16"],
            "--precision: a record is of one precision; run the probe once for each.",
        ),
        (
            ["--models", "mlp,transformer", "--microbatch", "1,2,3"],
            "--microbatch: 3 sizes for 2 models; give one, or one for each.",
        ),
        (
            ["--models", "resnet"],
            "--models: unknown model 'resnet'. Did you mean 'resnet50'? Known: mlp, "
            "transformer, bert-base, resnet50, gpt2, llama-1b.",
        ),
        (
            ["--set", "resnet50.image_size=64"],
            "--set: 'resnet50.image_size=64' names none of the models that are measured; "
            "write for example mlp.widths=VALUE.",
        ),
        (
            ["--set", "mlp.width=[3, 4]"],
            "--set: unknown key of mlp 'width'. Did you mean 'widths'? Known: widths, "
            "activation, bias.",
        ),
        (
            ["--set", "transformer.d_model=many"],
            "--set: 'transformer.d_model=many': the value must be one such as 256.",
        ),
        (
            ["--set", "mlp.widths=[3"],
            "--set: 'mlp.widths=[3': --set:1: is not valid YAML: expected ',' or ']', but got "
            "'<stream end>'.",
        ),
        (["--set", "mlp.widths=[3, -4]"], None),
        (["--set", "mlp.widths=[3]"], None),
        (["--set", "mlp.bias=3"], None),
        (["--set", "transformer.nhead=true"], None),
        (["--set", "transformer.dropout=2"], None),
        (["--set", "transformer.activation=3"], None),
    ],
)
def test_what_does_not_go_together_is_refused(given, line, no_torch):
    found = refusal(ddp.main, *given)
    assert (
        found == line if line else found.startswith(f"--set: {given[1]!r}: the value must be one")
    )


def test_a_collective_needs_two_ranks():
    assert refusal(collectives.main, "--world-sizes", "1,2") == (
        "--world-sizes: 1 rank has no communication; write 2 or more."
    )


def test_only_a_gpu_has_an_allocator_with_a_history(no_torch):
    assert refusal(layers.main, "--memory", "snapshots") == (
        "--memory: a CPU's allocator keeps no history; write --device cuda."
    )


@for_each(
    ("given", "line"),
    [
        ("50", '50 has no unit; write for example "25 GB/s"'),
        ("wait,wait", "'wait,wait' has something twice; give each once"),
        ("5 s", None),
        ("fast", None),
    ],
)
def test_rates_are_bandwidths_or_wait(given, line):
    found = refusal(contention.main, "--rates", given)
    assert found.startswith(f"simdp.probes.contention: argument --rates: {line or ''}")
    assert found.endswith(HELP)
    assert contention.parser().parse_args(["--rates", "wait,50 GB/s"]).rates == [0.0, 50e9]


@for_each(
    ("given", "line"),
    [
        (
            ["--blocks", "0"],
            "simdp.probes.contention: argument --blocks: '0' is not a whole number >= 1; "
            "see --help.",
        ),
        (
            ["--models", "mlp", "--microbatch", "1,2"],
            "--microbatch: 2 sizes for 1 models; give one, or one for each.",
        ),
        (
            ["--models", "resnet"],
            "--models: unknown model 'resnet'. Did you mean 'resnet50'? Known: mlp, "
            "transformer, bert-base, resnet50, gpt2, llama-1b.",
        ),
    ],
)
def test_contention_refuses_what_ddp_does(given, line, no_torch):
    assert refusal(contention.main, *given) == line


@for_each(
    ("given", "line"),
    [
        ("64", '64 has no unit; write for example "25 MiB"'),
        ("2 B", "'2 B' is less than one float32, 4 B"),
        ("5 s", None),
    ],
)
def test_sizes_need_their_unit(given, line):
    found = refusal(collectives.main, "--sizes", given)
    lead = f"simdp.probes.collectives: argument --sizes: {line or ''}"
    assert found.startswith(lead)


def test_lists_sizes_and_caps_are_read():
    args = ddp.parser().parse_args(
        ["--world-sizes", "4, 1", "--bucket-caps", "default,25", "--microbatch", "8,8"]
    )
    assert args.world_sizes == [4, 1]
    assert args.bucket_caps == [None, 25]
    assert args.microbatch == [8, 8]
    sizes = collectives.parser().parse_args(["--sizes", "1 KiB,25 MiB"]).sizes
    assert sizes == [1024, 25 * 2**20]


def test_a_size_for_all_models_or_one_for_each():
    assert arguments.per_model([8], ["a", "b"]) == {"a": 8, "b": 8}
    assert arguments.per_model([8, 4], ["a", "b"]) == {"a": 8, "b": 4}


def test_settings_are_changed_for_one_model_alone():
    found = zoo.chosen(["mlp", "transformer"], ["mlp.widths=[3, 4]", "transformer.dropout=0"])
    assert found["mlp"].widths == [3, 4]
    assert found["transformer"].dropout == 0
    assert zoo.MODELS["mlp"].widths != [3, 4]


def test_every_precision_has_a_name_in_scenarios():
    found = {name: zoo.scenario_precision(name) for name in arguments.PRECISIONS}
    assert found == {
        "full": "full",
        "tf32": "full",
        "bf16": {"kind": "amp", "dtype": "bfloat16"},
        "fp16": {"kind": "amp", "dtype": "float16"},
    }
