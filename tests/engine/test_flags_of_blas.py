"""The processor's flags, which BLAS may set at finite numbers, stop no run."""

import numpy as np
import pytest
from every_strategy import ON_RANKS, run_of, scenario
from for_each import for_some

import simdp
from simdp.arrays import product
from simdp.engine import compression
from simdp.workload.layers.linear import Linear


def flagged(work):
    """The same work after a product that sets the flag of an invalid operation."""

    def with_flag(*args, **kwargs):
        np.matmul(np.array([[np.inf, -np.inf]]), np.ones((2, 1)))
        return work(*args, **kwargs)

    return with_flag


@pytest.fixture
def blas(monkeypatch):
    for owner, name in ((Linear, "forward"), (Linear, "backward"), (compression, "times")):
        monkeypatch.setattr(owner, name, flagged(getattr(owner, name)))
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        yield


def test_the_flag_is_raised_outside_of_a_run(blas):
    with pytest.raises(FloatingPointError, match="invalid value encountered in matmul"):
        compression.times(np.ones((5, 1)), np.ones((1, 1)))


@for_some("strategy", ON_RANKS, every=12, ids=str)
def test_the_numbers_of_a_run_go_on(strategy, blas):
    """Without `simulate`, which ignores flags of its own arithmetic."""
    run = run_of(scenario(strategy, numerics=True, steps=2))
    assert len(list(run.script())) > 0
    assert all(np.isfinite(record.loss) for record in run.numbers.records)


@pytest.mark.slow
def test_so_do_those_of_workers_and_a_server(blas):
    result = simdp.simulate(scenario({"kind": "parameter_server"}, numerics=True, steps=2))
    assert np.isfinite(result.metrics["loss"]).all()


def test_products_outside_of_a_run_keep_real_infinities(blas):
    assert product(np.full((5, 1), 1e200), np.full((1, 1), 1e200)).tolist() == [[np.inf]] * 5
    assert np.isnan(product([np.inf, -np.inf], [1.0, 1.0]))
    x, y, z = (np.random.default_rng(n).standard_normal((4, 4)) for n in range(3))
    assert product(x, y, z).tobytes() == (x @ y @ z).tobytes()
