"""Ranks of torch scripts: whose turn it is, and what was charged to their clocks."""

import pytest

torch = pytest.importorskip("torch")

from simdp.distributed.launch import find  # noqa: E402
from simdp.engine.programs.runtime import Runtime  # noqa: E402
from simdp.errors import ProgramError  # noqa: E402
from simdp.torch import ranks  # noqa: E402


def test_who_is_no_rank_is_told_so():
    assert ranks.current() is None
    with pytest.raises(ProgramError, match=r"^barrier: this code runs on no rank; .* thread\.$"):
        ranks.asking("barrier")


def test_what_is_charged_is_one_span_of_each_activity():
    where = find("dgx-a100", 1)
    runtime = Runtime(where.cluster, {}, 0, lambda rank: None)

    def body(number):
        me = ranks.Rank(number, runtime, 8, {}, [])
        ranks.become(me)
        assert ranks.current() is ranks.asking("barrier") is me
        me.charge(1.0, "forward")
        me.charge(2.0, "forward")
        assert (me.clock, runtime.clock[0]) == (3.0, 0.0)
        me.charge(4.0, "backward")
        assert me.settle() == me.clock == 7.0

    played = runtime.run(body)
    spans = [(span.activity, span.start, span.end) for span in played.trace.spans]
    assert spans == [("forward", 0.0, 3.0), ("backward", 3.0, 7.0)]
