"""Executors: each item once, in any order, whatever becomes of the others and of processes."""

import os
import pickle
import signal
import subprocess
import sys
from functools import partial

import pytest

from simdp.errors import DeadlockError, ScenarioError, SimdpError
from simdp.studies.executor import (
    CompletedItem,
    Failed,
    SerialExecutor,
    attempt,
    executor_for,
    in_order,
)
from simdp.studies.executor.processes import ProcessExecutor


class StubbornError(Exception):
    """One that no other process can make anew."""

    def __init__(self, one, two):
        super().__init__(one)


def half(number):
    if number == 3:
        raise ScenarioError(["first: wrong.", "second: wrong, too."])
    if number == 5:
        raise StubbornError(1, 2)
    return number / 2


def die_at(number_of_death, folder, number):
    """Kill this process; at a negative number, only the first time."""
    mark = folder / "died"
    once = number_of_death < 0
    if number == abs(number_of_death) and not (once and mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def limit(_):
    from simdp.engine import threads

    return threads._limit


EXECUTORS = [SerialExecutor, partial(ProcessExecutor, 2)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_each_item_comes_once_and_what_fails_has_a_reason(executor):
    with executor() as several:
        found = dict(several.each(half, range(8)))
        again = dict(several.each(half, [10]))
    assert sorted(found) == list(range(8))
    assert found[4] == CompletedItem(2.0)
    assert found[3].reason == "first: wrong; second: wrong, too."
    assert found[3].problems == ["first: wrong.", "second: wrong, too."]
    assert found[5].reason == "StubbornError: 1"
    assert again == {0: CompletedItem(5.0)}


def test_reasons_are_one_line_each_and_travel():
    deadlock = attempt(partial(_raise, DeadlockError(["rank 0 waits", "rank 1 waits"])), 0)
    assert deadlock.reason == "deadlock: rank 0 waits; rank 1 waits"
    assert "not enough memory" in attempt(partial(_raise, MemoryError()), 0).reason
    assert attempt(partial(_raise, ValueError("a\nb")), 0).reason == r"ValueError: a\nb"
    assert isinstance(pickle.loads(pickle.dumps(deadlock)).error, DeadlockError)
    assert isinstance(attempt(partial(_raise, StubbornError(1, 2)), 0).error, SimdpError)


def _raise(error, _):
    raise error


def test_keys_that_interrupt_are_not_caught():
    with pytest.raises(KeyboardInterrupt):
        attempt(partial(_raise, KeyboardInterrupt()), 0)


@pytest.mark.slow
def test_processes_share_the_cores():
    from simdp.engine import threads

    with ProcessExecutor(2) as two:
        ((_, outcome),) = two.each(limit, [0])
    assert outcome == CompletedItem(max(1, threads.available() // 2))


@pytest.mark.slow
def test_an_item_that_kills_its_process_fails_and_the_others_are_done(tmp_path):
    with ProcessExecutor(2) as two:
        found = dict(two.each(partial(die_at, 4, tmp_path), range(9)))
    assert sorted(found) == list(range(9))
    assert found.pop(4).reason.startswith("its process died")
    assert found == {number: CompletedItem(number) for number in found}


@pytest.mark.long
@pytest.mark.slow
def test_a_process_that_is_killed_from_outside_loses_nothing(tmp_path):
    with ProcessExecutor(2) as two:
        found = dict(two.each(partial(die_at, -4, tmp_path), range(9)))
    assert found == {number: CompletedItem(number) for number in range(9)}


@pytest.mark.slow
def test_what_cannot_be_sent_fails_alone():
    with ProcessExecutor(2) as two:
        found = dict(two.each(str, [1, lambda: 1, 3]))
    assert (found[0], found[2]) == (CompletedItem("1"), CompletedItem("3"))
    assert isinstance(found[1], Failed)


ENDLESS = """
import threading
from simdp.studies.executor.processes import ProcessExecutor

def start():
    with ProcessExecutor(2) as two:
        list(two.each(exec, ["import time; print('working', flush=True); time.sleep(600)"] * 2))

if {in_a_thread}:
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "in_a_thread"), [("SIGTERM", False), ("SIGKILL", True)])
def test_processes_end_with_the_one_that_started_them(sent, in_a_thread):
    program = [sys.executable, "-c", ENDLESS.format(in_a_thread=in_a_thread)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as parent:
        assert [parent.stdout.readline() for _ in range(2)] == [b"working\n"] * 2
        parent.send_signal(getattr(signal, sent))
        # It ends when the last process has closed its output: they would sleep for ten minutes.
        parent.communicate(timeout=120)


def test_outcomes_can_be_had_in_order():
    outcomes = [
        (2, CompletedItem("c")),
        (0, CompletedItem("a")),
        (1, Failed(["no"], SimdpError("no"))),
    ]
    assert [type(one) for one in in_order(iter(outcomes), 3)] == [
        CompletedItem,
        Failed,
        CompletedItem,
    ]


def test_the_number_of_workers_chooses():
    assert isinstance(executor_for(), SerialExecutor)
    assert executor_for(3).workers == 3
    with pytest.raises(ValueError, match="workers must be >= 1, got 0"):
        executor_for(0)
