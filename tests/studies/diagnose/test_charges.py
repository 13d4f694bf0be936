"""Each instant is charged to one cause, and waiting to the rank that is late."""

import numpy as np
import pytest
from for_each import for_each
from trace_maker import RankMaker, job

import simdp
from simdp.studies.diagnose.case import case_of
from simdp.studies.diagnose.charges import KINDS, is_steady, lateness
from simdp.studies.diagnose.expected import CollectiveSize, ReferenceMachines
from simdp.studies.diagnose.host import LOADER


def charged(maker):
    case = case_of([maker.trace()], None)
    return {kind: float(case.charge(kind)[0, 0]) for kind in KINDS}


def one_step():
    maker = RankMaker(device=None)
    maker.step(1, 0.0, 1.0)
    return maker


def test_all_charges_add_up_to_the_steps():
    case = case_of(job([[0, 0.05, 0.2], [0.1, 0, 0]]), None)
    total = sum(case.charge(kind) for kind in KINDS)
    assert total == pytest.approx(case.window)


def test_a_gap_is_the_hosts_if_the_next_kernel_was_not_launched_when_it_began():
    maker = one_step()
    maker.kernel(0.0, 0.3, launched=0.0)
    maker.kernel(0.5, 0.7, launched=0.45)
    maker.kernel(0.8, 1.0, launched=0.6)
    found = charged(maker)
    assert found["launch"] == pytest.approx(0.2)
    assert found["other"] == pytest.approx(0.1)
    assert found["compute"] == pytest.approx(0.7)


def test_a_gap_is_the_datas_while_the_loader_runs_and_while_only_a_batch_is_copied():
    maker = one_step()
    maker.kernel(0.0, 0.3, launched=0.0)
    maker.note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0.2, 0.45)
    maker.copy(0.5, 0.6)
    maker.kernel(0.6, 1.0, launched=0.55)
    found = charged(maker)
    assert found["input"] == pytest.approx(0.15 + 0.1)
    assert found["launch"] == pytest.approx(0.05)


@for_each(
    "name",
    [
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "## data_load ##",
        "get_batch",
        "## copy_batch_to_gpu ##",
    ],
)
def test_usual_names_of_loading_are_known(name):
    assert LOADER.search(name)
    assert not LOADER.search("## forward ##")
    assert not LOADER.search("Optimizer.step#SGD.step")


def test_a_copy_to_the_host_is_no_input():
    maker = one_step()
    maker.kernel(0.0, 0.5, launched=0.0)
    maker.kernel(0.5, 1.0, launched=0.4, kind=2, name="Memcpy DtoH (Device -> Pageable)")
    assert charged(maker)["input"] == 0


def test_waiting_in_the_open_is_for_the_rank_that_came_last():
    case = case_of(job([[0, 0.05, 0.2]] * 3), None)
    assert case.charge("wait") == pytest.approx(np.array([[0.2, 0.15, 0.0]] * 3))
    assert case.charge("transfer") == pytest.approx(0.01)
    assert case.blamed[:, 0, 2] == pytest.approx(0.2)
    assert case.blamed[:, :, 0] == pytest.approx(0.0)


def test_what_compute_hides_is_neither_waiting_nor_transfer():
    makers = [RankMaker(rank, 2) for rank in range(2)]
    for rank, maker in enumerate(makers):
        maker.step(1, 0.0, 1.0)
        maker.kernel(0.0, 0.8, launched=0.0)
        maker.call("all_reduce", (0.3, 0.6)[rank], 0.7, launched=0.0)
        maker.kernel(0.8, 1.0, launched=0.1)
    case = case_of([maker.trace() for maker in makers], None)
    assert case.charge("wait").max() == case.charge("transfer").max() == 0
    assert case.charged[0].transferred == pytest.approx(0.1)


def test_from_one_rank_the_shortest_of_like_collectives_is_the_transfer():
    maker = RankMaker(0, 2)
    for step, lasts in enumerate([0.01, 0.31, 0.11]):
        maker.step(step + 1, float(step), step + 1.0)
        maker.kernel(float(step), step + 0.5, launched=float(step))
        maker.call("all_reduce", step + 0.5, step + 0.5 + lasts, launched=float(step))
        maker.kernel(step + 0.5 + lasts, step + 1.0, launched=float(step))
    case = case_of([maker.trace()], None)
    assert case.charge("wait")[:, 0] == pytest.approx([0.0, 0.3, 0.1])
    assert case.blamed[:, 0, -1] == pytest.approx([0.0, 0.3, 0.1])


SIZES = (10_000_000, 40_000_000, 80_000_000)


def alone(lasts):
    """One rank of eight, whose collectives last what ``lasts`` makes of their proper times."""
    sizes = [CollectiveSize("all_reduce", 4.0 * size, tuple(range(8))) for size in SIZES]
    should = ReferenceMachines("dgx-a100", None, 8).seconds(sizes)
    maker = RankMaker(0, 8, None)
    for step in range(4):
        maker.step(step + 1, float(step), step + 1.0)
        at = float(step)
        for place, size in enumerate(sizes):
            maker.kernel(at, at + 0.1, launched=float(step))
            lasted = lasts(place, should[size].usual)
            maker.call(
                "all_reduce", at + 0.1, at + 0.1 + lasted, SIZES[place], launched=float(step)
            )
            at += 0.1 + lasted
        maker.kernel(at, step + 1.0, launched=float(step))
    return simdp.diagnose([maker.trace()], machine="dgx-a100", remedies=False).verdict


