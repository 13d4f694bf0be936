"""The family of costs as a key of a scenario."""

import pytest

from simdp.collectives import Collectives
from simdp.collectives.costs import COSTS, Wiring
from simdp.errors import ScenarioError

ALONE = Wiring(2, 1, 2, 1e-6, 1e9, 0.0, float("inf"), 0)


def test_transfers_tell_the_time_unless_a_cost_is_given():
    assert Collectives().cost.kind == "links"
    assert not Collectives().cost.timed
    assert Collectives.model_validate({"cost": "nccl"}).cost.timed


def test_links_have_no_time_of_their_own():
    with pytest.raises(ValueError, match="cost links has no time of all_reduce"):
        Collectives().cost.seconds("all_reduce", 1.0, ALONE)
    assert Collectives().cost.problem_with("all_reduce", ALONE) is None


def test_every_kind_is_called_by_its_kind_and_lives_in_the_room():
    for kind, member in COSTS.items():
        assert member.model_fields["kind"].default == kind
        assert f"{member.__module__}.".startswith("simdp.collectives.costs.")


def test_a_cost_that_reads_no_file_is_settled(tmp_path):
    made = Collectives.model_validate({"cost": "nccl"})
    assert made.settled(tmp_path) == made


def test_a_file_that_is_missing_is_named(tmp_path):
    made = Collectives.model_validate({"cost": {"kind": "table", "path": "no.log"}})
    with pytest.raises(ScenarioError) as caught:
        made.settled(tmp_path)
    (line,) = caught.value.problems
    assert line.startswith(f"collectives.cost: {tmp_path / 'no.log'}")
