"""The loss scale against torch.amp.GradScaler's, step by step."""

import json
from pathlib import Path

from for_each import for_each

from simdp.workload.precision import GradScaler, ScalerSettings

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDED = json.loads((GOLDEN / "g07_gradscaler.json").read_text())
TRAJECTORIES = {
    name: RECORDED[name]
    for name in (
        "growth_interval_1",
        "inf_at_5_interval_boundary",
        "inf_consecutive_2_3_4",
        "main_inf_at_3_9",
        "nan_at_3_9",
        "no_inf",
        "scale_overflow_guard",
        "seed002_unscale_clip_order_inf_3_9",
    )
} | {f"ddp_{rank}": RECORDED["ddp_w2_inf_only_on_rank1"][rank] for rank in ("rank0", "rank1")}


@for_each("name", TRAJECTORIES)
def test_scale_and_tracker_follow_torchs(name):
    recorded = TRAJECTORIES[name]
    settings = ScalerSettings(  # growth factor 2 and backoff 0.5, as RECORDED["params"] says
        init_scale=recorded["scale_used"][0],
        growth_interval=max(recorded["growth_tracker"]) + 1,
    )
    scaler = GradScaler(settings)
    for at, step in enumerate(recorded["records"]):
        assert scaler.scale == step["scale_used"] == recorded["scale_used"][at]
        assert step["skipped"] == (step["step"] in recorded["skipped_steps"])
        scaler.update(step["grad_has_inf_after_allreduce"])
        assert scaler.scale == step["scale_after"] == recorded["scale_after"][at]
        assert scaler.growth_tracker == step["growth_tracker"] == recorded["growth_tracker"][at]


@for_each("name", TRAJECTORIES)
def test_the_recorded_steps_are_skipped_exactly_where_the_scale_must_back_off(name):
    recorded = TRAJECTORIES[name]
    found = [s["step"] for s in recorded["records"] if s["grad_has_inf_after_allreduce"]]
    assert found == recorded["skipped_steps"]


def test_every_trajectory_of_the_file_is_compared():
    others = {"description", "torch", "params", "rule", "default_hyperparams"}
    named = set(TRAJECTORIES) - {"ddp_rank0", "ddp_rank1"} | {"ddp_w2_inf_only_on_rank1"}
    assert set(RECORDED) - others == named


def test_defaults_are_torchs():
    defaults = dict(RECORDED["default_hyperparams"])
    scaler = GradScaler(ScalerSettings())
    assert scaler.growth_tracker == defaults.pop("_growth_tracker")
    assert scaler.scale == defaults.pop("scale")
    assert {name: getattr(scaler.settings, name) for name in defaults} == defaults


@for_each(
    ("growth", "backoff", "figures"),
    [  # scale and its inverse after torch._amp_update_scale_, every third step with inf
        (
            1.1,
            0.3,
            [
                (72089.6015625, 1.3871625924366526e-05),
                (79298.5625, 1.2610568774107378e-05),
                (23789.568359375, 4.2035229853354394e-05),
                (26168.525390625, 3.821384598268196e-05),
                (28785.37890625, 3.473985998425633e-05),
                (8635.61328125, 0.00011579953570617363),
                (9499.1748046875, 0.00010527230188017711),
                (10449.091796875, 9.570209658704698e-05),
            ],
        ),
        (
            1.3,
            0.7,
            [
                (85196.796875, 1.1737530257960316e-05),
                (110755.8359375, 9.028869499161374e-06),
                (77529.0859375, 1.2898384738946334e-05),
                (100787.8125, 9.921834134729579e-06),
                (131024.15625, 7.63218031352153e-06),
                (91716.90625, 1.0903115253313445e-05),
                (119231.9765625, 8.387011803279165e-06),
                (155001.5625, 6.451547960750759e-06),
            ],
        ),
    ],
)
def test_scale_and_inverse_are_rounded_as_torchs(growth, backoff, figures):
    scaler = GradScaler(ScalerSettings(65536.0, growth, backoff, 1))
    for step, (scale, inverse) in enumerate(figures):
        scaler.update(step % 3 == 2)
        assert (scaler.scale, scaler.inverse()) == (scale, inverse)


def test_a_scale_is_kept_as_float32_from_the_beginning():
    assert GradScaler(ScalerSettings(init_scale=0.1)).scale == 0.10000000149011612


def test_a_scale_that_may_not_grow_beyond_float32_begins_to_count_anew():
    scaler = GradScaler(ScalerSettings(init_scale=3e38, growth_interval=2))
    before = scaler.scale
    for tracker in (1, 0, 1, 0):
        scaler.update(False)
        assert (scaler.scale, scaler.growth_tracker) == (before, tracker)


def test_a_scale_that_backs_off_to_nothing_has_no_finite_inverse():
    scaler = GradScaler(ScalerSettings(init_scale=2.0**-126, backoff_factor=2.0**-24))
    assert scaler.inverse() == 2.0**126
    scaler.update(True)
    assert (scaler.scale, scaler.inverse()) == (0.0, float("inf"))