def test_what_is_late_by_the_same_time_is_a_peer():
    first = alone(lambda place, proper: proper + (0.2 if place == 0 else 0.0))[0]
    assert (first.cause, first.ranks) == ("straggler", ())
    assert first.seconds == pytest.approx(0.2)
    assert "a rank whose trace is not here is late" in first.evidence


def test_what_is_slow_by_the_same_factor_is_a_link():
    first = alone(lambda _, proper: 50 * proper)[0]
    assert (first.cause, first.ranks) == ("slow_link", ())
    assert "50.0 times what it should" in first.evidence


def test_what_is_as_fast_as_it_should_be_is_neither():
    assert {one.cause for one in alone(lambda _, proper: proper)} <= {
        "compute_bound",
        "exposed_communication",
    }


def test_steady_is_what_all_steps_have_alike():
    assert is_steady([1.0, 1.1, 0.9, 1.0])
    assert not is_steady([0.0, 0.0, 4.0, 0.0])
    assert not is_steady([1.0, 1.0])


def divided(late):
    """Divide lateness given by step and rank: all wait for the last of each step."""
    late = np.asarray(late, dtype=float)
    waits = late.max(axis=1, keepdims=True) - late
    blamed = np.zeros((*late.shape, late.shape[1]))
    for step, row in enumerate(late):
        blamed[step, :, row.argmax()] = waits[step]
    return lateness(waits, blamed)


def test_one_rank_late_in_every_step_is_a_straggler_with_all_of_the_loss():
    found = divided([[0, 0, 0.2, 0]] * 5)
    assert found.stragglers == (2,)
    assert found.straggling == pytest.approx(0.2)
    assert found.moving == pytest.approx(0.0)


def test_one_rank_late_in_some_steps_is_a_straggler_too():
    found = divided([[0, 0, 0.2 * (step % 2), 0] for step in range(10)])
    assert found.stragglers == (2,)
    assert found.straggling > found.moving


def test_all_ranks_of_a_slow_node_are_stragglers():
    found = divided([[0, 0, 0.2, 0.2 + 0.01 * (step % 2)] for step in range(6)])
    assert found.stragglers == (2, 3)
    assert found.straggling > 0.18


def test_lateness_that_goes_round_is_imbalance():
    found = divided(0.2 * np.eye(4)[[0, 1, 2, 3, 0, 1, 2, 3]])
    assert found.moving == pytest.approx(0.2)
    assert found.straggling == 0
    assert set(found.others) == {0, 1, 2, 3}


@for_each(("num_ranks", "at_most"), [(2, 0.2), (4, 0.1), (16, 0.02)])
def test_jitter_is_seldom_taken_for_a_straggler(num_ranks, at_most):
    random = np.random.default_rng(3)
    wrong = [
        (found := divided(random.lognormal(0, 0.5, (10, num_ranks)))).straggling > found.moving
        for _ in range(100)
    ]
    assert np.mean(wrong) <= at_most


@for_each("num_ranks", [2, 4, 16])
def test_a_straggler_is_found_beneath_jitter(num_ranks):
    random = np.random.default_rng(4)
    for _ in range(50):
        late = random.lognormal(0, 0.05, (5, num_ranks))
        late[:, 1] += 0.5
        found = divided(late)
        assert found.stragglers == (1,)
        assert found.straggling > found.moving


def test_two_ranks_and_few_steps_do_not_tell_chance_from_a_straggler():
    """One of two ranks is the later one in all of three steps once in four."""
    doubtful = divided([[0, 0.1], [0, 0.2], [0, 0.02]])
    assert doubtful.doubtful == (1,)
    assert (doubtful.straggling, doubtful.stragglers) == (0, ())
    sure = divided([[0, 0.2], [0, 0.21], [0, 0.19]])
    assert (sure.doubtful, sure.stragglers) == ((), (1,))


@for_each("num_steps", [2, 3, 4, 6])
def test_ranks_that_take_turns_are_seldom_a_straggler_in_few_steps(num_steps):
    random = np.random.default_rng(5)
    wrong = [
        (found := divided(random.normal(0, 1, (num_steps, 2)))).straggling > found.moving
        for _ in range(200)
    ]
    assert np.mean(wrong) <= 0.1


def test_a_single_step_names_the_rank_that_is_waited_for_most():
    waits = np.array([[0.9, 0.0, 0.2]])
    blamed = np.zeros((1, 3, 3))
    blamed[0, 0] = [0, 0.7, 0.2]
    blamed[0, 2] = [0, 0.2, 0]
    found = lateness(waits, blamed)
    assert (found.stragglers, found.others) == ((1,), (2,))
    assert (found.straggling, found.moving) == (pytest.approx(0.7), pytest.approx(0.2))


def test_nobody_is_late_where_nobody_waits():
    found = divided(np.zeros((3, 4)))
    assert (found.straggling, found.moving, found.stragglers) == (0, 0, ())
    assert divided(np.zeros((3, 1))).stragglers == ()
