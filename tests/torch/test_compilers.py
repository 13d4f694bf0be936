"""The compiler is not imported for what it only stands aside from."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn

def standing_in():
    return type(sys.modules["torch._dynamo"]).__name__ == "StandIn"

dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).cuda())
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 4).cuda()).sum().backward()
optimizer.step()
optimizer.zero_grad()
assert standing_in()
from torch.distributed.fsdp import fully_shard  # which asks inspect for all modules' files
assert standing_in()
assert torch._dynamo.disable(len) is len
assert torch._dynamo.disable()(len) is len
if sys.argv[1] == "module":
    import torch._dynamo.config
    assert torch._dynamo.config.optimize_ddp
else:
    assert torch._dynamo.utils.counters is not None
assert not standing_in()
assert torch._dynamo.reset() is None
print("through")
"""


def test_ddp_and_optimizers_need_no_compiler_and_who_asks_gets_it(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "simdp", "torchrun", "--no-plots", "--quiet", "train.py"]
    for how in ("module", "attribute"):
        done = subprocess.run([*command, how], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "through\n"), done.stderr


def test_afterwards_functions_are_as_torch_left_them():
    from simdp.torch.launch import DISABLED, StandIn

    def function():
        return 1

    module = StandIn()
    setattr(function, DISABLED, module.disable(function))
    module.forget()
    assert not hasattr(function, DISABLED)
    assert module.graph_break() is None
