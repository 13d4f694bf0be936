"""A small cluster of links, on which times are easy to tell, and programs that must fail."""

import pytest

import simdp.distributed as dist
from simdp.cluster import Cluster
from simdp.errors import ProgramError

ALPHA, BANDWIDTH = 1e-6, 1e9


@pytest.fixture
def box():
    """Four devices behind a switch; a route is two links, and as fast as one."""
    return Cluster.model_validate(
        {
            "world_size": 4,
            "device": "a100-sxm4-80gb",
            "topology": "switch",
            "link": {"alpha": "1 us", "bandwidth": "1 GB/s"},
        }
    )


@pytest.fixture
def run(box):
    """Run a program on the box, after init_process_group."""

    def run(function, world_size=4, **arguments):
        def program(rank):
            dist.init_process_group()
            return function(rank)

        return dist.launch(program, world_size, **{"cluster": box, **arguments})

    return run


@pytest.fixture
def refused(run):
    """Run what must be refused; return the error without the place in the program."""

    def refused(function, world_size=2):
        with pytest.raises(ProgramError) as caught:
            run(function, world_size)
        line = str(caught.value)
        assert "\n" not in line
        place, _, said = line.partition(": ")
        assert place.startswith("rank ")
        assert ".py:" in place
        return said

    return refused
