"""What accelerate keeps once per process, each rank has for itself."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from types import SimpleNamespace  # noqa: E402

from accelerate.state import PartialState  # noqa: E402

from simdp.torch.launch import Libraries  # noqa: E402


def test_each_rank_sees_its_own_state():
    part, one, other = Libraries(), SimpleNamespace(state={}), SimpleNamespace(state={})
    before = dict(PartialState._shared_state)
    with part.installed():
        part.begin(one)
        PartialState._shared_state["process_index"] = 0
        part.leave(one)
        part.begin(other)
        assert PartialState._shared_state == {}
        PartialState._shared_state["process_index"] = 1
        part.leave(other)
        part.enter(one)
        assert PartialState._shared_state["process_index"] == 0
        part.end(one)
    assert dict(PartialState._shared_state) == before
