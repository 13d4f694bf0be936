"""The probes on real torch, where it is installed: same parameters, records, logs and profiles."""

import gzip
import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from simdp.files import read_yaml
from simdp.probes import collectives, ddp, layers, zoo
from simdp.probes.arguments import ProbeError
from simdp.results.collective import read_nccl_tests
from simdp.scenario import checked

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def flags():
    """Leave the process with its flags of TF32, which a probe sets for itself."""
    found = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [one.allow_tf32 for one in found]
    yield
    for one, allowed in zip(found, before, strict=True):
        one.allow_tf32 = allowed


SMALL = {
    "mlp": {"widths": [8, 16, 4]},
    "transformer": {"vocab_size": 20, "d_model": 8, "nhead": 2, "num_layers": 2}
    | {"dim_feedforward": 16, "sequence_length": 5, "norm_first": True},
    "bert-base": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    | {"intermediate_size": 16, "sequence_length": 5},
    "resnet50": {"image_size": 32, "num_classes": 7},
    "gpt2": {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_head": 2, "n_layer": 2}
    | {"sequence_length": 5},
    "llama-1b": {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 16}
    | {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    | {"sequence_length": 5},
}


def small(name):
    return replace(zoo.MODELS[name], **SMALL[name])


def simulated(settings):
    raw = {
        "cluster": {"world_size": 1, "device": "t4-16gb"},
        "workload": {"model": asdict(settings), "microbatch": 2, "steps": 1}
        | {"compute": {"kind": "measured", "points": [{"microbatch": 2, "step_time": "60 s"}]}},
        "strategy": "single",
        "numerics": False,
    }
    return checked(raw, Path()).workload


@pytest.mark.parametrize("settings", [*zoo.MODELS.values(), *map(small, zoo.MODELS)], ids=str)
def test_parameters_and_buffers_are_those_of_the_simulated_model(settings):
    from simdp.probes import networks

    with torch.device("meta"):
        module = networks.build(settings)
    graph = simulated(settings).graph
    ours = [(p.name, p.shape) for p in graph.parameters]
    assert [(name, tuple(p.shape)) for name, p in module.named_parameters()] == ours
    assert [name for name, _ in module.named_buffers()] == [b.name for b in graph.buffers]


@pytest.mark.parametrize("name", zoo.MODELS)
def test_gradients_become_ready_in_the_simulated_order(name):
    from simdp.probes import networks

    settings = small(name)
    module = networks.build(settings)
    order = []
    for path, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, path=path: order.append(path))
    x, y = networks.batch(settings, 2, "cpu")
    networks.loss_of(module(x), y).backward()
    assert order == list(simulated(settings).graph.ready_order)


@pytest.mark.parametrize("name", zoo.MODELS)
@pytest.mark.parametrize("precision", ["full", "bf16"])
def test_a_step_has_three_parts_that_make_it_up(name, precision):
    from simdp.probes.device import Stepper

    stepper = Stepper(small(name), 2, precision, "adamw", torch.device("cpu"))
    before = [p.detach().clone() for p in stepper.module.parameters()]
    times = stepper.run(stepper.module, 1, 2)
    assert [len(part) for part in times] == [2, 2, 2, 2]
    for step, *parts in zip(*times, strict=True):
        assert step == pytest.approx(sum(parts))
        assert min(parts) > 0
    after = stepper.module.parameters()
    assert any((a != b).any() for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("name", zoo.MODELS)
def test_layer_times_cover_every_parameter_and_the_whole_step(name):
    from simdp.probes.device import Stepper
    from simdp.probes.layer_times import measure

    stepper = Stepper(small(name), 2, "full", "sgd", torch.device("cpu"))
    found = measure(stepper, 1, 3)
    numel = sum(p.numel() for p in stepper.module.parameters())
    assert sum(found.gradient_bytes) == 4 * numel
    assert len(set(found.names)) == len(found.names)
    assert min(found.forward) > 0
    assert min(found.weight_grad) > 0
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in stepper.module.modules()]
    assert sum(hooks) == 0


def test_layers_writes_profiles_and_steps(tmp_path, capsys):
    given = ["--models", "mlp", "--set", "mlp.widths=[8, 16, 4]", "--microbatch", "2,4"]
    layers.main([*given, "--steps", "2", "--warm-up", "1", "--out", str(tmp_path)])
    record = read_yaml(tmp_path / "steps.yaml")
    found = record["models"]["mlp"]["precisions"]["full"]
    assert [point["microbatch"] for point in found["compute"]["points"]] == [2, 4]
    for step in found["steps"]:
        assert (tmp_path / step["profile"]).read_text().count("\n") == 4
    assert str(tmp_path / "steps.yaml") in capsys.readouterr().out


def test_traces_are_kept_of_steps_as_they_are_and_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(
        torch, "compile", lambda model, dynamic: torch.nn.Sequential(model)
    )  # is slow
    given = ["--models", "mlp", "--set", "mlp.widths=[8, 16, 4]", "--microbatch", "2"]
    traces = ["--modes", "eager,compiled", "--traces", str(tmp_path / "traces")]
    layers.main([*given, *traces, "--steps", "2", "--warm-up", "1", "--out", str(tmp_path)])
    record = read_yaml(tmp_path / "steps.yaml")["models"]["mlp"]
    assert "profile" in record["precisions"]["full"]["steps"][0]
    assert "profile" not in record["compiled"]["full"]["steps"][0]
    for mode in layers.MODES:
        events = events_of(tmp_path / "traces" / f"mlp_full_2_{mode}" / "rank0.pt.trace.json.gz")
        steps = {e["name"] for e in events if e["name"].startswith("ProfilerStep#")}
        assert len(steps) == 4
        assert "aten::addmm" in {event["name"] for event in events}


def events_of(path):
    with gzip.open(path) as stream:
        return [e for e in json.load(stream)["traceEvents"] if e["ph"] == "X"]


def test_every_rank_of_ddp_has_a_trace(tmp_path):
    given = ["--models", "mlp", "--set", "mlp.widths=[8, 16, 4]", "--steps", "2", "--rounds", "1"]
    more = ["--warm-up", "1", "--bucket-caps", "1", "--tries", "1", "--world-sizes", "2"]
    out = ["--out", str(tmp_path / "record.yaml"), "--traces", str(tmp_path / "traces")]
    ddp.main([*given, *more, *out])
    for rank in (0, 1):
        path = tmp_path / "traces" / "mlp_2_ranks" / "1MiB" / f"rank{rank}.pt.trace.json.gz"
        assert "gloo:all_reduce" in {event["name"] for event in events_of(path)}
    assert "traces" not in read_yaml(tmp_path / "record.yaml")["settings"]


@pytest.mark.parametrize(
    ("name", "family"), [("gpt2", "GPT2"), ("llama-1b", "Llama")], ids=["gpt2", "llama"]
)
def test_language_models_compute_what_transformers_does(name, family):
    transformers = pytest.importorskip("transformers")
    from simdp.probes import networks

    settings = small(name)
    keys = {key: value for key, value in asdict(settings).items() if key not in zoo.FIXED}
    config = getattr(transformers, f"{family}Config")(**keys, tie_word_embeddings=True)
    kind = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}[family]
    theirs, ours = getattr(transformers, kind)(config).eval(), networks.build(settings).eval()
    weights = {k: v for k, v in theirs.state_dict().items() if k != "lm_head.weight"}
    ours.load_state_dict(weights)
    x, _ = networks.batch(settings, 2, "cpu")
    assert torch.allclose(ours(x), theirs(x).logits, atol=1e-6)


