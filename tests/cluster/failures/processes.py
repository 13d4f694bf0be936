"""Processes of failures as the tests of them have them: made, drawn, refused."""

from itertools import islice, takewhile

import pytest
from pydantic import TypeAdapter, ValidationError

from simdp.cluster.failures import AnyFailures
from simdp.rng import stream
from simdp.spec import problems

HOUR = 3600.0

EXAMPLES = {
    "empirical": {"quantiles": ["100 h", "300 h", "2000 h"]},
    "exponential": {"mtbf": "1000 h"},
    "maintenance": {"every": "1 week", "duration": "2 h", "nodes": 3},
    "spot": {"lifetime": "3 h", "mean_downtime": "1 h"},
    "trace": {"path": "events.csv"},
    "weibull": {"mtbf": "1000 h", "shape": 0.7},
}
HAZARDS = ("empirical", "exponential", "weibull")
FILES = {
    "events.csv": "time_s,node,effect,repair_s\n0,3,fail,100\n90,1-2,hang,\n200.5,job,,\n",
    "alive.csv": "time_s,alive\n0,8\n100,5\n300,7\n400,7\n",
    "gaps.csv": "# of a log\ngap_s\n300\n100\n100\n900\n",
}


def folder(path, **files):
    """Write files into a folder: those of the examples, or others of their names."""
    for name, content in {**FILES, **{f"{name}.csv": text for name, text in files.items()}}.items():
        (path / name).write_text(content)
    return path


def failures(kind, base="", **options):
    raw = {"kind": kind, **EXAMPLES[kind], **options}
    given = {key: value for key, value in raw.items() if value is not None}
    return TypeAdapter(AnyFailures).validate_python(given, context={"base": base})


def refusal(kind, base="", **options):
    """The one line that says what is wrong."""
    raw = {"kind": kind, **EXAMPLES[kind], **options}
    raw = {key: value for key, value in raw.items() if value is not None}
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyFailures).validate_python(raw, context={"base": base})
    (found,) = problems(caught.value, raw)
    return found.line


def drawn(process, num_events, num_nodes=8, devices_per_node=8, run=0):
    """The first events of a run."""
    random = stream(0, "failures", run, 0)
    return list(islice(process.events(num_nodes, devices_per_node, random), num_events))


def before(process, end, num_nodes=8, run=0):
    """The times of a run's events before an instant [s]."""
    events = process.events(num_nodes, 8, stream(0, "failures", run, 0))
    return [event.time for event in takewhile(lambda event: event.time < end, events)]
