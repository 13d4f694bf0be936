"""Every interpreter has a handler of each operation that concerns it, and refuses others."""

import pickle
import re
from types import SimpleNamespace
from typing import NamedTuple, get_args

import numpy as np
import pytest
from every_strategy import run_of, scenario
from for_each import for_each

from simdp.engine import compression
from simdp.engine import ops as clock_ops
from simdp.engine.clocks.event import EventFabric
from simdp.engine.clocks.transfers import FabricJob
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.interpreters import costs
from simdp.engine.network import NetworkRoutes
from simdp.engine.recorded_script import RecordedScript
from simdp.engine.server.run import Worker
from simdp.engine.slowdown import Slowdown
from simdp.errors import OperationError, SimdpError
from simdp.results.trace import TraceBuilder
from simdp.steps import ops
from simdp.steps.facts import LayerDtypes
from simdp.steps.program import Program, flat
from simdp.studies.plan.bounds import StepDemand

CLOCK_OPERATIONS = list(get_args(clock_ops.ClockOp))


class Own(NamedTuple):
    """An operation that derives from no operation of simdp."""

    nbytes: float = 1.0


class OwnLoop:
    """A loop that yields it."""

    kind, dtypes, num_late = "own", LayerDtypes(), 0

    def setup(self, facts):
        yield ops.Reserve(1.0)

    def step(self, facts, step):
        yield ops.Unless((Own(),))


@pytest.fixture
def registries(monkeypatch):
    """Lists of operations and interpreters that a test may add to."""
    monkeypatch.setattr(ops, "OPERATIONS", list(ops.OPERATIONS))
    monkeypatch.setattr(ops, "INTERPRETERS", list(ops.INTERPRETERS))


def test_every_interpreter_has_a_handler_of_each_operation_that_concerns_it():
    assert len(ops.INTERPRETERS) == 7
    for handlers in ops.INTERPRETERS:
        assert set(handlers) >= set(ops.OPERATIONS), handlers.name
        for kind in ops.OPERATIONS:
            assert (handlers[kind] is not None) == bool(kind.concerns & handlers.concern)


def test_every_concern_has_an_interpreter():
    concerns = [handlers.concern for handlers in ops.INTERPRETERS]
    assert sum(concern.value for concern in concerns) == sum(one.value for one in ops.Concern)


@for_each("handlers", ops.INTERPRETERS, ids=lambda handlers: handlers.name)
def test_an_operation_without_a_handler_cannot_be_defined(handlers):
    before = list(ops.OPERATIONS)
    expected = rf"{handlers.name} does not handle the operation .*\.New; add a handler there"
    with pytest.raises(OperationError, match=expected):

        class New(ops.Op):
            concerns = handlers.concern

    assert before == ops.OPERATIONS


def test_an_operation_names_its_interpreters():
    with pytest.raises(AttributeError, match="concerns"):

        class New(ops.Op):
            pass


def reason(error):
    """The error in the body of a class, which is the cause of another before Python 3.12."""
    return error.__cause__ or error


def test_an_interpreter_without_a_handler_cannot_be_defined(registries):
    with pytest.raises((OperationError, RuntimeError)) as error:

        class Half:
            handlers = ops.Handlers(ops.Concern.FAULTS)

            @handlers(ops.AllReduce, ops.ReduceScatter, ops.TakeSums, ops.Update)
            def _handle(self, op):
                """Handle all but one."""

    assert re.search(r"Half\.handlers does not handle .*\.Take;", str(reason(error.value)))


def test_a_handler_of_an_operation_that_does_not_name_the_interpreter_is_refused(registries):
    with pytest.raises((OperationError, RuntimeError)) as error:

        class More:
            handlers = ops.Handlers(ops.Concern.FAULTS)

            @handlers(*(kind for kind in ops.OPERATIONS if kind.concerns & ops.Concern.FAULTS))
            @handlers(ops.Meet)
            def _handle(self, op):
                """Handle one too many."""

    assert re.search(r"More\.handlers does not handle .*\.Meet;", str(reason(error.value)))


def test_an_operation_and_its_handler_are_all_that_an_interpreter_needs(registries):
    class Nap(ops.Op):
        concerns = ops.Concern.NONE

    class Sleeper:
        handlers = ops.Handlers(ops.Concern.NONE)

    assert Sleeper.handlers[Nap] is None
    assert all(handlers[Nap] is None for handlers in ops.INTERPRETERS)
    computed = run_of(scenario({"kind": "ddp"}, numerics=True))
    assert computed.numbers.read(Nap()) is None
    assert list(computed.costs.read(Nap(), None)) == []
    assert [*computed.memory.before(Nap()), *computed.memory.after(Nap())] == []