def test_ddp_measures_one_and_two_ranks(tmp_path):
    given = ["--models", "mlp", "--set", "mlp.widths=[8, 16, 4]", "--steps", "2", "--rounds", "2"]
    out = ["--out", str(tmp_path / "record.yaml"), "--scenarios", str(tmp_path)]
    ddp.main([*given, "--warm-up", "1", "--bucket-caps", "default", "--tries", "1", *out])
    record = read_yaml(tmp_path / "record.yaml")
    runs = record["models"]["mlp"]["runs"]
    assert [(run["world_size"], run["variant"]) for run in runs] == [
        (n, variant) for n in (1, 2) for variant in ("baseline", "ddp", "no_sync", "skipped")
    ]
    assert runs[5]["logging"]["world_size"] == 2
    assert runs[5]["logging"]["rebuilt_bucket_sizes"] == str(4 * (8 * 16 + 16 + 16 * 4 + 4))
    written = (tmp_path / "probe_mlp.yaml").read_text()
    assert "?" in written.splitlines()[0]
    assert read_yaml(tmp_path / "probe_mlp.yaml") == record["scenarios"]["mlp"]


def test_collectives_writes_a_log_that_reads_back(tmp_path):
    given = ["--collectives", "all_reduce,all_gather", "--sizes", "1 KiB,64 KiB", "--calls", "2"]
    collectives.main([*given, "--rounds", "1", "--tries", "1", "--out", str(tmp_path)])
    for collective in ("all_reduce", "all_gather"):
        log = read_nccl_tests(tmp_path / "gloo_cpu_2ranks.log", collective)
        assert log.world_size == 2
        assert [row.nbytes for row in log.rows] == [1024, 65536]


def test_a_rank_that_fails_is_named_in_one_line():
    from simdp.probes.group import RankPlacement, launch

    with pytest.raises(ProbeError, match=r"^rank [01] failed: TypeError: .*callable.*$"):
        launch("no job", None, 2, RankPlacement("gloo", "cpu", 1, 1))


def leave(here, settings):
    os._exit(3)


def test_a_rank_that_is_ended_is_named_in_one_line():
    from simdp.probes.group import RankPlacement, launch

    with pytest.raises(ProbeError, match=r"^rank 0 was ended: .*exit code 3$"):
        launch(leave, None, 1, RankPlacement("gloo", "cpu", 1, 1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said():
    from simdp.probes.group import RankPlacement, launch

    with pytest.raises(ProbeError, match="torch finds no GPU here; write --device cpu"):
        launch("no job", None, 1, RankPlacement("gloo", "cuda", 1, 1))


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    from simdp.probes.group import RankPlacement, check_devices

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_devices(4, RankPlacement("gloo", "cuda", 4, 1))
    with pytest.raises(ProbeError) as caught:
        check_devices(4, RankPlacement("gloo", "cuda", 2, 1))
    assert str(caught.value) == (
        "--world-sizes: 4 ranks on 1 GPUs, each of which takes 2; write --ranks-per-device, with "
        "--backend gloo."
    )


def test_torchrun_with_too_few_ranks_is_refused(monkeypatch):
    from simdp.probes.group import RankPlacement, launch

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ProbeError, match="needs 4 ranks, but torchrun started 2; write"):
        launch("no job", None, 4, RankPlacement("gloo", "cpu", 1, 1))
