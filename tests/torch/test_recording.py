"""Workloads of torch modules against simdp's own presets of the same networks."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from gpt_net import GPT  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_nets import ResNet  # noqa: E402

import simdp  # noqa: E402
from simdp.errors import SimdpError  # noqa: E402
from simdp.torch import workload  # noqa: E402

pytestmark = pytest.mark.slow

CLUSTER = {"machine": "dgx-a100", "world_size": 8}


def tokens(*shape):
    return torch.empty(shape, dtype=torch.long, device="meta")


def token_loss(logits, target):
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten())


def resnet():
    with torch.device("meta"):
        module = ResNet()
    images = torch.empty(32, 3, 224, 224, device="meta")
    found = workload(module, images, target=tokens(32), loss=functional.cross_entropy)
    return found, {"model": "resnet50", "microbatch": 32}


def gpt2():
    with torch.device("meta"):
        module = GPT(vocab_size=50257, block_size=256, n_layer=4, n_head=12, n_embd=768)
    found = workload(module, tokens(8, 256), target=tokens(8, 256), loss=token_loss)
    sizes = {"n_layer": 4, "n_positions": 256, "attn_pdrop": 0.0}
    return found, {
        "model": {"kind": "gpt2", **sizes},
        "attention": "flash",
        "microbatch": 8,
    }


def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(attn_implementation="eager", num_hidden_layers=4)
    with torch.device("meta"):
        module = transformers.BertForSequenceClassification(config)
    found = workload(
        module.train(),
        {"input_ids": tokens(16, 128)},
        target=tokens(16),
        loss=lambda out, target: functional.cross_entropy(out.logits, target),
    )
    return found, {"model": {"kind": "bert", "num_hidden_layers": 4}, "microbatch": 16}


def simulated(base, workload):
    path = base / "preset.yaml"
    sections = {"cluster": CLUSTER, "workload": workload, "strategy": "ddp", "numerics": False}
    path.write_text(simdp.files.format_yaml(sections))
    scenario = simdp.load_scenario(path)
    return scenario, simdp.simulate(scenario)


@pytest.mark.parametrize("make", [resnet, gpt2, bert])
def test_a_module_is_the_preset_of_its_network(make, tmp_path):
    found, preset = make()
    scenario, expected = simulated(tmp_path, preset)
    result = simdp.simulate(simdp.load_scenario(found.save(tmp_path / "own.yaml", CLUSTER)))
    theirs, own = scenario.workload.graph, found.graph
    assert found.num_parameters == theirs.num_parameters
    assert [sorted(p.shape) for p in own.parameters] == [sorted(p.shape) for p in theirs.parameters]
    assert own.ready_order == found.ready
    assert result.metrics["bucket_bytes"] == expected.metrics["bucket_bytes"]
    sent, wanted = (one.metrics["bytes_sent_per_rank"] for one in (result, expected))
    assert sent == pytest.approx(wanted, 1e-4)  # transformers' BERT has its places as a buffer
    assert result.metrics["model_flops"] == pytest.approx(expected.metrics["model_flops"], 1e-12)
    assert result.metrics["step_time_s"] == pytest.approx(expected.metrics["step_time_s"], 0.02)
    memory, wanted = (one.metrics["memory_bytes"] for one in (result, expected))
    assert memory["parameters"] == wanted["parameters"]
    assert sum(memory.values()) == pytest.approx(sum(wanted.values()), 0.03)


def test_nothing_is_computed_and_the_module_stays_as_it_is():
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    workload(module, torch.randn(6, 4))
    after = module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_what_grows_with_the_samples_is_told_from_what_does_not():
    found = workload(nn.Linear(10, 20), torch.empty(6, 10))
    (call,) = found.recording.operators
    assert call.forward[0] == (2 * 10 * 20, 30, 0, 10 * 20 + 20, 0)
    assert (call.name, call.policy, call.learned) == ("addmm", "product", (1, 0))
    assert call.keeps.inputs == (0,)


FORKED = """
import os, torch
from torch import nn
from simdp.torch import workload
workload(nn.Linear(10, 20), torch.empty(6, 10))
if os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
torch.ones(1, requires_grad=True).backward()
"""


def test_a_process_that_recorded_may_be_forked():
    assert subprocess.run([sys.executable, "-c", FORKED], check=False).returncode == 0


def test_a_batch_may_be_one_sample():
    found = workload(nn.Linear(10, 20), torch.empty(6, 10), scales=False)
    assert found.microbatch == 1
    assert found.recording.operators[0].forward[0] == (6 * 400, 6 * 30 + 220, 0, 0, 0)


def test_frozen_and_shared_parameters_are_told():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.mid, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9)
            self.head.weight = self.embed.weight
            self.mid.weight.requires_grad_(False)

        def forward(self, x):
            return self.head(self.mid(self.embed(x)))

    found = workload(Tied(), tokens(3, 5))
    assert found.num_parameters == 9 * 4 + 4 * 4 + 4 + 9
    assert found.graph.ready_order == found.ready == ("head.bias", "mid.bias", "embed.weight")
    assert found.graph.frozen == {"mid.weight"}


def test_the_optimizer_is_named_in_the_scenario():
    module = nn.Linear(3, 3)
    groups = [{"params": [module.weight]}, {"params": [module.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4)
    found = workload(module, torch.empty(2, 3), optimizer=optimizer)
    own = {"params": ["bias"], "weight_decay": 0.0}
    assert found.keys["optimizer"] == {"kind": "adamw", "lr": 3e-4, "param_groups": [own]}


class Unknown(torch.optim.SGD):
    pass


class Depends(nn.Module):
    def forward(self, x):
        return x * float(x.sum().item())


class Counts(nn.Module):
    def forward(self, x):
        return x * 2 if len(x) > 4 else x * 2 * 3


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: workload(nn.Linear(1, 1), ()), "the sample holds no tensor with an axis"),
        (lambda: workload(nn.Identity(), torch.empty(2, 3)), "Identity"),
        (lambda: workload(Depends(), torch.empty(2, 3)), "Depends cannot run without numbers"),
        (lambda: workload(Counts(), torch.empty(4, 3)), "the module calls other operators when"),
        (
            lambda: workload(
                nn.Linear(1, 1), torch.empty(2, 1), optimizer=Unknown(nn.Linear(1, 1).parameters())
            ),
            "the optimizer Unknown is not known; known: ",
        ),
    ],
    ids=["empty", "nothing", "numbers", "batch", "optimizer"],
)
def test_what_cannot_be_recorded_is_refused(call, told):
    with pytest.raises(SimdpError, match=told) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_an_optimizer_of_shares_makes_the_strategy_zero1():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    from simdp.torch.recording.sharded import with_shares

    optimizer = ZeroRedundancyOptimizer.__new__(ZeroRedundancyOptimizer)
    found = {"kind": "ddp", "bucket_cap": "5 B"}
    for optimizer.parameters_as_bucket_view, more in (
        (False, {}),
        (True, {"parameters_as_bucket_view": True}),
    ):
        assert with_shares(found, optimizer) == {**found, "kind": "zero1", **more}
    assert with_shares(found, torch.optim.SGD([torch.ones(1)])) == found
    with pytest.raises(SimdpError, match=r"^--record: ZeroRedundancyOptimizer beside Distrib"):
        with_shares({**found, "comm_hook": "bf16"}, optimizer)
