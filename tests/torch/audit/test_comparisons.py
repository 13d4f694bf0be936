"""Differences of recorded gradients, by hand."""

import numpy as np
import pytest

pytest.importorskip("torch")

from simdp.torch.audit.comparisons import Rounding, RunView, compare
from simdp.torch.audit.records import RankRecord, RunRecord, StepRecord


def view(gradient):
    """Return a run of one step, of a weight of norm 2."""
    step = StepRecord(0, 0, 0, None, 0, (0.1,))
    step.grads["w"] = None if gradient is None else np.array([gradient, 0.0])
    step.after["w"] = np.array([2.0, 0.0])
    return RunView(RunRecord(1, [RankRecord(steps=[step])]))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1e-3, 1e-3 * (1 + 1e-6), True),
        (1e-3, 1.1e-3, False),
        (0.0, 1e-3, False),
        (0.0, 3e-16, True),  # below a unit in the last place of the weight in float64
        (3e-16, 1e-16, True),
        (None, 3e-16, True),
        (0.0, 1e-15, False),
    ],
)
def test_a_gradient_left_by_sums_that_cancel_is_zero(one, other, same):
    assert compare(view(one), view(other), Rounding()).same == same
