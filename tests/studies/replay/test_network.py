"""Links are fitted to what transfers took."""

import pytest

from simdp.studies.replay.network import fitted
from simdp.studies.replay.timeline import StepCollective


def sent(name, nbytes, seconds, n=4):
    return StepCollective(name, name, nbytes, "float32", "0", n, 0, False, seconds, 0.0, seconds)


def ring(nbytes, n, alpha=20e-6, bandwidth=10e9):
    return 2 * (n - 1) * (alpha + nbytes / (n * bandwidth))


def test_a_latency_and_a_bandwidth_come_back():
    found = fitted([sent("all_reduce", s, ring(s, 4)) for s in (1e4, 1e6, 3e7)])
    assert found.alpha == pytest.approx(20e-6, rel=1e-9)
    assert found.bandwidth == pytest.approx(10e9, rel=1e-9)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert (found.num_sizes, found.smallest, found.largest) == (3, 1e4, 3e7)


def test_gathers_and_scatters_go_half_as_far():
    each = [sent("all_gather", s, ring(s, 4) / 2) for s in (1e5, 1e7)]
    each += [sent("reduce_scatter", 1e6, ring(1e6, 4) / 2)]
    found = fitted(each)
    assert found.bandwidth == pytest.approx(10e9, rel=1e-9)


def test_no_figure_is_below_zero():
    """A larger transfer that took less has waited less: then one of the two explains all."""
    found = fitted([sent("all_reduce", 1e5, 2e-3), sent("all_reduce", 1e6, 1e-3)])
    assert found.alpha >= 0
    assert found.bandwidth > 0
    assert found.error > 0.1


def test_one_size_alone_is_all_latency_or_all_bandwidth():
    found = fitted([sent("all_reduce", 1e6, ring(1e6, 2, alpha=0.0), n=2)])
    assert ring(1e6, 2, found.alpha, found.bandwidth) == pytest.approx(1e-4, rel=1e-9)


def test_what_has_no_size_or_no_partner_tells_nothing():
    nothing = [sent("all_reduce", float("nan"), 1e-3), sent("all_reduce", 1e6, 1e-3, n=1)]
    assert fitted(nothing) is None
    assert fitted([]) is None
