"""Charges: every instant of a step goes to one thing."""

import numpy as np
import pytest
from for_each import for_each
from trace_maker import RankMaker, job

from simdp.studies.diagnose.case import put_together
from simdp.studies.diagnose.charges import KINDS, LOADER


def charged(maker):
    case = put_together([maker.trace()], None)
    return {kind: float(case.charge(kind)[0, 0]) for kind in KINDS}


def one_step():
    maker = RankMaker(device=None)
    maker.step(1, 0.0, 1.0)
    return maker


def test_all_charges_add_up_to_the_steps():
    case = put_together(job([[0, 0.05, 0.2], [0.1, 0, 0]]), None)
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
    case = put_together(job([[0, 0.05, 0.2]] * 3), None)
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
    case = put_together([maker.trace() for maker in makers], None)
    assert case.charge("wait").max() == case.charge("transfer").max() == 0
    assert case.charged[0].transferred == pytest.approx(0.1)


def test_from_one_rank_the_shortest_of_like_collectives_is_the_transfer():
    maker = RankMaker(0, 2)
    for step, lasts in enumerate([0.01, 0.31, 0.11]):
        maker.step(step + 1, float(step), step + 1.0)
        maker.kernel(float(step), step + 0.5, launched=float(step))
        maker.call("all_reduce", step + 0.5, step + 0.5 + lasts, launched=float(step))
        maker.kernel(step + 0.5 + lasts, step + 1.0, launched=float(step))
    case = put_together([maker.trace()], None)
    assert case.charge("wait")[:, 0] == pytest.approx([0.0, 0.3, 0.1])
    assert case.blamed[:, 0, -1] == pytest.approx([0.0, 0.3, 0.1])
