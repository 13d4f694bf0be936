"""Backends: how programs name them, and which there are."""

import pytest
from for_each import for_each

import simdp.distributed as dist
from simdp.distributed.launch import chosen_backend
from simdp.errors import ProgramError


@for_each(
    ("asked", "found"),
    [
        (None, "mpi"),
        ("nccl", "nccl"),
        ("NCCL", "nccl"),
        ("Gloo", "gloo"),
        ("cpu:gloo,cuda:nccl", "nccl"),
        ("CUDA:NCCL,CPU:GLOO", "nccl"),
        ("cpu:gloo", "gloo"),
    ],
)
def test_a_backend_may_be_spelled_as_in_torch(asked, found):
    assert chosen_backend(asked, "mpi", "new_group") == found


@for_each(
    ("asked", "said"),
    [
        (7, "new_group: backend is 7; give one of gloo, mpi, nccl."),
        (
            "cpu:gloo,nccl",
            "new_group: backend 'cpu:gloo,nccl' must name one for each device, as "
            "'cpu:gloo,cuda:nccl'.",
        ),
        (
            "cpu:gloo,cpu:nccl",
            "new_group: backend 'cpu:gloo,cpu:nccl' must name one for each device, as "
            "'cpu:gloo,cuda:nccl'.",
        ),
        (
            "cpu:glo,cuda:nccl",
            "unknown backend 'glo'. Did you mean 'gloo'? Known: gloo, mpi, nccl.",
        ),
    ],
)
def test_a_wrong_backend_is_one_line(asked, said):
    with pytest.raises(ProgramError) as caught:
        chosen_backend(asked, "nccl", "new_group")
    assert str(caught.value) == said


def test_all_backends_are_there_outside_of_programs_too():
    assert dist.is_available()
    assert dist.is_nccl_available()
    assert dist.is_gloo_available()
    assert dist.is_mpi_available()
    assert dist.is_backend_available("NCCL")
    assert not dist.is_backend_available("ucc")
