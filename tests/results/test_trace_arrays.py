"""Traces as arrays: what comes back is what was laid out."""

import json

import numpy as np
import pytest
from for_each import for_each

from simdp.engine.simulate import simulate
from simdp.results.trace import Trace, arrays_of, trace_of


def rows(trace):
    """Every block and holding, with arrays as lists and the types of numbers."""
    return [
        [(np.shape(value), np.asarray(value).tolist()) for value in row]
        for row in (*trace.blocks, *trace.memory)
    ]


@for_each("numerics", [True, False])
def test_a_trace_comes_back_as_it_was(load, numerics):
    trace = simulate(load({"numerics": numerics}), fabric="vector", keep_trace=True).trace
    again = trace_of(arrays_of(trace))
    assert again.names == trace.names
    assert json.dumps(rows(again)) == json.dumps(rows(trace))  # 60 is not 60.0
    assert list(again.spans) == list(trace.spans)


def test_a_trace_without_spans_comes_back():
    again = trace_of(arrays_of(Trace([], ["a"])))
    assert (again.blocks, list(again.memory), again.names) == ([], [], ["a"])


def test_arrays_of_something_else_are_refused(load):
    arrays = arrays_of(simulate(load({"workload.steps": 1}), keep_trace=True).trace)
    for wrong in (
        {},
        {**arrays, "blocks.start": np.zeros(1)},
        {**arrays, "names": np.ones(2, "u1")},
    ):
        with pytest.raises((KeyError, ValueError, TypeError)):
            trace_of(wrong)
