"""Operations are data: frozen, hashable, of names and plain numbers alone."""

from dataclasses import FrozenInstanceError, fields

import pytest
from every_strategy import EVERY, scenario
from for_each import for_each

from simdp.steps import ops
from simdp.steps.partition import Partition
from simdp.steps.program import flat
from simdp.workload.optimizers.base import Optimizer

KINDS = ops.OPERATIONS
PLAIN = (str, int, float, bool, type(None), Partition, Optimizer)


def leaves(value):
    """What an operation is made of in the end."""
    if isinstance(value, ops.Op):
        value = tuple(vars(value).values())
    if isinstance(value, tuple):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


def everything(strategy):
    program = scenario(strategy).program
    return [op for plan in (program.setup, *program.plans) for op in plan]


@for_each("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_operation_is_data_that_cannot_be_changed(kind):
    names = [field.name for field in fields(kind)]
    op = kind(*range(len(names)))
    assert op == kind(*range(len(names)))
    for name in names:
        with pytest.raises(FrozenInstanceError):
            setattr(op, name, 1)
    assert kind.__doc__


def test_equal_fields_of_other_operations_are_not_equal():
    assert ops.MicrobatchDone(0) != ops.Unless(0)
    assert ops.Unless((ops.Open(0),)) != ops.Unless((ops.Release(0),))


@for_each("strategy", EVERY, ids=str)
def test_strategies_yield_operations_of_plain_values_that_can_be_hashed(strategy):
    found = everything(strategy)
    assert {type(op) for op in found} <= set(KINDS)
    assert all(isinstance(leaf, PLAIN) for op in found for leaf in leaves(op))
    assert len({hash(op) for op in found}) > 1


@for_each("strategy", EVERY, ids=str)
def test_tags_number_the_collectives_of_a_step_and_each_is_waited_for(strategy):
    """Nobody waits for a count of ranks that have samples, unless gradients are divided by it."""
    program = scenario(strategy).program
    for plan in (program.setup, *program.plans):
        sent, waited = {}, set()
        for op in flat(plan):
            if hasattr(op, "tag"):
                assert op.tag not in sent
                sent[op.tag] = op.label
            elif isinstance(op, ops.Wait):
                assert set(op.tags) <= set(sent)
                waited |= set(op.tags)
        left = {label for tag, label in sent.items() if tag not in waited}
        assert left <= ({"active ranks"} if strategy.get("join") else set())


def test_operations_know_no_step_so_that_a_step_that_does_the_same_is_the_same():
    program = scenario({"kind": "ddp"}, steps=9).program
    assert len({id(plan) for plan in program.plans}) == len(program.plans)
    assert len(program.plans) == 2  # in the first step there is one bucket of everything
