"""The gradient noise scale against closed forms: linear regression, whose covariance is known."""

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.engine.slowdown import squares
from simdp.results.metrics import Squares, noise_scale

pytestmark = pytest.mark.slow

D, N, SIGMA = 6, 4096, 1.5


def test_two_squares_give_the_signal_and_the_noise():
    """|g_b|^2 = |G|^2 + S / b, exactly."""
    one = Squares(small=4.0 + 32.0 / 8, large=4.0 + 32.0 / 64, batch=8, global_batch=64)
    assert one.signal == pytest.approx(4.0)
    assert one.noise == pytest.approx(32.0)
    found = noise_scale([one, one])
    assert found["steps"] == 2
    assert found["noise_scale"] == pytest.approx(8.0)
    assert found["samples"] == pytest.approx(9.0)
    assert found["steps_taken"] == pytest.approx(1.125)


def test_nothing_is_said_where_chance_hides_the_signal_or_nothing_was_measured():
    assert noise_scale([]) is None
    hidden = noise_scale([Squares(small=8.0, large=0.5, batch=1, global_batch=8)])
    assert hidden["signal"] < 0
    assert (hidden["noise_scale"], hidden["samples"]) == (None, None)


def test_a_steps_squares_are_of_the_ranks_and_of_their_mean():
    gradients = [{"w": np.array([3.0, 0.0])}, {"w": np.array([0.0, 4.0])}]
    found = squares(gradients, np.array([8, 8]), loss_scale=2.0)
    assert found == Squares(12.5 / 4, 6.25 / 4, 8, 16)
    assert squares(gradients, np.array([8, 7]), 1.0) is None
    assert squares(gradients[:1], np.array([8]), 1.0) is None
    assert squares([{"w": np.array([np.inf])}] * 2, np.array([8, 8]), 1.0) is None


@pytest.fixture
def regression(tmp_path):
    """Data of a linear model with noise, and weights at 0, which hardly move."""
    random = np.random.Generator(np.random.PCG64(3))
    x = random.standard_normal((N, D))
    true = np.linspace(0.5, 1.5, D)
    y = x @ true + SIGMA * random.standard_normal(N)
    np.savez(tmp_path / "data.npz", x=x, y=y[:, None])
    np.savez(tmp_path / "start.npz", **{"layers.0.weight": np.zeros((1, D))})
    each = -2 * y[:, None] * x  # gradients of single samples of (w x - y)^2 at w = 0
    return true, each


WORKLOAD = {
    "model": {"kind": "mlp", "widths": [D, 1], "bias": False},
    "dataset": {"kind": "npz", "path": "data.npz"},
    "weights": "start.npz",
    "loss": "mse",
    "optimizer": {"kind": "sgd", "lr": 1e-15},
    "microbatch": 8,
    "dtype": "float64",
    "shuffle": True,
    "epochs": 4,
    "gradient_noise": True,
}


@pytest.mark.parametrize(
    ("epochs", "chance"), [(4, 0.03), pytest.param(8, 0.02, marks=pytest.mark.long)]
)
def test_the_noise_scale_of_linear_regression_is_what_its_covariance_says(
    load, regression, epochs, chance
):
    """Tr(cov) / |G|^2 over the data, and ``d + 1 + d sigma^2 / |w|^2`` over all such data.

    Drawing without replacement leaves N / (N - 1) of it; 512 steps leave 3 % of both squares to
    chance, and 1,024 steps 2 %.
    """
    true, each = regression
    mean = each.mean(axis=0)
    trace = float(((each - mean) ** 2).sum(axis=1).mean())
    found = simdp.simulate(load(workload={**WORKLOAD, "epochs": epochs})).gradient_noise
    assert found["steps"] == epochs * N // 32
    assert found["signal"] == pytest.approx(float(mean @ mean), rel=chance)
    assert found["noise"] == pytest.approx(trace, rel=chance)
    assert found["noise_scale"] == pytest.approx(trace / float(mean @ mean), rel=2 * chance)
    expected = D + 1 + D * SIGMA**2 / float(true @ true)
    assert found["noise_scale"] == pytest.approx(expected, rel=0.1)


@pytest.mark.long
def test_micro_steps_and_a_loss_scale_do_not_change_it(load, regression):
    brief = {**WORKLOAD, "epochs": 2}
    whole = simdp.simulate(load(workload=brief)).gradient_noise
    parts = {**brief, "microbatch": 4, "grad_accum": 2}
    found = simdp.simulate(load(workload=parts)).gradient_noise
    assert found["steps"] == whole["steps"]
    assert found["noise_scale"] == pytest.approx(whole["noise_scale"], rel=0.15)
    scaled = {**brief, "dtype": "float32", "precision": {"kind": "amp", "init_scale": 1024}}
    half = simdp.simulate(load(workload=scaled)).gradient_noise
    assert half["noise_scale"] == pytest.approx(whole["noise_scale"], rel=0.02)


def test_it_outlives_a_stop_and_a_file(load, regression, tmp_path):
    scenario = load(workload={**WORKLOAD, "epochs": 1})
    whole = simdp.simulate(scenario)
    part = simdp.simulate(scenario, stop_after=50, keep_state=True)
    part.state.save(tmp_path / "s.npz")
    rest = simdp.simulate(scenario, resume=type(part.state).load(tmp_path / "s.npz"))
    assert rest.gradient_noise == whole.gradient_noise


REFUSED = [
    ({"numerics": False}, "numerics is false"),
    ({"cluster.world_size": 1}, "one rank has no other gradient to compare"),
    ({"strategy": "local_sgd"}, "no gradients of the same weights; use ddp"),
    (
        {"strategy": "data_parallel", "workload.global_batch": 32, "workload.microbatch": None},
        "use ddp",
    ),
    ({"strategy": "fsdp"}, "fsdp keeps no whole gradient; use ddp"),
    ({"workload.loss": {"kind": "mse", "reduction": "sum"}}, "adds losses up"),
]


@for_each(("keys", "said"), REFUSED)
def test_what_has_no_noise_to_measure_is_refused(refuse, keys, said):
    (line,) = refuse({"workload.gradient_noise": True, **keys})
    assert line.startswith("workload.gradient_noise: ")
    assert said in line
    assert line.endswith("or leave this out.")
