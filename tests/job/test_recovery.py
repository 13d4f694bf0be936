"""Policies of recovery: every kind has its keys, and reads back as it was written."""

import pytest
from for_each import for_each
from pydantic import TypeAdapter, ValidationError

from simdp.job.recovery import RECOVERY, AnyRecovery
from simdp.spec import problems

EXAMPLES = {
    "elastic": {"min_nodes": 2},
    "migrate": {"migration": "30 s"},
    "replica_groups": {"min_replicas": 2},
    "restart": {},
    "spares": {"num": 2},
}

policy = TypeAdapter(AnyRecovery).validate_python


def test_every_kind_has_an_example_here():
    assert set(EXAMPLES) == set(RECOVERY)


@for_each("kind", RECOVERY)
def test_a_policy_reads_back_and_has_its_spares(kind):
    made = policy({"kind": kind, "detection": "30 s", **EXAMPLES[kind]})
    assert policy(made.model_dump(mode="json")) == made
    assert made.num_spares == {"spares": 2, "migrate": None}.get(kind, 0)


def test_without_a_kind_it_is_a_restart():
    assert policy({"detection": "30 s", "restart": "5 min"}).kind == "restart"


@for_each(
    ("raw", "line"),
    [
        ({"kind": "spares"}, "num is required but was not given."),
        ({"kind": "spares", "num": 0}, "num: 0 is out of range; it must be >= 1."),
        (
            {"kind": "migrate", "migration": 30},
            'migration: 30 has no unit; write "30 s", "30 ms" or "30 us".',
        ),
        ({"kind": "restart", "min_nodes": 1}, None),
    ],
)
def test_what_is_wrong_is_said(raw, line):
    with pytest.raises(ValidationError) as caught:
        policy(raw)
    found = [one.line for one in problems(caught.value, raw)]
    assert len(found) == 1
    assert line is None or found[0].startswith(line.split(" is ")[0])
