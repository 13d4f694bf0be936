"""Closed forms against a count of rounds, and what they say of one rank and of none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdp.collectives import FAMILIES, closed_forms

FORMS = {
    "ring_all_reduce_time": (),
    "ring_reduce_scatter_time": (),
    "ring_broadcast_time": (4,),
    "tree_all_reduce_time": (4,),
    "tree_reduce_time": (4,),
    "naive_all_reduce_time": (True,),
}
ALPHA, BETA = 5e-6, 1 / 25e9

every_form = pytest.mark.parametrize("name", FORMS)


def time(name, nbytes, world_size, alpha=ALPHA, beta=BETA):
    return getattr(closed_forms, name)(nbytes, world_size, alpha, beta, *FORMS[name])


def test_every_closed_form_is_tested_here():
    assert set(FORMS) == {name for name in vars(closed_forms) if name.endswith("_time")}


@every_form
def test_one_rank_takes_no_time(name):
    assert time(name, 1e9, 1) == 0


@every_form
@pytest.mark.parametrize("world_size", [0, -1])
def test_no_rank_is_refused(name, world_size):
    with pytest.raises(ValueError, match=f"^world_size must be >= 1, got {world_size}$"):
        time(name, 1.0, world_size)


@every_form
@given(world_size=st.integers(2, 1024), nbytes=st.floats(0, 1e12))
def test_time_is_linear_in_alpha_and_beta(name, world_size, nbytes):
    latency, transfer = time(name, nbytes, world_size, beta=0), time(name, nbytes, world_size, 0)
    whole = time(name, nbytes, world_size)
    assert whole == pytest.approx(latency + transfer, rel=1e-12)
    assert time(name, 2 * nbytes, world_size, 0) == pytest.approx(2 * transfer, rel=1e-12)


@pytest.mark.parametrize("world_size", range(2, 18))
@pytest.mark.parametrize(
    ("name", "family", "kind"),
    [
        ("ring_all_reduce_time", "all_reduce", "ring"),
        ("ring_reduce_scatter_time", "reduce_scatter", "ring"),
        ("ring_reduce_scatter_time", "all_gather", "ring"),
        ("ring_broadcast_time", "broadcast", "ring"),
        ("tree_all_reduce_time", "all_reduce", "tree"),
        ("tree_reduce_time", "reduce", "tree"),
        ("tree_reduce_time", "broadcast", "tree"),
        ("naive_all_reduce_time", "all_reduce", "naive"),
    ],
)
def test_every_round_costs_one_alpha(name, family, kind, world_size):
    nbytes = 4 * 512 * 1024  # four chunks in a pipeline, as FORMS says
    plan = FAMILIES[family][kind]().plan(world_size, nbytes)
    assert time(name, nbytes, world_size, alpha=1.0, beta=0.0) == plan.num_rounds


def test_a_ring_of_eight_as_in_the_paper():
    wanted = 14 * (5e-6 + 25e6 / 8 / 25e9)
    assert time("ring_all_reduce_time", 25e6, 8) == pytest.approx(wanted, rel=1e-15)


def test_a_shared_port_takes_one_flow_after_another():
    alone, shared = (
        closed_forms.naive_all_reduce_time(1e6, 5, 0.0, BETA, sharing) for sharing in (False, True)
    )
    assert shared == 4 * alone
