"""The leaderboard's points are the scenarios', nobody sees what it is asked, scores are errors."""

import json
from pathlib import Path

import pytest
from for_each import for_each, for_some
from leaderboard_points import LEFT_OUT, POINTS, SHOWN, named

from benchmarks.leaderboard import gather, page, scores
from benchmarks.leaderboard.adapters import ADAPTERS, AdapterError, Answer
from benchmarks.leaderboard.adapters.ours import Ours, replay, sites
from benchmarks.leaderboard.folds import RULES, Fold, folds
from benchmarks.leaderboard.points import FAST, SLOW, digest_of, settings, wires
from simdp.studies.validate.folds import folds_of, items_of
from simdp.studies.validate.jobs import load_measured

SOME = ("horovod", "nccl-tests/nccl_l40s-roce.yaml", "nvidia/dgx-1_resnet50.yaml")
"""Scenarios that are quick to read; more under --long."""


def as_text(scenarios):
    return json.loads("".join(gather.lines(scenarios)))["scenarios"]


# The points --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_points_are_those_of_the_scenarios():
    made = as_text(gather.gathered([gather.SCENARIOS / name for name in SOME]))
    kept = json.loads(gather.FILE.read_text())["scenarios"]
    assert made == {name: kept[name] for name in made}
    assert len(made) > 5


@pytest.mark.long
def test_the_file_is_what_all_scenarios_make():
    assert "".join(gather.lines(gather.gathered(gather.files()))) == gather.FILE.read_text()


def test_every_scenario_is_in_the_file():
    files = {path.relative_to(gather.SCENARIOS) for path in gather.files()}
    assert all((gather.SCENARIOS / name).exists() for name in gather.LATER)
    assert files.isdisjoint(Path(name) for name in gather.LATER)
    assert set(POINTS.sources) == {path.with_suffix("").as_posix() for path in files}
    assert all(POINTS.sources.values())


def test_points_are_told_apart_and_have_what_their_classes_need():
    assert len({point["id"] for point in POINTS.points}) == len(POINTS.points)
    assert {wires(point) for point in POINTS.points} == {FAST, SLOW}
    assert all(point["measured_s"] > 0 for point in POINTS.points)
    assert set(POINTS.noise) == {point["cluster"] for point in POINTS.points}


def test_a_measured_time_is_the_scenarios():
    (first, *_) = named("torch-ddp/ptddp-v100_resnet50")
    assert (first["measured_s"], first["ranks"], first["strategy"]) == (0.097, 1, "single")
    assert first["micro_step_s"] == 0.097
    last = named("torch-ddp/ptddp-v100_resnet50")[-1]
    assert (last["bucket_bytes"], last["ranks"], last["nodes"]) == (2**20, 16, 2)
    assert last["gradient_bytes"] == 4 * 25_557_032  # torchvision's resnet50
    assert last["inter_bandwidth"] == 4 * 12.5e9


def test_another_figure_makes_another_digest():
    raw = json.loads(gather.FILE.read_text())["scenarios"]
    assert digest_of(raw) == POINTS.digest
    raw["torch-ddp/ptddp-v100_resnet50"]["points"][0]["measured_s"] *= 1.01
    assert digest_of(raw) != POINTS.digest


# The rules ---------------------------------------------------------------------------------------


@pytest.mark.slow
@for_some("rule", RULES, 2)
def test_nobody_sees_what_it_is_asked(rule):
    cut = folds(POINTS.points, rule)
    assert len(cut) > 10
    for fold in cut:
        asked = fold.asked()
        hidden = {point["id"] for point in fold.left_out}
        assert not hidden & {point["id"] for point in asked.shown}
        assert not any({"measured_s", "role"} & set(point) for point in asked.questions)
        inside = {settings(point) for point in fold.left_out}
        own = [one for one in asked.shown if one["cluster"] == fold.left_out[0]["cluster"]]
        assert not any(settings(point) in inside for point in own)


def test_a_point_that_is_asked_cannot_be_shown_under_another_name():
    twin = {**LEFT_OUT, "id": "b#0", "scenario": "b", "role": "calibration"}
    fold = Fold("model", "a fold", (SHOWN, twin), (LEFT_OUT,))
    with pytest.raises(ValueError, match="fold a fold: shows b#0, which it asks for"):
        fold.asked()
    (cut,) = folds([SHOWN, twin, LEFT_OUT], "calibrated")
    assert [point["id"] for point in cut.shown] == ["a#0"]


def test_a_site_that_is_left_out_shows_what_one_device_takes_alone():
    cut = {fold.name: fold for fold in folds(POINTS.points, "cluster")}
    shown = [point for point in cut["hkbu"].shown if point["site"] == "hkbu"]
    assert {point["role"] for point in shown} == {"given"}
    assert {point["site"] for point in cut["hkbu"].left_out} == {"hkbu"}


@for_each("rule", ["model", "kind", "nodes", "collective"])
def test_what_is_left_out_is_nowhere_in_what_is_shown(rule):
    for fold in folds(POINTS.points, rule)[:8]:
        cluster = fold.left_out[0]["cluster"]
        key = "family" if rule == "kind" else rule
        what = {point.get(key) for point in fold.left_out}
        assert len(what) == 1
        own = [one for one in fold.shown if one["cluster"] == cluster and one["role"] != "given"]
        assert not what & {point.get(key) for point in own}


