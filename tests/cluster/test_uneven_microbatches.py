"""Micro-batches of varying length over 32 ranks, as in a job that was measured.

The trace SE of ByteDance-Seed/StragglerAnalysis (Lin et al., OSDI 2025): 32 data-parallel ranks, 8
micro-batches a step, two pipeline stages. Its ranks are alike on average, and the slow one changes
every step. Forward and backward of a micro-batch go up and down together, other micro-batches do
not, so that what a rank takes is the sum of 8 draws with the published mean and spread.
"""

from math import log, sqrt
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.cluster.stragglers import LognormalStraggler
from simdp.rng import stream
from simdp.scenario import checked

RANKS, MICROBATCHES, STEPS = 32, 8, 2000
STAGES = {  # mean and standard deviation of forward and of backward of a micro-batch [s]
    0: ((0.1613, 0.0433), (0.3463, 0.1511)),
    1: ((0.2777, 0.0486), (0.4836, 0.1520)),
}
MEASURED = {0: (0.1391, 1.3820), 1: (0.0947, 1.2609)}
"""Coefficient of variation over the ranks, and the slowest over the mean."""


def spread(stage, fixed=0.0):
    """Sigma of a lognormal with a stage's mean, without a fixed share of it, and spread."""
    mean, deviation = (sum(pair) for pair in zip(*STAGES[stage], strict=True))
    return sqrt(log(1 + (deviation / mean / (1 - fixed)) ** 2))


def factors(stage, fixed=0.0):
    chosen = LognormalStraggler(sigma=spread(stage, fixed), draws=MICROBATCHES)
    drawn = np.array(
        [chosen.slowdown(k, RANKS, stream(0, "straggler", 0, k)) for k in range(STEPS)]
    )
    return fixed + (1 - fixed) * drawn / drawn.mean()


def over_ranks(drawn):
    mean = drawn.mean(axis=1)
    return (drawn.std(axis=1) / mean).mean(), (drawn.max(axis=1) / mean).mean()


@for_each(("stage", "cv", "slowest"), [(0, 0.13, 1.31), (1, 0.091, 1.21)])
def test_draws_of_each_micro_batch_spread_the_ranks_as_the_published_figures_say(
    stage, cv, slowest
):
    """0.132 and 1.32 in the first stage, 0.091 and 1.21 in the second.

    Measured were 0.139 and 1.382, 0.095 and 1.261. The rest of the slowest rank's excess, a sixth,
    is no more jitter of ranks: their means over the steps differ by 1.7 %, as means of 43 draws do.
    It is the tail of single micro-batches, which a lognormal with their mean and spread lacks; see
    below.
    """
    found = over_ranks(factors(stage))
    assert found == pytest.approx((cv, slowest), rel=0.03)
    assert found[0] < MEASURED[stage][0]
    assert found[1] < MEASURED[stage][1]


@for_each("stage", STAGES)
def test_a_part_that_is_alike_and_a_heavier_tail_make_up_for_the_rest(stage):
    """Micro-batches that are packed to the same number of tokens differ in attention alone.

    Attention goes by the squares of the lengths. With 65 % of the time alike and the rest
    lognormal, at the same mean and spread, the slowest rank is within 2 % of the measured one in
    both stages. The share was chosen with these two figures in sight.
    """
    _, slowest = over_ranks(factors(stage, fixed=0.65))
    assert slowest == pytest.approx(MEASURED[stage][1], rel=0.02)


def test_the_mean_of_one_draw_is_the_draw():
    one, as_ever = LognormalStraggler(sigma=0.3, draws=1), LognormalStraggler(sigma=0.3)
    for step in range(5):
        drawn = [each.slowdown(step, 4, stream(7, "straggler", 0, step)) for each in (one, as_ever)]
        assert (drawn[0] == drawn[1]).all()


def test_more_draws_spread_by_the_root_of_their_number():
    def deviation(draws):
        chosen = LognormalStraggler(sigma=0.2, draws=draws)
        return chosen.slowdown(0, 20_000, stream(0, "straggler", 0, 0)).std()

    assert deviation(1) / deviation(16) == pytest.approx(4, rel=0.03)


def test_a_step_of_all_ranks_takes_what_the_slowest_one_computes():
    workload = {
        "model": {"kind": "mlp", "widths": [8, 8]},
        "microbatch": 1,
        "grad_accum": MICROBATCHES,
        "compute": {"kind": "measured", "points": [{"microbatch": 1, "step_time": "507.6 ms"}]},
        "steps": 44,
    }
    jitter = {"kind": "lognormal", "sigma": spread(0), "draws": MICROBATCHES}
    cluster = {"world_size": RANKS, "device": "a100-sxm4-80gb", "topology": "switch"}
    cluster |= {"link": {"alpha": "0 s", "bandwidth": "1 PB/s"}, "stragglers": [jitter]}
    found = simdp.simulate(checked({"cluster": cluster, "workload": workload}, Path())).metrics
    assert found["step_time_s"] / found["compute_s"] == pytest.approx(1.31, rel=0.03)
