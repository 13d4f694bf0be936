"""`simdp.testing`, as a project's own tests use it."""

from pathlib import Path

import pytest
from for_each import for_each

from simdp.results.audit import AuditReport
from simdp.testing import assert_data_parallel

torch = pytest.importorskip("torch")
nn, dist = torch.nn, torch.distributed
cross_entropy = nn.functional.cross_entropy

IGNORED = -100


def sentences():
    """Return 24 rows of tokens, and labels of which each row has another number."""
    draws = torch.Generator().manual_seed(1)
    tokens = torch.randint(11, (24, 8), generator=draws)
    labels = tokens.roll(-1, 1)
    for row, length in enumerate(torch.randint(1, 9, (24,), generator=draws)):
        labels[row, length:] = IGNORED
    return tokens, labels


def train(by_tokens):
    """Train for three steps of eight rows."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, n = dist.get_rank(), dist.get_world_size()
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, labels = sentences()
    for start in range(0, 24, 8):
        mine = slice(start + rank * 8 // n, start + (rank + 1) * 8 // n)
        logits, wanted = model(tokens[mine]).flatten(0, 1), labels[mine].flatten()
        if by_tokens:
            count = (wanted != IGNORED).sum()
            dist.all_reduce(count)
            loss = cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum") * n / count
        else:
            loss = cross_entropy(logits, wanted, ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


def repaired():
    train(by_tokens=True)


def faulty():
    train(by_tokens=False)


def test_a_function_that_is_data_parallel_passes():
    found = assert_data_parallel(repaired, ranks=(1, 2))
    assert isinstance(found, AuditReport)
    assert found.same
    assert found.ranks == (1, 2)


def test_a_fault_fails_the_test_with_the_table_of_the_audit():
    with pytest.raises(AssertionError) as raised:
        assert_data_parallel(faulty, ranks=(1, 2))
    text = str(raised.value)
    assert text.startswith("audit of faulty: 1 and 2 ranks, 3 steps")
    assert "cause     loss_mean_of_rank_means: the loss is a" in text
    line = line_of("loss = cross_entropy(logits, wanted, ignore_index=IGNORED)")
    assert f"test_testing.py:{line}\n" in text
    assert text.endswith("wrong: loss_mean_of_rank_means")


def line_of(code):
    lines = [line.strip() for line in Path(__file__).read_text().splitlines()]
    return lines.index(code) + 1


def test_an_intended_cause_passes():
    found = assert_data_parallel(faulty, ranks=(1, 2), allow=["loss_mean_of_rank_means"])
    assert [(one.cause, one.allowed) for one in found.findings] == [
        ("loss_mean_of_rank_means", True)
    ]


def test_a_script_is_given_by_its_path_and_arguments(tmp_path, monkeypatch):
    """Its batch is 8 rows on one rank, and 8 on each of two, unless it is given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    options = {"ranks": (1, 2), "arguments": ["--lr", "0.1"], "max_steps": 2}
    found = assert_data_parallel(tmp_path / "train.py", batch_arg="--rows {per_rank}", **options)
    assert found.batch == 16
    assert found.steps == 2


SCRIPT = """
import argparse, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=8)
parser.add_argument("--lr", type=float, required=True)
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
data = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
rank, n = dist.get_rank(), dist.get_world_size()
for step in range(3):
    start = (step * n + rank) * args.rows
    optimizer.zero_grad()
    model(data[start:start + args.rows]).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_an_unknown_cause_is_refused_with_a_hint():
    with pytest.raises(ValueError, match=r"allow: unknown cause 'rond.*Did you mean 'rounding'\?"):
        assert_data_parallel(repaired, allow=["rondin"])


@for_each("options", [{"arguments": ["--epochs", "2"]}, {"batch_arg": "--rows {per_rank}"}])
def test_a_function_takes_no_options_of_a_script(options):
    (name,) = options
    with pytest.raises(TypeError, match=f"{name}: is for scripts, but <function repaired"):
        assert_data_parallel(repaired, **options)
