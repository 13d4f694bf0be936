"""The reducer's work, read off the operations that it yields."""

from itertools import count

from for_each import for_each
from small_workload import facts_of, ops_of, step_of

from simdp.steps.ops import AllReduce, Backward, FillBucket, Take, Update, Wait
from simdp.strategies.ddp import DDP, Apex, Message, Reducer
from simdp.strategies.horovod import Horovod

FACTS = facts_of(dict.fromkeys("cba", 10), "abc")
"""Gradients a, b, c become ready one after the other."""


def message(names, **options):
    return Message(FACTS.bucket(tuple(names)), **options)


def line(op):
    """What a newcomer would write down of an operation."""
    match op:
        case Backward(_, call) if call < len(FACTS.graph.calls):
            (name,) = FACTS.graph.ready_at[call]
            return f"ready {name}"
        case FillBucket(_, name, divisor, is_copied):
            return f"fill {name} / {divisor}{' copied' * is_copied}"
        case AllReduce():
            return f"send {''.join(op.bucket.names)} after {op.wait * 1e3:g} ms as {op.tag}"
        case Wait(tags):
            return f"wait {' '.join(map(str, tags))}"
        case Take(bucket, divisor, is_copied):
            return f"take {''.join(bucket.names)} / {divisor}{' copied' * is_copied}"
    return None


def reduced(messages, overlap=True, **averaging):
    reducer = Reducer(FACTS, messages, count(), **averaging)
    ops = [*reducer.backward(0, overlap), *reducer.finish([9])]
    return [written for written in map(line, ops) if written]


def test_a_bucket_is_sent_when_its_last_gradient_is_ready():
    messages = [message("ab", wait=2e-3, copied=True), message("c", copied_back=True)]
    assert reduced(messages, before=4, after=2) == [
        "ready a",
        "fill a / 4 copied",
        "ready b",
        "fill b / 4 copied",
        "send ab after 2 ms as 0",
        "ready c",
        "fill c / 4",
        "send c after 0 ms as 1",
        "wait 0 1 9",
        "take ab / 2",
        "take c / 2 copied",
    ]


def test_a_bucket_that_is_complete_waits_for_the_ones_before_it():
    lines = reduced([message("bc"), message("a")])
    assert lines[-5:] == [
        "send bc after 0 ms as 0",
        "send a after 0 ms as 1",
        "wait 0 1 9",
        "take bc / 1.0",
        "take a / 1.0",
    ]
    assert lines.index("send bc after 0 ms as 0") > lines.index("ready c")


def test_without_overlap_nothing_is_sent_before_the_end():
    lines = reduced([message("a"), message("bc")], overlap=False)
    places = [lines.index(of) for of in ("ready c", "fill a / 1.0", "send a after 0 ms as 0")]
    assert places == sorted(places)


def test_unused_parameters_are_ready_with_the_first_hook():
    facts = facts_of(dict.fromkeys("cbad", 10), "abc", "d")
    reducer = Reducer(facts, [Message(facts.bucket(tuple("ad")))], count(), unused="d")
    assert [op.name for op in ops_of(reducer.mark_ready("a"), FillBucket)] == ["d", "a"]


@for_each(
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
    plan = list(strategy.train_step(FACTS, step_of(FACTS)))
    assert {op.divisor for op in ops_of(plan, FillBucket)} == {before}
    assert {op.divisor for op in ops_of(plan, Take)} == {after}
    assert plan[-1] == Update()
