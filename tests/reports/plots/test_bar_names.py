"""What is written into bars: names in ever fewer letters, layers gathered into blocks."""

from __future__ import annotations

import numpy as np
import pytest
from for_each import for_each

from simdp.reports.plots.spans import blocks, fits, shorter
from simdp.reports.plots.style import TINY_SIZE, text_width


def evenly_spaced(layers, width):
    """Blocks of layers that are all as wide as this [points]."""
    edges = np.arange(len(layers) + 1) * width
    return blocks(layers, edges[:-1], edges[1:])


@for_each(
    ("name", "forms"),
    [
        ("all_reduce bucket 12", ["all_reduce bucket 12", "bucket 12", "b12"]),
        ("broadcast buffers 0", ["broadcast buffers 0", "buffers 0", "buffers", "buffers"]),
        (
            "all_gather layer1.0.bn1 statistics",
            [
                "all_gather layer1.0.bn1 statistics",
                "layer1.0.bn1 statistics",
                "layer1.0.bn1",
                "bn1",
            ],
        ),
        ("forward", ["forward", "fwd"]),
        ("backward", ["backward", "bwd"]),
        ("update", ["update"]),
        ("step 12", ["step 12", "12"]),
        ("all_reduce will reduce", ["all_reduce will reduce", "will reduce", "will", "will"]),
    ],
)
def test_a_name_is_written_in_ever_fewer_letters(name, forms):
    assert shorter(name) == forms


def test_only_buckets_are_called_b():
    ends = {shorter(f"broadcast {what} 0")[-1] for what in ("buffers", "counters", "parameters")}
    assert ends == {"buffers", "counters", "parameters"}


def test_a_name_needs_its_own_width_and_a_little_more():
    width = text_width("bucket 0", TINY_SIZE)
    assert not fits("bucket 0", width)
    assert fits("bucket 0", width + 3)


def test_the_width_of_a_text_grows_with_its_letters_and_its_size():
    assert text_width("ii", 8) < text_width("mm", 8)
    assert text_width("mm", 16) == pytest.approx(2 * text_width("mm", 8), rel=0.05)


RESNET = [f"layer{i}.{j}.{name}" for i in (1, 2, 3) for j in (0, 1) for name in ("conv1", "bn1")]


@for_each(
    ("width", "named"),
    [
        (40.0, ["layer1.0", "layer1.1", "layer2.0", "layer2.1", "layer3.0", "layer3.1"]),
        (8.0, ["layer1", "layer2", "layer3"]),
        (2.0, []),
    ],
)
def test_blocks_are_as_small_as_their_names_allow(width, named):
    found = evenly_spaced(RESNET, width)
    assert list(dict.fromkeys(found.values())) == named
    assert set(found) == (set(RESNET) if named else set())


def test_a_block_without_room_stays_unnamed_among_others():
    found = blocks(
        ["conv1", "layer1.0.conv", "layer2.0.conv", "layer3.0.conv", "loss"],
        np.array([0.0, 1, 101, 201, 301]),
        np.array([1.0, 101, 201, 301, 302]),
    )
    assert list(found.values()) == ["", "layer1.0", "layer2.0", "layer3.0", ""]


def test_a_block_is_named_by_the_end_of_its_path():
    layers = [f"bert.encoder.layer.{i}.attention.self.query" for i in range(4)]
    assert list(evenly_spaced(layers, 50.0).values()) == [f"layer.{i}" for i in range(4)]


def test_two_blocks_are_too_few():
    assert evenly_spaced(["encoder.0.a", "encoder.1.a"], 90.0) == {}


def test_blocks_in_several_pieces_are_not_shown():
    assert evenly_spaced(["layers.0", "act", "layers.1", "act", "layers.2", "act"], 90.0) == {}


def test_no_layers_have_no_blocks():
    assert evenly_spaced([], 1.0) == {}
