"""Barriers: who is late, who never comes, and what is refused."""

from datetime import timedelta

import pytest
from for_each import for_each

import simdp.distributed as dist
from simdp.errors import DeadlockError, ProgramError


@pytest.fixture
def on_gloo(box):
    """Run a program on the box, after init_process_group with gloo."""

    def on_gloo(function, **arguments):
        def program(rank):
            dist.init_process_group("gloo", **arguments)
            return function(rank)

        return dist.launch(program, 4, cluster=box)

    return on_gloo


def test_a_monitored_barrier_holds_everybody_until_the_last_has_come(on_gloo):
    def program(rank):
        dist.compute(seconds=float(rank))
        dist.monitored_barrier()
        return dist.clock()

    ends = on_gloo(program).values
    assert min(ends) > 3.0
    assert max(ends) < 3.001


@for_each(
    ("arguments", "late"),
    [
        ({"timeout": timedelta(seconds=1)}, "rank 2 did not come within 1 s of rank 0."),
        (
            {"timeout": timedelta(seconds=1), "wait_all_ranks": True},
            "ranks 2, 3 did not come within 1 s of rank 0.",
        ),
        ({}, "rank 3 did not come within 2.5 s of rank 0."),
    ],
)
def test_a_monitored_barrier_names_who_is_late(on_gloo, arguments, late):
    def program(rank):
        dist.compute(seconds=float(rank))
        dist.monitored_barrier(**arguments)

    with pytest.raises(ProgramError) as caught:
        on_gloo(program, timeout=timedelta(seconds=2.5))
    assert str(caught.value).startswith("rank 0, ")
    assert str(caught.value).endswith(f": monitored_barrier: {late}")


def test_a_monitored_barrier_names_who_never_comes(on_gloo):
    with pytest.raises(DeadlockError) as caught:
        on_gloo(lambda rank: None if rank in (1, 3) else dist.monitored_barrier())
    assert caught.value.waiting == [
        "rank 0 waits in monitored_barrier() of group default, call 1, for ranks 1, 3",
        "rank 2 waits in monitored_barrier() of group default, call 1, for ranks 1, 3",
        "rank 1 has ended",
        "rank 3 has ended",
    ]


def test_strangers_pass_a_monitored_barrier(on_gloo):
    def program(rank):
        dist.monitored_barrier(dist.new_group([0, 1]))
        return dist.clock() > 0

    with pytest.warns(UserWarning, match="Running monitored_barrier on global rank") as caught:
        assert on_gloo(program).values == [True, True, False, False]
    assert {warning.filename for warning in caught} == {__file__}


@for_each(
    ("call", "said"),
    [
        (
            dist.monitored_barrier,
            "monitored_barrier: backend nccl has none; use gloo, or barrier.",
        ),
        (
            lambda: dist.barrier(timeout=3.0),
            "barrier: timeout is 3.0; give a timedelta above 0, as timedelta(minutes=10).",
        ),
        (
            lambda: dist.barrier(device_ids=0),
            "barrier: device_ids is 0; give a list of numbers, as [0].",
        ),
        (
            lambda: dist.barrier(device_ids=["0"]),
            "barrier: device_ids is ['0']; give a list of numbers, as [0].",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(refused, call, said):
    assert refused(lambda rank: call() if rank == 0 else None) == said
