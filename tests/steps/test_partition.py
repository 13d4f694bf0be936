"""Who keeps what: whole tensors as torch deals them, and flat pieces."""

import json
from pathlib import Path

import numpy as np
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.steps.partition import Partition, ReplicatedPart, least_loaded
from simdp.workload.layers.base import Parameter, constant

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "g10_zero.json").read_text())
PIECES = ReplicatedPart(weights=False, gradients=False)


def tensors(shapes):
    return [
        Parameter(str(number), tuple(shape), constant(0)) for number, shape in enumerate(shapes)
    ]


@for_each("case", GOLDEN["partitions"])
def test_whole_tensors_are_dealt_as_by_torchs_zero_redundancy_optimizer(case):
    model, world_size = case.split("|w")
    parameters = tensors(GOLDEN["shapes"][model])
    owners = least_loaded([parameters], int(world_size))
    wanted = GOLDEN["partitions"][case]
    dealt = [
        [int(name) for name, owner in owners.items() if owner == rank]
        for rank in range(int(world_size))
    ]
    assert dealt == wanted["param_indices_per_rank"]
    ranks = np.arange(int(world_size))[None, :]
    owned = Partition(parameters, [], ranks, PIECES, owners).owned
    assert [sum(mine.values()) for mine in owned] == wanted["numel_per_rank"]
    assert [len(mine) for mine in owned] == wanted["tensors_per_rank"]


def test_groups_of_an_optimizer_are_dealt_one_after_the_other():
    first, second = tensors([(4,), (3,)]), [Parameter("late", (9,), constant(0))]
    assert least_loaded([first, second], 2) == {"0": 0, "1": 1, "late": 1}


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_pieces_of_a_unit_are_equal_and_hold_every_element_once(sizes, num_places):
    flat = [size for unit in sizes for size in unit]
    parameters, numbers = tensors([(size,) for size in flat]), iter(range(len(flat)))
    units = [[str(next(numbers)) for _ in unit] for unit in sizes]
    partition = Partition(parameters, units, np.arange(num_places)[None, :], PIECES)
    owned = [{name: p.stop - p.start for name, p in mine.items()} for mine in partition.pieces]
    assert [list(mine.items()) for mine in partition.owned] == [list(m.items()) for m in owned]
    seen = {parameter.name: np.zeros(parameter.num_elements, int) for parameter in parameters}
    for unit in range(len(units)):
        length = partition.piece_elements(unit)
        for place, of_unit in enumerate(partition.cut(unit)):
            inside = np.zeros(length, int)
            for name, mine, here in of_unit:
                seen[name][mine] += 1
                inside[here] += 1
                assert partition.pieces[place][name] == mine
            assert inside.max(initial=0) <= 1
        assert 0 <= length * num_places - partition.unit_elements(unit) < num_places
    assert all((times == 1).all() for times in seen.values())


def test_ranks_at_one_place_of_their_groups_have_the_same():
    ranks = np.arange(6).reshape(3, 2)
    partition = Partition(tensors([(5,)]), [["0"]], ranks, PIECES)
    assert partition.by_rank([7, 8]).tolist() == [7, 8, 7, 8, 7, 8]
