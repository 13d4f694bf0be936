"""What is no array: a hint that leads to one whose memory is the tensor's."""

import sys
import types

import numpy as np
import pytest

import simdp.distributed as dist


@pytest.fixture
def tensor(monkeypatch):
    """As if torch were there: an object of a class of its package, with memory of its own."""

    class Tensor:
        def __init__(self):
            self.memory = np.arange(2.0)

        def detach(self):
            return self

        def numpy(self):
            return self.memory

    package = types.ModuleType("torch")
    package.Tensor = Tensor
    monkeypatch.setitem(sys.modules, "torch", package)
    Tensor.__module__ = "torch"
    return Tensor()


def test_a_torch_tensor_gets_a_hint_that_works(run, refused, tensor):
    hint = refused(lambda rank: dist.all_reduce(tensor))
    assert hint == (
        "all_reduce: tensor is a torch tensor; give tensor.detach().numpy(), which shares its "
        "memory."
    )
    expression = hint.split("give ")[1].split(", which")[0]

    def program(rank):
        dist.all_reduce(eval(expression, {"tensor": tensor}))

    run(program, 1)
    array = eval(expression, {"tensor": tensor})
    array[0] = 5
    assert tensor.memory.tolist() == [5.0, 1.0]


def test_a_torch_tensor_in_a_list_is_named_by_its_place(refused, tensor):
    def program(rank):
        dist.all_gather([np.zeros(2), tensor], np.zeros(2))

    assert refused(program) == (
        "all_gather: tensor_list[1] is a torch tensor; give tensor_list[1].detach().numpy(), which "
        "shares its memory."
    )
