from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from simdp.reports import theme
from simdp.reports.charts.timeline import MAX_ROWS, window_of
from simdp.reports.plots.text import ABOUT
from simdp.results.trace import COMM_LANE

pytestmark = pytest.mark.slow


def bars(ax, activity):
    (found,) = [c for c in ax.collections if c.get_label() == activity]
    return [path.vertices[:4] for path in found.get_paths()]


def test_rank_0_is_on_top_and_compute_above_communication(single, drawn):
    (ax,) = drawn("timeline", single)
    bottom, top = ax.get_ylim()
    assert bottom > top
    assert ax.get_yticklabels()[0].get_text().startswith("0, 2, 3\n")
    highest_comm = min(corners[:, 1].min() for corners in bars(ax, "comm"))
    assert min(corners[:, 1].min() for corners in bars(ax, "forward")) < highest_comm


def test_the_last_two_steps_are_shown_from_their_start(single, drawn):
    (ax,) = drawn("timeline", single)
    trace = single.points[0].trace
    shown = (trace.step >= 3) & (trace.lane <= COMM_LANE)
    length = trace.end[shown].max() - trace.start[shown].min()
    assert ax.get_title(loc="left") == "Timeline of steps 4–5"
    assert ax.get_xlabel() == "Time since the start of step 4 [us]"
    assert ax.get_xlim() == pytest.approx((0, length * 1e6))


def test_a_run_of_one_step_is_shown_alone(play, drawn):
    (ax,) = drawn("timeline", play(set={"workload.steps": 1}))
    assert ax.get_title(loc="left") == "Timeline of step 1"


def test_bars_are_as_long_as_the_spans_that_they_stand_for(single, drawn):
    (ax,) = drawn("timeline", single)
    trace = single.points[0].trace
    pixel = ax.get_xlim()[1] / 1000
    for activity in ("forward", "backward", "comm", "wait"):
        mine = trace.select(activity) & (trace.step >= 3) & (trace.rank < 2)  # one of each row
        length = (trace.end[mine] - trace.start[mine]).sum() * 1e6
        drawn_bars = bars(ax, activity)
        found = sum(np.ptp(corners[:, 0]) for corners in drawn_bars)
        assert found == pytest.approx(length, abs=2 * pixel * len(drawn_bars))


def test_every_activity_has_its_colour_and_what_shares_one_has_a_hatch(single, drawn):
    (ax,) = drawn("timeline", single)
    colors = {c.get_label(): c.get_facecolor() for c in ax.collections if len(c.get_facecolor())}
    for activity in ("forward", "backward", "comm"):
        assert tuple(colors[activity][0]) == to_rgba(theme.FILLS[activity].color)
    assert {c.get_hatch() for c in ax.collections} >= {
        theme.FILLS["backward"].hatch,
        theme.FILLS["wait"].hatch,
    }
    looks = [(fill.color, fill.hatch) for fill in theme.FILLS.values()]
    assert len(set(looks)) == len(looks)


def test_buckets_are_named_where_there_is_room(single, drawn):
    (ax,) = drawn("timeline", single)
    assert any("bucket" in text.get_text() for text in ax.texts)


def names_in_bars(ax):
    return {text.get_text() for text in ax.texts}


@pytest.fixture(scope="module")
def resnet(play):
    model = {"kind": "resnet", "layers": [2, 2], "image_size": 32, "num_classes": 4}
    return play(
        set={
            "cluster.world_size": 2,
            "workload.model": model,
            "workload.dataset": "images",
            "workload.steps": 1,
            "numerics": False,
        }
    )


def test_layers_are_gathered_into_blocks_where_there_is_room(resnet, drawn):
    (ax,) = drawn("timeline", resnet)
    assert {"layer1.0", "layer1.1", "layer2.0", "layer2.1"} <= names_in_bars(ax)
    assert not {"backward", "bwd"} & names_in_bars(ax)


def test_blocks_cover_what_one_bar_would(resnet, drawn, monkeypatch):
    (ax,) = drawn("timeline", resnet)
    gathered = bars(ax, "backward")
    monkeypatch.setattr("simdp.reports.plots.spans.blocks", lambda *_: {})
    (ax,) = drawn("timeline", resnet)
    plain = bars(ax, "backward")
    assert len(gathered) > len(plain) == 2
    pixel = ax.get_xlim()[1] / 1000
    for side in (np.min, np.max):
        found, wanted = (side([corners[:, 0] for corners in some]) for some in (gathered, plain))
        assert found == pytest.approx(wanted, abs=2 * pixel)


def test_a_straggler_is_marked_by_colour_by_marker_and_by_its_factor(single, drawn):
    (ax,) = drawn("timeline", single)
    labels = ax.get_yticklabels()
    assert [label.get_text() for label in labels] == ["0, 2, 3\n3 ranks", "▲ 1 · 1.5×"]
    assert [label.get_color() == theme.STRAGGLER for label in labels] == [False, True]
    assert "slow rank" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_ranks_that_do_the_same_share_a_row(large, drawn):
    (ax,) = drawn("timeline", large)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["0–20, 22–39\n39 ranks", "▲ 21 · 1.5×"]
    assert ax.get_xlabel() == "Time since the start of step 4 [ms]"  # none is left out


