"""Expected: what the machine gives is what `python -m simdp collective` says of it."""

from pathlib import Path

import pytest
from for_each import for_each

from simdp.errors import ScenarioError
from simdp.studies.collective import Request, answer
from simdp.studies.diagnose.expected import CollectiveSize, Yardstick, whole_buffer


def test_a_machine_gives_what_the_command_for_collectives_says():
    size = CollectiveSize("all_reduce", 2.0**24, tuple(range(16)))
    (found,) = Yardstick("dgx-h100", None, 16).seconds([size]).values()
    study = answer(Request("all_reduce", Path("dgx-h100"), world_size="16", sizes="16MiB:16MiB:2"))
    assert found.usual == found.longest == pytest.approx(study.curves[0].points[0].seconds)


def test_a_group_of_one_node_is_faster_than_one_with_a_rank_on_each():
    sizes = [
        CollectiveSize("all_gather", 1e8, ranks)
        for ranks in (tuple(range(8)), tuple(range(0, 64, 8)))
    ]
    inside, across = Yardstick("dgx-a100", None, 64).seconds(sizes).values()
    assert inside.usual < across.usual


def test_without_a_machine_the_device_suggests_one_and_the_slowest_is_the_limit():
    found = Yardstick(None, "Tesla V100-SXM2-32GB", 8)
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
    found = Yardstick(None, device, 8)
    assert found.name is None
    assert words in found.source
    assert found.seconds([CollectiveSize("all_reduce", 1e8, (0, 1))]) == {}


def test_a_machine_that_is_not_there_is_one_line():
    with pytest.raises(ScenarioError, match=r"^--machine: dgx-h10: there is no such file"):
        Yardstick("dgx-h10", None, 8)


@for_each(
    ("name", "elements", "out", "nbytes"),
    [
        ("all_reduce", 100, 100, 400),
        ("all_gather", 100, 800, 3200),
        ("all_gather", 100, -1, 3200),
        ("reduce_scatter", 800, 100, 3200),
        ("scatter", 0, 100, 3200),
        ("gather", 100, 0, 3200),
        ("all_reduce", -1, -1, None),
    ],
)
def test_sizes_are_counted_as_nccl_tests_does(name, elements, out, nbytes):
    assert whole_buffer(name, elements, out, "float32", 8) == nbytes


def test_what_is_unknown_is_left_out():
    found = Yardstick("dgx-a100", None, 8)
    assert (
        found.seconds(
            [CollectiveSize("send_recv", 1e6, (0, 1)), CollectiveSize("all_reduce", 1e6, (9, 10))]
        )
        == {}
    )