def test_what_reads_operations_refuses_one_of_its_own():
    computed = run_of(scenario({"kind": "ddp"}, numerics=True))
    forecast = run_of(scenario({"kind": "ddp"}))
    read = [
        *(computed.numbers.read, forecast.numbers.read),
        *(computed.memory.before, computed.memory.after, computed.memory.follow),
        lambda op: computed.costs.read(op, None),
        lambda op: costs.rehearse([op], list),
        lambda op: computed.costs._delay(op),
        lambda op: compression.work_of(op, 4, 2),
        lambda op: list(computed._read(ops.Unless((op,)))),
        lambda op: StepDemand(scenario({"kind": "ddp"}))._add(op, []),
    ]
    for interpret in read:
        with pytest.raises(OperationError, match=r"the operation .*\.Own; add a handler there"):
            interpret(Own())


def test_a_program_refuses_a_step_with_an_operation_of_its_own():
    chosen = scenario({"kind": "ddp"})
    program = Program.of(OwnLoop(), chosen.workload, 4, 64)
    assert program.setup == (ops.Reserve(1.0),)
    with pytest.raises(OperationError, match=r"simdp\.steps\.program\.Program does not handle"):
        program.plans  # noqa: B018


def test_operations_that_may_be_left_out_are_unpacked():
    inner = ops.Meet()
    assert list(flat([ops.Unless((ops.Unless((inner,)), inner))])) == [inner, inner]
    assert costs.rehearse([ops.Unless((inner,))], list) == [ops.Unless((inner,))]


def test_the_refusal_is_an_internal_error_that_goes_between_processes():
    error = OperationError("mine", Own)
    assert isinstance(error, SimdpError | TypeError)
    assert error.exit_status == 1
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error) == (
        f"mine does not handle the operation {__name__}.Own; add a handler there, or yield "
        "operations of simdp.steps.ops only."
    )


# Clocks -------------------------------------------------------------------------------------------


def clocks():
    """What takes the time of a script, each with the operations that it does not take."""
    chosen = scenario({"kind": "ddp"}, world_size=1)
    slowdown, network = Slowdown(chosen.cluster, 0), NetworkRoutes(chosen.cluster)
    worker = Worker(0, 1, 1)
    tape = lambda script: SimpleNamespace(work=list(script), before=[], after=[])  # noqa: E731
    recorded = RecordedScript()

    def again(script):
        recorded.ops = list(script)
        recorded.step_ends(chosen, [chosen])

    together = {clock_ops.Launch, clock_ops.ClockWait, clock_ops.ClockBarrier}
    holdings = SimpleNamespace(hold=lambda *held: None)
    event = EventFabric([FabricJob(network, {0: []}, slowdown, TraceBuilder())])
    vector = VectorFabric(network, slowdown, TraceBuilder())
    return [
        (lambda script: event.play([iter(script)]), {clock_ops.FusedWork}),
        (lambda script: vector.play(iter(script)), set()),
        (lambda script: list(RecordedScript().listen(iter(script))), set()),
        (
            again,
            {clock_ops.ComputeWork, clock_ops.FusedWork, clock_ops.Feed, clock_ops.MemoryChange},
        ),
        (
            lambda script: worker.play(tape(script), 0.0, slowdown, holdings),
            together | {clock_ops.FusedWork},
        ),
    ]


def operation(kind):
    """One of each kind, on one rank."""
    seconds = np.ones(1)
    pipeline = SimpleNamespace(hand_over=lambda number, samples, clock, ranks: (clock, clock))
    launch = next(op for op in run_of(scenario({"kind": "ddp"})).script() if hasattr(op, "plan"))
    made = {
        clock_ops.ComputeWork: clock_ops.ComputeWork(0, "forward", "l", seconds),
        clock_ops.FusedWork: clock_ops.FusedWork(0, ("forward",), seconds[None]),
        clock_ops.Launch: launch,
        clock_ops.ClockWait: clock_ops.ClockWait(()),
        clock_ops.ClockBarrier: clock_ops.ClockBarrier(0),
        clock_ops.Feed: clock_ops.Feed(0, 0, seconds, pipeline),
        clock_ops.MemoryChange: clock_ops.MemoryChange(0, "inputs", 1.0),
    }
    return made[kind]


@for_each("kind", CLOCK_OPERATIONS, ids=lambda kind: kind.__name__)
def test_a_clock_takes_an_operation_or_refuses_it(kind):
    op = operation(kind)
    for play, refused in clocks():
        if kind in refused:
            with pytest.raises(
                OperationError, match=f"the operation simdp.engine.ops.{kind.__name__}"
            ):
                play([op])
        elif kind is not clock_ops.Launch:  # whose plan belongs to a network
            play([op])


def test_every_clock_refuses_an_operation_of_its_own():
    class OwnWork(NamedTuple):
        step: int = 0

    for play, _ in clocks():
        with pytest.raises(OperationError, match=r"\.OwnWork; add a handler"):
            play([OwnWork()])