@pytest.fixture(scope="module")
def jittery(play):
    jitter = {"kind": "lognormal", "sigma": 0.2}
    return play(set={"cluster.world_size": 40, "cluster.stragglers": [jitter], "numerics": False})


def test_of_many_different_ranks_the_slowest_are_shown_and_marked(jittery, drawn):
    (ax,) = drawn("timeline", jittery)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert len(labels) == MAX_ROWS
    left_out = r"\n16 of (39|40) groups of ranks are shown, the slowest among them$"
    assert re.search(left_out, ax.get_xlabel())
    trace = jittery.points[0].trace
    busy = [
        (trace.end - trace.start)[
            (trace.rank == rank) & (trace.step >= 3) & trace.select("forward", "backward")
        ].sum()
        for rank in range(40)
    ]
    slowest = {*np.argsort(busy)[::-1][:3].tolist()}
    names = [label.partition(" · ")[0] for label in labels if label.startswith("▲")]
    marked = [{*map(int, re.findall(r"\d+", name))} for name in names]  # others may look alike
    assert slowest <= set.union(*marked)
    assert all(ranks & slowest for ranks in marked)


@pytest.fixture(scope="module")
def two_ways(play):
    return play(set={"sweep": {"strategy.overlap": [False, True]}, "numerics": False})


def test_points_of_a_short_sweep_lie_below_each_other_with_their_names(two_ways, drawn):
    (ax,) = drawn("timeline", two_ways)
    headings = [text.get_text() for text in ax.texts if text.get_fontweight() == "bold"]
    times = [point.metrics["step_time_s"] * 1e6 for point in two_ways.points]
    assert headings == [
        f"overlap: {name} · {us:.4g} us per step"
        for name, us in zip(("false", "true"), times, strict=True)
    ]
    assert ax.get_title(loc="left") == "Timeline of step 5 by overlap"
    assert len(ax.get_yticklabels()) == 4  # a straggler, and the others, of both
    assert ax.get_xlim()[1] == pytest.approx(max(times), rel=1e-6)


def test_what_a_picture_is_of_stands_below_its_title(two_ways, single, drawn):
    for study, said in (
        (single, "mlp 64-64-10 · 4 × a100-sxm4-80gb, ring · ddp"),
        (two_ways, "mlp 64-64-10 · 4 × a100-sxm4-80gb, ring · ddp"),
    ):
        (ax,) = drawn("timeline", study)
        assert [t.get_text() for t in ax.texts if t.get_gid() == ABOUT] == [said]


def test_the_warm_up_is_not_shown(play, drawn):
    (ax,) = drawn("timeline", play(set={"workload.steps": 2}))
    assert ax.get_title(loc="left") == "Timeline of step 2"


# Ranks that do not wait for each other -----------------------------------------------------------

SERVER = {"kind": "parameter_server", "updates": "asynchronous"}


def apart(play, world_size=4, factor=4.0, steps=40, **more):
    slow = {"kind": "slow_rank", "rank": 1, "factor": factor}
    return play(
        set={
            "cluster.world_size": world_size,
            "cluster.stragglers": [slow],
            "strategy": SERVER,
            "collectives": {},
            "workload.steps": steps,
            "numerics": False,
            **more,
        }
    )


def shares_at_work(ax, num_ranks):
    """The part of the window that each rank computes in, from the top."""
    found = np.zeros(num_ranks)
    for activity in ("forward", "backward"):
        for corners in bars(ax, activity):
            found[round(corners[:, 1].mean())] += np.ptp(corners[:, 0])
    return found / ax.get_xlim()[1]


def num_rows(ax):
    return len(ax.get_yticklabels())


@pytest.mark.parametrize("factor", [4.0, 30.0])
def test_steps_that_lie_apart_give_way_to_what_all_ranks_do_at_a_time(play, drawn, factor):
    study = apart(play, factor=factor)
    (ax,) = drawn("timeline", study)
    assert ax.get_title(loc="left") == "Timeline, each rank in its own step"
    assert "of the run" in ax.get_xlabel()
    assert shares_at_work(ax, num_rows(ax)).min() > 0.5
    trace = study.points[0].trace
    done = min(trace.end[(trace.rank == rank) & (trace.step >= 0)].max() for rank in range(4))
    window = window_of(trace)
    assert window.apart
    assert window.end == done
    for activity in ("forward", "backward", "comm"):
        for corners in bars(ax, activity):
            assert 0 <= corners[:, 0].min() <= corners[:, 0].max() <= ax.get_xlim()[1] + 1e-9


def test_forward_says_which_step_a_rank_is_in(play, drawn):
    (ax,) = drawn("timeline", apart(play))
    names = names_in_bars(ax)
    assert {"39", "40"} <= names
    assert any(name.startswith("step ") for name in names)  # the slow rank has room


def test_ranks_without_samples_are_not_who_is_done_first(play):
    sizes = {"workload.microbatch": None, "workload.global_batch": 6}  # torch.chunk: 2, 2, 2
    trace = apart(play, **sizes).points[0].trace
    window = window_of(trace)
    assert window.apart
    busy = trace.end[(trace.rank == 0) & (trace.step >= 0)].max()
    assert 0 < window.begin < window.end == busy


def test_asynchronous_ranks_of_a_short_run_are_shown_from_their_start(play, drawn):
    (ax,) = drawn("timeline", apart(play, steps=2))
    assert ax.get_title(loc="left") == "Timeline of step 2"
