"""The one further measurement that narrows what was asked for."""

import json

import numpy as np
import pytest
import yaml
from test_calibrate_ddp import BASE, FREE, ROLES, measured, write

from simdp.errors import ScenarioError
from simdp.results.calibration import Proposal
from simdp.studies.calibrate.ddp import calibrate_ddp
from simdp.studies.calibrate.next_measurement import Candidate, best, variance_left

C = np.array([[0.04, 0.01], [0.01, 0.09]])
GOAL = np.array([[0.3, 0.7]])


def test_what_is_left_is_what_bayes_says():
    rows = np.array([[[1.0, 0.0], [0.2, 0.8]], [[0.0, 0.0], [0.5, 0.5]]])
    found = variance_left(C, GOAL, rows, 0.05)
    for left, j in zip(found, rows, strict=True):
        after = np.linalg.inv(np.linalg.inv(C) + j.T @ j / 0.05**2)
        assert left == pytest.approx((GOAL @ after @ GOAL.T).item())


def test_of_several_predictions_the_mean_counts():
    goals = np.array([[0.3, 0.7], [1.0, 0.0]])
    each = [variance_left(C, goal[None], np.eye(2)[None], 0.05) for goal in goals]
    assert variance_left(C, goals, np.eye(2)[None], 0.05) == pytest.approx(np.mean(each))


def candidate(kind, ranks, *slopes, noise=0.02):
    return Candidate(Proposal(kind, f"{kind} {ranks}", ranks, (), 0.0), np.array(slopes), noise)


def test_the_best_of_each_kind_is_proposed_the_better_one_first():
    found = best(
        [
            candidate("table", 8, [1.0, 0.0], [0.0, 0.1]),
            candidate("table", 8, [0.0, 1.0], [0.1, 0.0]),
            candidate("step", 4, [0.3, 0.7]),
            candidate("step", 2, [1.0, 0.0]),
        ],
        C,
        GOAL,
    )
    assert [one.title for one in found] == ["step 4", "table 8"]
    variance = variance_left(C, GOAL, np.array([[[0.3, 0.7]]]), 0.02)
    assert found[0].after == pytest.approx(1.645 * variance.item() ** 0.5)


def test_of_those_that_are_nearly_as_good_the_one_on_the_fewest_ranks():
    some = [candidate("step", n, [0.3, 0.7 + 0.001 * n]) for n in (8, 4, 16)]
    assert [one.world_size for one in best(some, C, GOAL)] == [4]


def test_what_tells_nothing_is_no_proposal():
    assert best([candidate("step", 2, [0.0, 0.0])], C, GOAL) == []


def ask(folder, **more):
    path = folder / "asked.yaml"
    path.write_text(yaml.safe_dump({**BASE, "name": "asked", **more}))
    return path


LARGE = {**BASE["cluster"], "world_size": 32}


@pytest.mark.slow
def test_a_step_on_more_ranks_is_narrowed_by_a_table_and_by_a_step_on_fewer(tmp_path):
    file = write(tmp_path, measured(ROLES[:2] + ["predicted"] * 7))
    study = calibrate_ddp([file], FREE[:2], wanted=ask(tmp_path, cluster=LARGE))
    found = study.wanted
    assert found.target == "step of asked on 32 ranks"
    kinds = {one.kind: one for one in found.proposals}
    assert set(kinds) <= {"table", "step"}
    assert "table" in kinds
    table = kinds["table"]
    assert len(table.sizes) == 2
    assert table.world_size <= 32
    assert all(one.after < found.before for one in found.proposals)
    afters = [one.after for one in found.proposals]
    assert afters == sorted(afters)
    assert json.loads(study.to_json())["wanted"]["target"] == found.target


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"cluster": {**LARGE, "world_size": 31}}, "asked.yaml: cluster: world_size 31"),
        ({"collectives": {"cost": "links"}}, "asked.yaml: collectives.cost: unknown key 'hop'"),
    ],
)
def test_a_scenario_that_cannot_be_asked_for_is_refused(tmp_path, more, said):
    file = write(tmp_path, measured(ROLES[:2] + ["predicted"] * 7))
    with pytest.raises(ScenarioError) as caught:
        calibrate_ddp([file], FREE[:2], wanted=ask(tmp_path, **more))
    assert caught.value.problems[0].startswith("--for ")
    assert said in caught.value.problems[0]


@pytest.mark.slow
def test_a_scenario_that_is_not_there_is_refused(tmp_path):
    file = write(tmp_path, measured(ROLES[:2] + ["predicted"] * 7))
    with pytest.raises(ScenarioError, match=r"--for .*nobody"):
        calibrate_ddp([file], FREE[:2], wanted=tmp_path / "nobody.yaml")
