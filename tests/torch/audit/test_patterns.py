"""Audits of patterns of public scripts: what is right raises no alarm, and differences a cause."""

import re

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from simdp.errors import ScenarioError
from simdp.torch.audit import ScriptAudit, audit_function, audit_script


def begin():
    """Initialise; return rank and number of ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    return dist.get_rank(), dist.get_world_size()


def causes(train, **options):
    """Return the causes that an audit on 1 and 2 ranks finds."""
    return [one.cause for one in audit_function(train, (1, 2), **options).findings]


class Averaging(torch.optim.SGD):
    """Averages gradients over ranks itself."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        return super().step(closure)


def with_an_averaging_optimizer():
    rank, n = begin()
    model = nn.Linear(24, 2)
    optimizer = Averaging(model.parameters(), lr=0.1)
    data = torch.randn(64, 24)
    for start in range(0, 64, 16):
        optimizer.zero_grad()
        mine = data[start + rank * 16 // n : start + (rank + 1) * 16 // n]
        model(mine).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=100.0)  # by its keyword, as Fabric
        optimizer.step()


def test_an_optimizer_may_average_gradients_within_its_step():
    assert causes(with_an_averaging_optimizer) == []


def with_batches_drawn_ahead():
    """Draw each batch before the step that takes it; rank 0 alone evaluates, as nanoGPT does."""
    rank, n = begin()
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(7 + rank)
    data = torch.arange(400.0).reshape(100, 4) / 100

    def batch():
        drawn = torch.randint(len(data), (8,))
        return torch.stack([data[place] for place in drawn.tolist()])

    x = batch()
    for step in range(4):
        if rank == 0 and step % 2 == 0:
            with torch.no_grad():
                model.module(batch())
        for _ in range(4 // n):
            loss = model(x).square().mean() / (4 // n)
            x = batch()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_batches_drawn_ahead_by_the_seed_of_each_rank_are_exchanged():
    assert causes(with_batches_drawn_ahead, max_steps=3) == []


class Noisy(Dataset):
    """Adds noise to a sample, as augmentation does."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.full((4,), index / 32) + torch.randn(4)


def with_augmentation():
    _, n = begin()
    data = Noisy()
    loader = DataLoader(data, 8 // n, sampler=DistributedSampler(data, shuffle=False))
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def test_augmentation_on_each_rank_is_a_legitimate_cause():
    report = audit_function(with_augmentation, (1, 2))
    (found,) = report.findings
    assert (found.cause, found.legitimate) == ("dropout_streams", True)
    assert "the data set draws random numbers" in found.text


def with_packed_batches():
    """Take rows that depend on the rank's own documents, and a loss outside of the model."""
    rank, n = begin()
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        for micro in range(2 // n):
            rows = [[step, rank, n, micro + row] for row in range(4)]
            x = torch.tensor(rows, dtype=torch.float32)
            loss = nn.functional.mse_loss(model(x), x[:, 3:] ** 2)
            (loss / (2 // n)).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_batches_without_indices_are_exchanged_with_their_targets():
    report = audit_function(with_packed_batches, (1, 2))
    assert report.findings == ()
    assert any("take samples in another order" in note for note in report.notes)


def with_local_updates():
    """Update on each rank alone, and average the weights after each second step."""
    rank, n = begin()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(64, 4)
    for step in range(6):
        optimizer.zero_grad()
        start = step * 8 + rank * 8 // n
        model(data[start : start + 8 // n]).square().mean().backward()
        optimizer.step()
        if step % 2 == 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= n


def test_weights_averaged_every_few_steps_are_local_updates():
    (found,) = audit_function(with_local_updates, (1, 2)).findings
    assert (found.cause, found.legitimate) == ("local_updates", True)
    assert found.text == (
        "ranks update their own weights from step 1 on, and average them before step 3"
    )


def with_a_schedule_by_samples():
    """Take four samples on each rank, and move the schedule once for each rank."""
    rank, n = begin()
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 20)
    data = torch.randn(64, 4)
    for start in range(0, 64, 4 * n):
        optimizer.zero_grad()
        model(data[start + 4 * rank :][:4]).square().mean().backward()
        optimizer.step()
        for _ in range(n):
            schedule.step()


def test_learning_rates_may_follow_the_samples_seen():
    report = audit_function(with_a_schedule_by_samples, (1, 2))
    assert report.findings == ()
    assert any(note.startswith("learning rates follow the samples seen") for note in report.notes)
    (check,) = [one for one in report.checks if one.topic == "schedule"]
    assert check.text == "learning rates follow the samples or the end of training"


def with_tensor_parallelism():
    """Split the weights, and give each rank the same samples."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    _, n = begin()
    mesh = dist.device_mesh.init_device_mesh("cpu", (n,))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(model, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.rand(6, 8)).square().mean().backward()
        optimizer.step()


def test_ranks_with_parts_of_the_weights_share_their_samples():
    assert audit_function(with_tensor_parallelism, (2, 4)).findings == ()


def with_two_ranks_at_least():
    rank, n = begin()
    if n < 2:
        print("Two GPUs are needed.")
        return
    model = DistributedDataParallel(nn.Linear(4, 1))
    model(torch.randn(4, 4)[rank::n]).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_a_number_of_ranks_without_a_step_is_refused_with_what_the_script_says():
    expected = (
        r"with_two_ranks_at_least makes no optimizer step on 1 rank, and says 'Two GPUs are "
        r"needed\.'; give other numbers of ranks, as --ranks 2,4"
    )
    with pytest.raises(ScenarioError, match=expected):
        audit_function(with_two_ranks_at_least, (1, 2))


def with_a_loader_that_is_ahead():
    """Load the next batch between the forward and the backward pass, as llama2.c does."""
    rank, n = begin()
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.tensor([number / 48]) for number in range(48)]
    batches = iter(DataLoader(data[rank::n], 2))
    x = next(batches)
    for _ in range(4):
        for _ in range(4 // n):
            loss = model(x).square().mean() / (4 // n)
            x = next(batches)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_batches_of_a_loader_may_be_loaded_ahead():
    report = audit_function(with_a_loader_that_is_ahead, (1, 2))
    assert report.findings == ()
    first = [row.samples for row in report.ledger if row.world_size == 1 and row.step == 1]
    assert [len(samples) for samples in first] == [8]


def with_batch_norm_and_augmentation():
    """Differ by two legitimate causes, each of which hides the other."""
    _, n = begin()
    data = Noisy()
    loader = DataLoader(data, 8 // n, sampler=DistributedSampler(data, shuffle=False))
    layers = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def test_two_legitimate_causes_are_found_together():
    report = audit_function(with_batch_norm_and_augmentation, (1, 2))
    found = sorted(one.cause for one in report.findings)
    assert found == ["batchnorm_local_statistics", "dropout_streams"]
    assert report.same


def with_a_closure():
    """Compute the gradients within the optimizer's step, as Lightning's Trainer does."""
    rank, n = begin()
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(48, 4)

    def closure():
        optimizer.zero_grad()
        loss = model(data[start + rank * 8 // n :][: 8 // n]).square().sum()
        loss.backward()
        return loss

    for start in range(0, 48, 8):  # noqa: B007
        optimizer.step(closure)


def test_gradients_of_a_closure_are_observed():
    report = audit_function(with_a_closure, (1, 2))
    assert [one.cause for one in report.findings] == ["loss_sum_not_averaged"]
    assert report.batch == 8
    assert {row.stage for row in report.tensors} == {"gradient", "weights"}


def with_few_batches_of_evaluation():
    """Evaluate one batch of each rank, of other samples on more ranks."""
    rank, n = begin()
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.tensor([number / 16]) for number in range(16)]
    for start in range(0, 16, 4):
        optimizer.zero_grad()
        x = torch.stack(data[start : start + 4][rank::n])
        model(x).square().mean().backward()
        optimizer.step()
        loader = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
        with torch.no_grad():
            loss = model(next(iter(loader))).square().mean()
        dist.all_reduce(loss)


def test_a_metric_of_other_samples_is_no_finding():
    report = audit_function(with_few_batches_of_evaluation, (1, 2))
    assert report.findings == ()
    (metrics,) = [check for check in report.checks if check.topic == "metrics"]
    assert metrics.status == "not checked"  # the difference was seen, and is not called ok
    assert "differs; no experiment shows why" in metrics.text


def on_gpus():
    dist.init_process_group("nccl")
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    device = torch.device("cuda", rank)
    model = DistributedDataParallel(nn.Linear(4, 1).to(device), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.randn(3, 8, 4).to(device):
        optimizer.zero_grad()
        model(x[rank::n]).square().mean().backward()
        optimizer.step()


def test_a_script_on_gpus_is_audited_in_float64():
    report = audit_function(on_gpus, (1, 2), exact=True)
    assert report.findings == ()
    (check,) = [one for one in report.checks if one.topic == "gradients"]
    assert re.fullmatch(r"agree to (0e\+00|\de-1\d), as rounding explains", check.text)


LOOP = """
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

def fit(model, batches):
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
"""

USES_THE_LOOP = """
import sys
sys.path.insert(0, "site-packages")
import torch
import torch.distributed as dist
from loop import fit

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x).square().sum()

dist.init_process_group("gloo")
torch.manual_seed(0)
fit(Model(), torch.randn(3, 8, 4)[:, dist.get_rank() :: dist.get_world_size()])
"""


def test_a_loss_in_a_library_s_loop_has_the_line_of_the_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "loop.py").write_text(LOOP)
    (tmp_path / "train.py").write_text(USES_THE_LOOP)
    (found,) = audit_script(ScriptAudit("train.py", ranks=(1, 2))).findings
    assert found.cause == "loss_sum_not_averaged"
    assert USES_THE_LOOP.splitlines()[found.line - 1].strip().startswith("return self.layer(x)")


def with_a_warm_up_over_an_epoch():
    """Warm up for a step and fall to zero with the epoch, which has fewer steps on more ranks."""
    rank, n = begin()
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps, data = 12 // n, torch.randn(12, 2, 4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: float(step) if step < 1 else (steps - step) / (steps - 1)
    )
    for step in range(steps):
        optimizer.zero_grad()
        model(data[step * n + rank]).square().mean().backward()
        optimizer.step()
        scheduler.step()


def test_a_schedule_may_end_with_training():
    report = audit_function(with_a_warm_up_over_an_epoch, (1, 2))
    assert report.findings == ()
    assert any(note.startswith("schedules end with training") for note in report.notes)


def with_a_longer_warm_up_on_more_ranks():
    """Take a fixed global batch, so that the schedule should not depend on the ranks."""
    rank, n = begin()
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, warm = torch.randn(12, 4, 4), 2 * n
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: step / warm if step < warm else (12 - step) / (12 - warm)
    )
    for step in range(12):
        optimizer.zero_grad()
        model(data[step][rank * 4 // n : (rank + 1) * 4 // n]).square().mean().backward()
        optimizer.step()
        scheduler.step()


def test_a_warm_up_that_grows_with_the_ranks_is_a_finding():
    assert causes(with_a_longer_warm_up_on_more_ranks) == ["schedule_steps_with_world_size"]


def with_a_schedule_that_ends_early():
    rank, n = begin()
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps, data = 12 // n, torch.randn(12, 2, 4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: max(steps // n - step, 0) / steps,  # divided by the ranks twice
    )
    for step in range(steps):
        optimizer.zero_grad()
        model(data[step * n + rank]).square().mean().backward()
        optimizer.step()
        scheduler.step()


def test_a_schedule_that_ends_before_training_does_not():
    assert causes(with_a_schedule_that_ends_early) == ["schedule_steps_with_world_size"]


def with_autocast():
    """Check the data type of the output, so that a run without autocast fails."""
    rank, _ = begin()
    model = DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        drawn = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randn(8, 16, generator=drawn)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = model(x)
        if found.dtype is not torch.bfloat16:
            raise TypeError("another data type")
        optimizer.zero_grad()
        found.float().square().mean().backward()
        optimizer.step()


def test_rounding_of_autocast_is_measured_in_a_script_that_checks_its_data_types():
    report = audit_function(with_autocast, (1, 2))
    assert report.findings == ()
    assert any("moved by half a unit of its data type" in note for note in report.notes)


def test_in_float64_such_a_script_is_refused():
    with pytest.raises(ScenarioError) as raised:
        audit_function(with_autocast, (1, 2), exact=True)
    assert raised.value.problems == [
        "audit: the script fails in float64 on 1 rank: TypeError: another data type; leave --exact "
        "out, or run it with simdp torchrun --nproc-per-node 1 first."
    ]


def hooked(hook):
    """Return a script whose hook reduces gradients in DDP's place."""

    def train():
        rank, _ = begin()
        model = DistributedDataParallel(nn.Linear(4, 4))
        model.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            drawn = torch.Generator().manual_seed(100 * step + rank)
            optimizer.zero_grad()
            model(torch.randn(8, 4, generator=drawn)).square().mean().backward()
            optimizer.step()

    return train


def of_large_gradients(state, bucket):
    """Reduce gradients that are cut to a limit on each rank, and not what is above it."""
    cut = bucket.buffer().clamp_(-0.01, 0.01).div_(dist.get_world_size())
    return dist.all_reduce(cut, async_op=True).get_future().then(lambda done: done.value()[0])


def test_hooks_of_torch_compress_and_those_of_a_script_may_be_wrong():
    (found,) = audit_function(hooked(default_hooks.bf16_compress_hook), (1, 2)).findings
    assert (found.cause, found.legitimate) == ("compressed_gradients", True)
    (found,) = audit_function(hooked(of_large_gradients), (1, 2)).findings
    assert (found.cause, found.legitimate) == ("bypassed_ddp", False)
    assert found.text == (
        "a hook of the script returns something other than the mean of the gradients"
    )


def with_two_models_in_turn():
    """Train a second model of the same names when the first is done, with other data."""
    rank, _ = begin()
    for phase in range(2):
        model = DistributedDataParallel(nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        drawn = torch.Generator().manual_seed(10 * phase + rank)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4, generator=drawn)).square().mean().backward()
            optimizer.step()


def test_steps_of_a_second_model_follow_those_of_the_first():
    report = audit_function(with_two_models_in_turn, (1, 2))
    assert report.findings == ()
    assert report.steps == 6


def with_fsdp_in_16_bits():
    rank, _ = begin()
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        drawn = torch.Generator().manual_seed(100 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(8, 16, generator=drawn)).float().square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("exact", [False, True])
def test_mixed_precision_of_fsdp_is_no_finding(exact):
    report = audit_function(with_fsdp_in_16_bits, (1, 2), exact=exact)
    assert report.findings == ()
    (check,) = [one for one in report.checks if one.topic == "gradients"]
    size = float(check.text.split()[2].rstrip(","))
    assert size < 1e-12 if exact else 1e-4 < size < 0.5


def with_two_optimizers_after_one_pass(weighted):
    """Average over the items of each rank, which has other numbers of them."""

    def train():
        rank, n = begin()
        model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
        first, second = model.module[0], model.module[2]
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (first, second)]
        data = torch.randn(6, 12, 4)
        for x in data:
            cut = 12 if n == 1 else 4
            mine = x[:cut] if rank == 0 else x[cut:]
            found = nn.functional.mse_loss(model(mine), mine[:, :1])
            if weighted:
                found = found * len(mine) * n / 12
            found.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    return train


def test_optimizers_after_one_backward_pass_share_a_step():
    report = audit_function(with_two_optimizers_after_one_pass(weighted=False), (1, 2))
    assert [one.cause for one in report.findings] == ["loss_mean_of_rank_means"]
    assert report.steps == 6
    assert causes(with_two_optimizers_after_one_pass(weighted=True)) == []


TWO_OPTIMIZERS = """
import argparse, os
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--save")
parser.add_argument("--resume")
given = parser.parse_args()
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
critic = DistributedDataParallel(nn.Linear(4, 1))
maker = DistributedDataParallel(nn.Linear(2, 4))
optimizers = [torch.optim.Adam(critic.parameters()), torch.optim.Adam(maker.parameters())]
begin = 0
if given.resume:
    state = torch.load(given.resume)
    critic.load_state_dict(state["critic"])
    maker.load_state_dict(state["maker"])
    for optimizer, one in zip(optimizers, state["optimizers"]):
        optimizer.load_state_dict(one)
    begin = state["done"]
for turn in range(begin, 6):
    noise = torch.randn(8, 2, generator=torch.Generator().manual_seed(10 * turn + rank))
    for _ in range(2):
        optimizers[0].zero_grad()
        critic(maker(noise).detach()).square().mean().backward()
        optimizers[0].step()
    optimizers[1].zero_grad()
    (critic(maker(noise)) - 1).square().mean().backward()
    optimizers[1].step()
    if given.save and rank == 0:
        state = {"critic": critic.state_dict(), "maker": maker.state_dict(), "done": turn + 1}
        torch.save({**state, "optimizers": [one.state_dict() for one in optimizers]}, given.save)
"""


def test_optimizers_that_take_turns_are_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TWO_OPTIMIZERS)
    saved = {"save_arg": "--save {checkpoint}", "resume_arg": "--resume {checkpoint}"}
    report = audit_script(ScriptAudit("train.py", ranks=(1, 2), at_step=6, **saved))
    assert report.findings == ()
    (check,) = [one for one in report.checks if one.topic == "resume"]
    assert check.text == "stopped after step 6; 12 steps after it are those of the run that went on"


def test_each_rank_may_add_to_the_path_of_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = TWO_OPTIMIZERS.replace("and rank == 0", "").replace(
        "given.save)", "f'{given.save}.{rank}')"
    )
    own = own.replace("load(given.resume)", "load(f'{given.resume}.{rank}')")
    (tmp_path / "train.py").write_text(own)
    saved = {"save_arg": "--save {checkpoint}", "resume_arg": "--resume {checkpoint}"}
    report = audit_script(ScriptAudit("train.py", ranks=(1, 2), at_step=6, **saved))
    assert report.findings == ()
    assert report.resume_same is True


BY_CURSOR = """
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data, target = torch.randn(64, 6), torch.randn(64, 2)
order = torch.randperm(64, generator=torch.Generator().manual_seed(3)).tolist()
model = DistributedDataParallel(nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(data[:8], target[:8]), 4)  # of an evaluation
cursor = step = 0
if sys.argv[1] == "--resume":
    state = torch.load(sys.argv[2])
    model.module.load_state_dict(state["model"])
    step = state["step"]
    if "right" in sys.argv[0]:
        cursor = state["cursor"]
while step < 6:
    rows = order[cursor : cursor + 8][rank::n]
    cursor += 8
    optimizer.zero_grad()
    nn.functional.mse_loss(model(data[rows]), target[rows]).backward()
    optimizer.step()
    step += 1
    with torch.no_grad():
        for x, _ in loader:
            model.module(x)
    if sys.argv[1] == "--save" and rank == 0 and step == 3:
        state = {"model": model.module.state_dict(), "step": step, "cursor": cursor}
        torch.save(state, sys.argv[2])
"""


@pytest.mark.parametrize(("name", "found"), [("right", []), ("wrong", ["resume_sampler_position"])])
def test_rows_that_a_script_indexes_are_known_by_their_content(tmp_path, name, found):
    path = tmp_path / f"{name}.py"
    path.write_text(BY_CURSOR.replace("sys.argv[1]", "[*sys.argv, '', ''][1]"))
    options = {"save_arg": "--save {checkpoint}", "resume_arg": "--resume {checkpoint}"}
    report = audit_script(ScriptAudit(str(path), ranks=(1, 2), **options))
    assert [one.cause for one in report.findings] == found
    if found:
        assert report.findings[0].text == "step 4 has other samples: those of step 1"
        assert report.findings[0].line == 21  # the last one that restores the state
        assert "resumed run agrees to 0e+00" in report.findings[0].proof


REDUCED = """
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data, target = torch.randn(64, 6), torch.randn(64, 2)
model = DistributedDataParallel(nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.no_grad()
def evaluate():
    x, y = data[rank::n], target[rank::n]
    total, count = (model.module(x) - y).square().mean(1).sum(), torch.tensor(float(len(x)))
    for number in (total, count):
        dist.all_reduce(number)
    return METRIC


for step in range(3):
    rows = torch.arange(16 * step, 16 * step + 16)[rank::n]
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(data[rows]), target[rows])
    loss.backward()
    optimizer.step()
    value = evaluate()
    if rank == 0:
        print(f"step {step}: loss {loss.item():.4f}, {16 / n:.1f} rows of a rank, all {value:.4f}")
"""


@pytest.mark.parametrize(
    ("metric", "factor"),
    [
        ("total.item() / len(x)", 2),
        ("(total / count * n).item()", 2),
        ("(total / count).item()", 1),
    ],
)
def test_a_printed_metric_is_that_of_one_rank(tmp_path, metric, factor):
    path = tmp_path / "train.py"
    path.write_text(REDUCED.replace("METRIC", metric))
    report = audit_script(ScriptAudit(str(path), ranks=(1, 2)))
    if factor == 1:
        assert report.findings == ()
        return
    (found,) = report.findings
    assert (found.cause, found.line) == ("metric_averaged_wrongly", 21)
    assert found.text == f"on 2 ranks the value is {factor} times that of 1 rank"
    assert not report.same


def returning_a_metric():
    rank, n = begin()
    data = torch.randn(32, 4)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(data[rank::n]).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        loss = model.module(data[rank::n]).square().mean()
    dist.all_reduce(loss)
    return loss.item()


def test_a_returned_metric_is_that_of_one_rank():
    (found,) = audit_function(returning_a_metric, (1, 4)).findings
    assert found.cause == "metric_averaged_wrongly"
    assert found.text == "on 4 ranks the value is 4 times that of 1 rank"
