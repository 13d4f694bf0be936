"""What holds for every policy, whatever happens: no second is lost, and the job is done."""

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from jobs import PACES, FailureEvent, Saving, TrainingPace, plan_of, played

KINDS = (
    {"kind": "restart", "rescheduling": "3 s"},
    {"kind": "spares", "num": 1, "swap": "2 s"},
    {"kind": "elastic", "min_nodes": 2},
    {"kind": "elastic", "min_nodes": 1, "rejoin": "at_once"},
    {"kind": "replica_groups", "timeout": "4 s"},
    {"kind": "replica_groups", "group_nodes": 2, "min_replicas": 2, "timeout": "4 s"},
    {"kind": "migrate", "migration": "6 s", "share": "50 %"},
)

HAPPENS = st.tuples(
    st.sampled_from([0.0, 0.25, 1.0, 7.5, 40.0]),
    st.sampled_from(["fail", "hang", "leave", "drain"]),
    st.sampled_from([(), (0,), (1,), (2, 3), (4,), (0, 1, 2, 3)]),
    st.sampled_from([0.0, 5.0, 60.0]),
)
SAVINGS = st.sampled_from(
    [
        (),
        (Saving(10, 1.0, load=3.0),),
        (Saving(7, 0.5, background=12.0, load=2.0),),
        (Saving(3, 0.25, load=1.0, tolerates="node"), Saving(20, 2.0, 5.0, 4.0)),
    ]
)


def events_of(drawn):
    """In rising time; nodes that leave join 30 s later."""
    now, found = 0.0, []
    for gap, effect, nodes, repair in drawn:
        now += gap
        if effect != "leave":
            found.append(FailureEvent(now, effect, "test", nodes, repair if nodes else 0.0))
        elif nodes:
            found.append(FailureEvent(now, "leave", "test", nodes, 0.0))
            found.append(FailureEvent(now + 30, "join", "test", nodes, 0.0))
    return sorted(found, key=lambda event: event.time)


@for_each("raw", KINDS, ids=str)
@given(st.lists(HAPPENS, max_size=12), SAVINGS, st.integers(1, 60))
def test_every_second_is_accounted_for(raw, drawn, savings, num_steps):
    recovery = {"detection": "1 s", "hang_timeout": "9 s", "restart": "5 s", **raw}
    if raw.get("rejoin") != "at_once" and not savings and raw["kind"] == "elastic":
        recovery["rejoin"] = "at_once"  # as the checks of scenarios ask for
    paces = PACES if raw["kind"] == "elastic" else {4: TrainingPace(1.0)}
    plan = plan_of(
        num_steps, *events_of(drawn), savings=savings, recovery=recovery, paces=paces, heal=2.0
    )
    outcome, parts, run = played(plan)
    if raw["kind"] != "elastic":
        assert parts["productive"] == pytest.approx(num_steps)
    assert run.training.steps == num_steps
    assert 0 <= outcome.queued <= parts.get("recovery", 0.0) + 1e-9
    assert outcome.node_seconds <= (5 if raw["kind"] == "spares" else 4) * outcome.finish + 1e-9
    assert played(plan)[0] == outcome
