"""Scripts on virtual ranks, and on real processes with gloo to compare with."""

import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import real_processes
from real_torch import torch_installed

if torch_installed():
    import torch

    # At its first pass autograd counts devices, and refuses forks, as of audits, if there are any.
    torch.ones(1, requires_grad=True).backward()


@pytest.fixture(autouse=True)
def no_folder_of_tests_is_a_library(monkeypatch):
    """What pytest adds to the path for `tests/workload` makes its `datasets` one of those."""
    beside = str(Path(__file__).parents[1] / "workload")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != beside])


@pytest.fixture
def write(tmp_path):
    """Write a script."""

    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def virtually(write):
    """Run a script on virtual ranks of one node."""
    from simdp.distributed.launch import find
    from simdp.torch.launch import run, script

    def virtually(text, world_size=2, *arguments, cluster="dgx-h100", per_node=None):
        where = find(cluster, world_size, per_node or world_size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(script(write(text)), where, [str(each) for each in arguments])

    return virtually


@pytest.fixture
def really(write, tmp_path):
    """Run a script on as many processes, which meet by a file."""

    def really(text, world_size=2, *arguments):
        real_processes.run(write(text, "real.py"), world_size, arguments, tmp_path)

    return really


@pytest.fixture
def same(virtually, really, tmp_path):
    """Run a script both ways; what each rank saves must be equal to the bit."""
    import torch

    def same(text, world_size=2, **options):
        folders = [tmp_path / "virtual", tmp_path / "real"]
        for folder in folders:
            folder.mkdir(exist_ok=True)
        result = virtually(text, world_size, folders[0], **options)
        really(text, world_size, folders[1])
        for rank in range(world_size):
            ours, theirs = (
                torch.load(folder / f"{rank}.pt", map_location="cpu") for folder in folders
            )
            assert ours.keys() == theirs.keys()
            for name, value in ours.items():
                assert torch.equal(value, theirs[name]), (rank, name)
        return result, ours

    return same
