"""The reducer's work, on a rank that only writes down what it is told."""

import pytest

from simdp.strategies.apex import Apex
from simdp.strategies.ddp import DDP
from simdp.strategies.horovod import Horovod
from simdp.strategies.reducer import Averaging, Message, Reducer
from simdp.workload.layers import Parameter


class Diary:
    """A rank whose gradients a, b, c become ready one millisecond after the other."""

    world_size, num_micro_steps, num_reduced_before, itemsize = 4, 1, 1, 4
    parameters = tuple(Parameter(name, (10,), 1.0) for name in "cba")
    ready_order, unused, buffers = ("a", "b", "c"), (), ()

    def __init__(self):
        self.lines = []

    def ready_times(self, micro_step=0):
        return [1e-3, 2e-3, 3e-3]

    def bucket(self, names, compress=None):
        self.lines.append(f"bucket {''.join(names)} {compress}")
        return "".join(names)

    def backward(self, micro_step, hook=None):
        for name in self.ready_order:
            self.lines.append(f"ready {name}")
            if hook is not None:
                yield from hook(name)

    def fill(self, bucket, name, divisor, copies):
        self.lines.append(f"fill {name} / {divisor}{' copied' * copies}")
        yield from ()

    def all_reduce(self, bucket, label, wait=0.0):
        self.lines.append(f"send {bucket} after {wait * 1e3:g} ms")
        yield from ()
        return bucket

    def wait(self, pending):
        self.lines.append(f"wait {' '.join(pending)}")
        yield from ()

    def empty(self, bucket, copies, divisor=1.0):
        self.lines.append(f"empty {bucket} / {divisor}{' copied' * copies}")
        yield from ()

    def scale_losses(self, by_shard):
        self.lines.append(f"scale {by_shard}")

    def forward(self, micro_step):
        yield from ()

    def update(self, active=None):
        self.lines.append("update")
        yield from ()


def reduced(messages, overlap=True, **averaging):
    rank = Diary()
    reducer = Reducer(rank, messages, Averaging(**averaging))
    for script in (reducer.backward(0, overlap), reducer.finish(["map"])):
        assert list(script) == []
    return [line for line in rank.lines if not line.startswith("bucket")]


def test_a_bucket_is_sent_when_its_last_gradient_is_ready():
    messages = [Message(("a", "b"), wait=2e-3, copied=True), Message(("c",), copied_back=True)]
    assert reduced(messages, before=4, after=2) == [
        "ready a",
        "fill a / 4 copied",
        "ready b",
        "fill b / 4 copied",
        "send ab after 2 ms",
        "ready c",
        "fill c / 4",
        "send c after 0 ms",
        "wait ab c map",
        "empty ab / 2",
        "empty c / 2 copied",
    ]


def test_a_bucket_that_is_complete_waits_for_the_ones_before_it():
    lines = reduced([Message(("b", "c")), Message(("a",))])
    assert lines[-5:] == [
        "send bc after 0 ms",
        "send a after 0 ms",
        "wait bc a map",
        "empty bc / 1.0",
        "empty a / 1.0",
    ]
    assert lines.index("send bc after 0 ms") > lines.index("ready c")


def test_without_overlap_nothing_is_sent_before_the_end():
    lines = reduced([Message(("a",)), Message(("b", "c"))], overlap=False)
    assert lines.index("ready c") < lines.index("fill a / 1.0") < lines.index("send a after 0 ms")


@pytest.mark.parametrize(
    ("strategy", "before", "after"),
    [
        (DDP(broadcast_buffers=False), 4, 1.0),
        (Horovod(), 1.0, 4),
        (Apex(), 1.0, 4.0),
        (Apex(gradient_predivide_factor=2.0), 2.0, 2.0),
        (Apex(gradient_average=False), 1.0, 1.0),
    ],
)
def test_ddp_divides_before_the_sum_and_the_others_after_it(strategy, before, after):
    rank = Diary()
    rank.overheads = type("", (), {"copies": False})
    assert list(strategy.train_step(rank)) == []
    filled = {line.partition(" / ")[2] for line in rank.lines if line.startswith("fill")}
    emptied = {line.partition(" / ")[2] for line in rank.lines if line.startswith("empty")}
    assert (filled, emptied) == ({str(before)}, {str(after)})
    assert rank.lines[-1] == "update"
