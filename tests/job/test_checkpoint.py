"""Checkpoints: what may be written, and what is refused."""

import pytest
from for_each import for_each
from pydantic import ValidationError

from simdp.job.recovery import Checkpoint
from simdp.spec import problems


def made(**keys):
    return Checkpoint.model_validate({"write": "20 s", **keys})


def refusal(raw):
    with pytest.raises(ValidationError) as caught:
        Checkpoint.model_validate(raw)
    return [found.line for found in problems(caught.value, raw)]


@for_each(
    ("written", "found"),
    [("30 min", 1800.0), (100, 100), ("daly", "daly"), ("young", "young"), ("simulated",) * 2],
)
def test_an_interval_is_a_time_or_steps_or_a_rule_and_reads_back(written, found):
    checkpoint = made(every=written)
    assert checkpoint.every == found
    assert type(checkpoint.every) is type(found)
    assert Checkpoint.model_validate(checkpoint.model_dump(mode="json")) == checkpoint


@for_each(
    ("raw", "line"),
    [
        (
            {"every": "dally", "write": "1 s"},
            "every: unknown interval 'dally'. Did you mean 'daly'? Known: daly, simulated, young.",
        ),
        (
            {"every": 0, "write": "1 s"},
            "every: 0 is out of range; write a time or a number of steps >= 1.",
        ),
        (
            {"every": 1.5, "write": "1 s"},
            'every: 1.5 has no unit; write "1.5 s", "1.5 ms" or "1.5 us".',
        ),
        (
            {"every": 10},
            "how long a write takes is not known; add storage: 2 TB/s, or write: 20 s.",
        ),
        (
            {"write": "1 s", "storage": "2 TB/s"},
            "write gives the time that storage and per_node would; keep one or the other.",
        ),
        (
            {"write": "1 s", "host_copy": "1 s"},
            "host_copy is of asynchronous checkpoints; write mode: asynchronous, or leave it out.",
        ),
        (
            {"write": "1 s", "incremental": "120 %"},
            'incremental: 1.2 of a checkpoint is out of range; write for example "20 %", and '
            '"100 %" for whole ones.',
        ),
        (
            {"storage": "2 TB/s", "size": "6 TB", "storage_size": "10 TB"},
            "storage_size: 10 TB cannot hold two checkpoints of 6 TB, of which the one before is "
            "kept until the next is complete; give more, or a smaller size.",
        ),
        (
            {"write": "1 s", "levels": [{"every": 10}]},
            "levels.0: write and bandwidth: give one of them; the other follows.",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(raw, line):
    assert refusal(raw) == [line]


def test_storage_holds_two_checkpoints():
    assert made(size="5 TB", storage_size="10 TB").problem_with_size(5e12) is None
