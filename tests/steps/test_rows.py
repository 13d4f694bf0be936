"""Rows: each parameter is cut by itself, as torch.chunk does; nothing is lost, or there twice."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simdp.steps.partition import by_rows
from simdp.workload.layers.base import Parameter

SHAPES = st.lists(
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4
)


def dealt(shapes, places, groups=1, after_forward=0):
    parameters = [Parameter(f"p{i}", shape, 1.0) for i, shape in enumerate(shapes)]
    ranks = np.arange(places * groups).reshape(groups, places)
    names = [parameter.name for parameter in parameters]
    return by_rows(parameters, [names[:1], names[1:]], ranks, after_forward)


def test_rows_are_those_of_torch_chunk():
    found = dealt([(61, 32), (3, 6)], 4)
    rows = [mine.get("p0", 0) // 32 for mine in found.owned]
    assert rows == [16, 16, 16, 13]
    assert [mine.get("p1", 0) // 6 for mine in found.owned] == [1, 1, 1, 0]
    assert found.piece_elements(0) == 16 * 32


@given(SHAPES, st.integers(1, 7), st.integers(1, 2))
def test_pieces_make_up_the_whole_and_lie_apart_in_what_travels(shapes, places, groups):
    found = dealt(shapes, places, groups)
    for name, size in found.sizes.items():
        kept = [mine[name] for mine in found.pieces if name in mine]
        assert [one for piece in kept for one in range(piece.start, piece.stop)] == [*range(size)]
    counted = [{n: piece.stop - piece.start for n, piece in mine.items()} for mine in found.pieces]
    assert counted == found.owned
    for unit in range(2):
        for of_place in found.cut(unit):
            ends = [0, *(inside.stop for _, _, inside in of_place)]
            assert all(
                inside.start >= end for (_, _, inside), end in zip(of_place, ends, strict=False)
            )
            assert ends[-1] <= found.piece_elements(unit)


@given(SHAPES, st.sampled_from([(4, 2), (6, 2), (6, 3), (8, 4)]))
def test_a_few_neighbours_have_equal_parts_of_the_padded_elements(shapes, sizes):
    places, few = sizes
    found = dealt(shapes, places, after_forward=few)
    parts = found.after_forward
    assert parts.ranks.shape == (places // few, few)
    for unit in range(2):
        assert parts.piece_elements(unit) * few == found.piece_elements(unit) * places
    for name, size in found.sizes.items():
        assert sum(mine.get(name, 0) for mine in parts.owned) == size


def test_many_places_share_what_they_are_told():
    found = dealt([(16384, 8), (100, 8)], 16384)
    assert len({id(mine) for mine in found.owned}) <= 4
    assert sum(map(len, found.owned)) == 16384 + 100
