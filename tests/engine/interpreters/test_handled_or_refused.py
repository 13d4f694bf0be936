"""Every interpreter handles an operation, ignores it on purpose, or refuses it."""

import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, get_args

import numpy as np
import pytest
from every_strategy import run_of, scenario
from for_each import for_each

import simdp
from simdp.engine import compression
from simdp.engine import ops as clock_ops
from simdp.engine.clocks.event import EventFabric
from simdp.engine.clocks.transfers import FabricJob
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.interpreters import costs
from simdp.engine.interpreters.numbers import Numbers
from simdp.engine.interpreters.records import Forecast, Past
from simdp.engine.network import NetworkRoutes
from simdp.engine.recorded_script import Heard
from simdp.engine.server import updates
from simdp.engine.server.run import Worker
from simdp.engine.slowdown import Slowdown
from simdp.errors import OperationError, SimdpError
from simdp.results.trace import TraceBuilder
from simdp.steps import ops, program
from simdp.steps.facts import LayerDtypes
from simdp.steps.program import Interpreter, Program, called_by, flat
from simdp.studies.plan.bounds import StepDemand

OPERATIONS = [kind for kind in get_args(ops.Op) if kind is not ops.Unless]
CLOCK_OPERATIONS = list(get_args(clock_ops.ClockOp))
NO_LOG = SimpleNamespace(log=[], records=[])


class Own(NamedTuple):
    """An operation of a strategy outside of simdp."""

    nbytes: float = 1.0


class OwnLoop:
    """A loop that yields it."""

    kind, dtypes, num_late = "own", LayerDtypes(), 0

    def setup(self, facts):
        yield ops.Reserve(1.0)

    def step(self, facts, step):
        yield ops.Unless((Own(),))


def runs():
    """Runs whose numbers are computed, forecast, restored, and the server's."""
    computed = run_of(scenario({"kind": "ddp"}, numerics=True))
    forecast = run_of(scenario({"kind": "ddp"}))
    server = scenario({"kind": "parameter_server"}, numerics=True)
    records = [
        computed.numbers,
        forecast.numbers,
        Past(forecast.scenario, forecast.program, NO_LOG),
        updates.Learning(server, server.program),
    ]
    assert [type(one) for one in records] == [Numbers, Forecast, Past, updates.Learning]
    return computed, records


def tables():
    """Every interpreter of the operations of a step."""
    run, (numbers, forecast, past, _) = runs()
    sheet = StepDemand(scenario({"kind": "ddp"}))
    return [
        program._CALLED_BY,
        program._PROGRAM,
        numbers._acts,
        forecast._acts,
        past._acts,
        updates._LEARNING,
        costs._REHEARSED,
        run.costs._of,
        run.memory._before,
        run.memory._after,
        sheet._interpreter(),
    ]


def test_every_interpreter_handles_or_ignores_every_operation():
    for table in tables():
        assert set(table) == set(OPERATIONS) | {ops.Unless} & set(table), table.name
        for kind in OPERATIONS:
            assert table[kind] is None or table[kind], table.name


def test_this_file_knows_every_interpreter():
    made = re.compile(r"\bInterpreter(\[[^\n]*\])?\(\s*f?\"")
    sources = Path(simdp.__file__).parent.rglob("*.py")
    texts = {str(path): path.read_text(encoding="utf-8") for path in sources}
    assert sum(len(made.findall(text)) for text in texts.values()) == len(tables())
    assert not [name for name, text in texts.items() if re.search(r"\.get\(type\(op", text)]


def test_every_interpreter_refuses_an_operation_of_its_own():
    for table in tables():
        with pytest.raises(OperationError, match=f"{table.name} neither handles nor ignores"):
            table[Own]


def test_what_reads_operations_refuses_one_of_its_own():
    run, records = runs()
    read = [
        *(one.read for one in records),
        *(run.memory.before, run.memory.after, run.memory.follow, called_by),
        lambda op: run.costs.read(op, None),
        lambda op: costs.rehearse([op], list),
        lambda op: run.costs._delay(op),
        lambda op: compression.work_of(op, 4, 2),
        lambda op: list(run._read(ops.Unless((op,)))),
        lambda op: StepDemand(scenario({"kind": "ddp"}))._interpreter()[type(op)],
    ]
    for interpret in read:
        with pytest.raises(OperationError, match=r"ignores the operation .*\.Own; add it"):
            interpret(Own())


def test_a_program_refuses_a_step_with_an_operation_of_its_own():
    chosen = scenario({"kind": "ddp"})
    made = Program.of(OwnLoop(), chosen.workload, 4, 64)
    assert made.setup == (ops.Reserve(1.0),)
    with pytest.raises(OperationError, match=r"simdp\.steps\.program\.Program neither"):
        made.plans  # noqa: B018


def test_only_what_unpacks_operations_takes_some_that_may_be_left_out():
    inner = ops.Meet()
    assert list(flat([ops.Unless((ops.Unless((inner,)), inner))])) == [inner, inner]
    taking = [table.name for table in tables() if ops.Unless in table]
    assert taking == ["simdp.engine.interpreters.costs.rehearse"]


def test_an_interpreter_cannot_both_handle_and_ignore_an_operation():
    with pytest.raises(AssertionError, match="both handles and ignores"):
        Interpreter("mine", {Own: len}, ignores=[Own])


def test_the_refusal_is_an_internal_error_that_goes_between_processes():
    error = OperationError("mine", Own)
    assert isinstance(error, SimdpError | TypeError)
    assert error.exit_status == 1
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error) == (
        f"mine neither handles nor ignores the operation {__name__}.Own; add it to one of the two "
        "there, or yield operations of simdp.steps.ops only."
    )


# Clocks -------------------------------------------------------------------------------------------


def clocks():
    """What takes the time of a script, each with the operations that it does not take."""
    chosen = scenario({"kind": "ddp"}, world_size=1)
    slowdown, network = Slowdown(chosen.cluster, 0), NetworkRoutes(chosen.cluster)
    worker = Worker(0, 1, 1)
    tape = lambda script: SimpleNamespace(work=list(script), before=[], after=[])  # noqa: E731
    heard = Heard()

    def again(script):
        heard.ops = list(script)
        heard.step_ends(chosen, [chosen])

    together = {clock_ops.Launch, clock_ops.ClockWait, clock_ops.ClockBarrier}
    holdings = SimpleNamespace(hold=lambda *held: None)
    event = EventFabric([FabricJob(network, {0: []}, slowdown, TraceBuilder())])
    vector = VectorFabric(network, slowdown, TraceBuilder())
    return [
        (lambda script: event.play([iter(script)]), {clock_ops.FusedWork}),
        (lambda script: vector.play(iter(script)), set()),
        (lambda script: list(Heard().listen(iter(script))), set()),
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
        with pytest.raises(OperationError, match=r"\.OwnWork; add it"):
            play([OwnWork()])
