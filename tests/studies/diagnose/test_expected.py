"""Expected: what the machine gives is what `python -m simdp collective` says of it."""

from pathlib import Path

import pytest
from for_each import for_each

from simdp.errors import ScenarioError
from simdp.studies.collective import Request, answer
from simdp.studies.diagnose.expected import CollectiveSize, ReferenceMachines


def test_a_machine_gives_what_the_command_for_collectives_says():
    size = CollectiveSize("all_reduce", 2.0**24, tuple(range(16)))
    (found,) = ReferenceMachines("dgx-h100", None, 16).seconds([size]).values()
    study = answer(Request("all_reduce", Path("dgx-h100"), world_size="16", sizes="16MiB:16MiB:2"))
    assert found.usual == found.longest == pytest.approx(study.curves[0].points[0].seconds)


def test_a_group_of_one_node_is_faster_than_one_with_a_rank_on_each():
    sizes = [
        CollectiveSize("all_gather", 1e8, ranks)
        for ranks in (tuple(range(8)), tuple(range(0, 64, 8)))
    ]
    inside, across = ReferenceMachines("dgx-a100", None, 64).seconds(sizes).values()
    assert inside.usual < across.usual


def test_without_a_machine_the_device_suggests_one_and_the_slowest_is_the_limit():
    found = ReferenceMachines(None, "Tesla V100-SXM2-32GB", 8)
    assert found.name is not None
    assert "suggested by v100-sxm2-32gb" in found.source
    (should,) = found.seconds([CollectiveSize("all_reduce", 1e8, tuple(range(8)))]).values()
    assert should.longest > should.usual


@for_each(
    ("device", "words"),
    [
        (None, "the traces name no device"),
        ("NVIDIA H100 NVL", "no machine of the catalogue has NVIDIA H100 NVL"),
    ],
)
def test_without_a_known_device_there_is_no_yardstick_and_it_is_said(device, words):
    found = ReferenceMachines(None, device, 8)
    assert found.name is None
    assert words in found.source
    assert found.seconds([CollectiveSize("all_reduce", 1e8, (0, 1))]) == {}


def test_a_machine_that_is_not_there_is_one_line():
    with pytest.raises(ScenarioError, match=r"^--machine: dgx-h10: there is no such file"):
        ReferenceMachines("dgx-h10", None, 8)


def test_what_is_unknown_is_left_out():
    found = ReferenceMachines("dgx-a100", None, 8)
    assert (
        found.seconds(
            [CollectiveSize("send_recv", 1e6, (0, 1)), CollectiveSize("all_reduce", 1e6, (9, 10))]
        )
        == {}
    )


def test_few_ranks_of_each_node_are_spread_over_nodes_as_large_as_the_machine_s():
    reference = ReferenceMachines("dgx-a100", None, 4)
    found = reference.across("all_reduce", 2.0**30, 2, 2)
    size = CollectiveSize("all_reduce", 2.0**30, (0, 1, 8, 9))
    (whole,) = ReferenceMachines("dgx-a100", None, 16).seconds([size]).values()
    assert found == whole
    within = reference.seconds([CollectiveSize("all_reduce", 2.0**30, (0, 1, 2, 3))])
    assert found.usual > 4 * next(iter(within.values())).usual


def test_more_ranks_of_a_node_than_it_has_devices_have_no_time():
    assert ReferenceMachines("dgx-a100", None, 32).across("all_reduce", 1e9, 2, 16) is None
