"""What is sent to spawned ranks: copies, but for the memory of tensors."""

import argparse

import pytest

torch = pytest.importorskip("torch")

from simdp.errors import ProgramError  # noqa: E402
from simdp.torch.spawning import SentCopies  # noqa: E402


def test_each_process_gets_a_copy_and_shares_tensors():
    args, tensor = argparse.Namespace(rank=0), torch.zeros(3)
    sent = SentCopies((args, tensor))
    (one, first), (other, second) = sent.made(), sent.made()
    one.rank = 5
    assert other.rank == args.rank == 0
    first[0] = 1
    assert second[0] == tensor[0] == 1


def test_what_no_process_can_get_is_refused():
    with pytest.raises(ProgramError, match="args cannot be sent to a process"):
        SentCopies((lambda: None,))
