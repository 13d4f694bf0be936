"""Audits of experts that each rank has of its own: tensors of one name need not be replicas."""

import pytest

pytest.importorskip("torch")

from simdp.torch.audit import ScriptAudit, audit_script

SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data, target = torch.randn(48, 40), torch.randn(48, 40)
made = [nn.Linear(40, 40) for _ in range(4)]
own = range(rank * 4 // n, (rank + 1) * 4 // n)
for expert in made:
    nn.init.zeros_(expert.bias)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(40, 40)
        if "named" in sys.argv:
            self.experts = nn.ModuleDict({str(place): made[place] for place in own})
        elif "numbered" in sys.argv:
            self.experts = nn.ModuleList([made[place] for place in own])
        else:
            self.weight = nn.Parameter(torch.stack([made[place].weight.detach() for place in own]))
            self.bias = nn.Parameter(torch.zeros(len(own), 40))

    def expert(self, k, rows):
        if "stacked" in sys.argv:
            return rows @ self.weight[k].T + self.bias[k]
        listed = self.experts.values() if "named" in sys.argv else self.experts
        return list(listed)[k](rows)

    def forward(self, x):
        sent = self.inner(x).reshape(n, -1, 40)  # rows are in the order of experts
        rows = all_to_all_single(torch.empty_like(sent), sent).reshape(n, len(own), -1, 40)
        out = torch.stack([self.expert(k, rows[:, k]) for k in range(len(own))], 1)
        out = out.reshape(n, -1, 40)
        return all_to_all_single(torch.empty_like(out), out).reshape(-1, 40)


model = Mixture()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    index = torch.arange(16 * step, 16 * step + 16)[rank::n]
    optimizer.zero_grad()
    nn.functional.mse_loss(model(data[index]), target[index]).backward()
    for name, parameter in model.named_parameters():
        if name.startswith("inner"):
            dist.all_reduce(parameter.grad)
        if name.startswith("inner") or "wrong" not in sys.argv:
            parameter.grad /= n
    optimizer.step()
"""


def audit(tmp_path, ranks, *arguments):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return audit_script(ScriptAudit(str(path), arguments, ranks=ranks))


@pytest.mark.parametrize("experts", ["named", "numbered", "stacked"])
@pytest.mark.parametrize("ranks", [(1, 2), (2, 4)])
def test_experts_of_ranks_raise_no_alarm(tmp_path, experts, ranks):
    report = audit(tmp_path, ranks, experts)
    assert report.findings == ()
    assert report.same


@pytest.mark.parametrize(
    ("experts", "tensor"),
    [("numbered", "experts.0.weight"), ("stacked", "weight")],
)
def test_gradients_of_experts_without_a_division_are_seen(tmp_path, experts, tensor):
    (found,) = audit(tmp_path, (1, 2), experts, "wrong").findings
    assert (found.cause, found.tensor) == ("unexplained", tensor)


def test_ranks_may_have_experts_of_other_shapes(tmp_path):
    """Which are another model on each number of ranks: a difference, and no error."""
    path = tmp_path / "train.py"
    path.write_text(
        SCRIPT.replace("(len(own), 40)", "(len(own) + rank, 40)").replace(
            "self.bias[k]", "self.bias.mean(0)"
        )
    )
    report = audit_script(ScriptAudit(str(path), ("stacked",), ranks=(2, 4)))
    assert not report.same
