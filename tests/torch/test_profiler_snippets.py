"""The profiler's snippets of the documentation write a trace with steps, or no file at all."""

import os
import re
from pathlib import Path

import pytest

from simdp.traces import read_trace

torch = pytest.importorskip("torch")

DOCS = Path(__file__).parents[2] / "docs"


def snippet(page):
    (code,) = re.findall(
        r"```python\n(.*?profiler\.step\(\).*?)```", (DOCS / page).read_text(), re.S
    )
    return code


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize(
    ("page", "warm", "active"), [("tutorials/slow_step.md", 7, 4), ("guides/diagnose.md", 13, 5)]
)
@pytest.mark.parametrize("more", [-2, 1, 4, 5, 8, 12, 17])
def test_a_loop_of_any_length_leaves_no_empty_trace(page, warm, active, more, tmp_path):
    """A second cycle would begin behind the first, and end as an empty file."""
    weight = torch.ones(4, requires_grad=True)

    def train(batch):
        (weight * batch).sum().backward()

    (tmp_path / "traces").mkdir()
    known = {"torch": torch, "loader": range(warm + more), "rank": 0}
    known |= {"train": train, "train_step": train}
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        exec(snippet(page), known)
    finally:
        os.chdir(here)
    files = list((tmp_path / "traces").iterdir())
    assert len(files) == (more > 0)
    for file in files:
        trace = read_trace(file)
        assert len(trace.steps) == min(more, active)
        assert len(trace.kernels) > 0