@pytest.mark.long
@pytest.mark.slow
@for_each("rule", ["model", "kind", "nodes", "collective", "cluster"])
def test_folds_are_those_of_leave_out(rule):
    tables = ("nccl_polaris-tcp.yaml", "nccl_rtx2080ti-pcie3.yaml")
    paths = [
        gather.SCENARIOS / "hkbu",
        *(gather.SCENARIOS / "nccl-tests" / name for name in tables),
    ]
    clusters = {"hkbu-10gbe", "hkbu-ib100", "hkbu-100gbe", "polaris-tcp", "rtx2080ti-pcie3"}
    mine = [point for point in POINTS.points if point["cluster"] in clusters]
    theirs = {
        fold.name: sum(len(i.table.times) if i.is_table else not i.is_fitted for i in fold.left_out)
        for fold in folds_of(items_of(load_measured(paths)), rule)
    }
    assert {fold.name: len(fold.left_out) for fold in folds(mine, rule)} == {
        name: count for name, count in theirs.items() if count
    }


# Scores ------------------------------------------------------------------------------------------


class Fixed(ADAPTERS["ring"]):
    """Answers times that a test chooses."""

    def __init__(self, name, answers):
        self.name, self._answers = name, answers

    def answers(self, asked):
        return self._answers


def test_scores_are_the_errors_of_what_was_answered():
    points = [SHOWN, LEFT_OUT, {**LEFT_OUT, "id": "a#2", "ranks": 16, "measured_s": 1.0}]
    few = POINTS._replace(points=tuple(points), noise={"here": 0.01})
    first = Fixed("simdp", [Answer(0.77, 0.6, 0.8), Answer(0.5, 0.4, 0.6)])
    other = Fixed("other", [Answer(1.4), None])
    best = Fixed("best", [Answer(0.7), Answer(0.9)])
    board = scores.played(few, [first, other, best], rules=["calibrated"])
    one, two, three = board.scores
    assert (one.mean_error, one.median_error, one.worst_error) == (0.3, 0.3, 0.5)
    assert (one.inside, one.tau, one.answered) == (0.5, -1.0, 2)
    assert (two.mean_error, two.answered, two.asked, two.inside) == (1.0, 1, 2, None)
    assert two.first_error == 0.1
    assert (two.nearer, three.nearer) == ((), ("here",))
    assert [page.cells(score, board.scores)[2] for score in board.scores] == [
        "30 %",
        "100 %",
        "**5.0 %** ★",
    ]


def test_scores_are_read_as_they_are_written(tmp_path):
    board = scores.read()
    (tmp_path / "scores.json").write_text(board.to_json())
    assert scores.read(tmp_path / "scores.json") == board
    assert board.to_json() == scores.FILE.read_text()


def test_the_page_is_what_the_stored_scores_say():
    board = scores.read()
    assert board.digest == POINTS.digest
    assert (board.version, board.date) == (POINTS.version, POINTS.date)
    assert page.page(board) == page.PAGE.read_text()


@pytest.mark.slow
def test_the_stored_scores_are_what_the_entrants_answer_today():
    ours = Ours(POINTS)
    board = scores.played(
        POINTS, [ours, *(kind() for kind in ADAPTERS.values())], 0, ["collective"]
    )
    stored = [score for score in scores.read().scores if score.rule == "collective"]
    assert list(board.scores) == stored


# simdp's own answers -----------------------------------------------------------------------------


@pytest.mark.slow
def test_simdp_is_asked_again_and_remembers(tmp_path):
    few = POINTS._replace(points=tuple(named("horovod/horovod-25g-tcp_resnet101")))
    path, said = tmp_path / "answers.json", []
    with pytest.raises(AdapterError, match="has not been asked under this rule; --replay does"):
        Ours(few, path).answers(folds(few.points, "calibrated")[0].asked())
    replay(few, ["calibrated"], path, said.append)
    replay(few, ["calibrated"], path, said.append)
    assert said == ["calibrated: horovod/horovod-25g-tcp_resnet101"]
    ours = Ours(few, path)
    board = scores.played(few, [ours], rules=["calibrated"])
    assert board.scores[0].mean_error < 0.05
    changed = few._replace(digest="another")
    with pytest.raises(AdapterError, match="its answers are of other points"):
        Ours(changed, path).answers(folds(few.points, "calibrated")[0].asked())


@pytest.mark.long
@pytest.mark.slow
def test_simdp_is_asked_again_where_points_changed(tmp_path):
    own, other = named("horovod/horovod-25g-tcp_resnet101"), named("nvidia/dgx-1_resnet50")
    both = POINTS._replace(points=(*own, *other))
    path, said = tmp_path / "answers.json", []
    replay(both, ["calibrated"], path, said.append)
    kept = json.loads(path.read_text())
    of = {**kept["of"], "nvidia/dgx-1_resnet50": "that of other points"}
    path.write_text(json.dumps({**kept, "digest": "of other points", "of": of}))
    replay(both, ["calibrated"], path, said.append)
    assert said[2:] == ["calibrated: nvidia/dgx-1_resnet50"]
    again = json.loads(path.read_text())
    assert {**again, "cpu_s": 0} == {**kept, "cpu_s": 0}


def test_scenarios_of_one_site_are_asked_together():
    groups = sites(POINTS.points)
    names = [name for group in groups for name in group]
    assert sorted(names) == sorted(POINTS.sources)
    (hkbu,) = [group for group in groups if "hkbu/hkbu-10gbe_resnet50" in group]
    assert len(hkbu) == 6
