"""Old names of keys keep working, with a line of advice."""

import json
import warnings
from dataclasses import replace

import pytest
import yaml
from for_each import for_each

import simdp
from simdp.cli import _show, run_command_line
from simdp.cluster.hardware import read_machine
from simdp.engine.state import State
from simdp.errors import ScenarioError
from simdp.job.recovery import Elastic
from simdp.keys import KEYS, OldKeyWarning, current_key, with_current_keys
from simdp.results.plan import PlanResult
from simdp.results.result import Study

# Keys ---------------------------------------------------------------------------------------------

AT = {
    "up": ("recovery.up", "at_once", {"recovery": {"kind": "elastic", "up": "checkpoint"}}),
    "comeback": (
        "cluster.failures.0.comeback",
        "7 s",
        {"cluster.failures": [{"kind": "spot", "lifetime": "9 h", "comeback": "1 h"}]},
    ),
    "survives": (
        "checkpoint.levels.0.survives",
        "process",
        {"checkpoint": {"every": 9, "levels": [{"every": 3, "write": "1 s", "survives": "node"}]}},
    ),
    "ahead": ("workload.host.ahead", True, {"workload.host": {"ahead": False}}),
    "lasting_part": (
        "cluster.stragglers.0.lasting_part",
        0.5,
        {"cluster.stragglers": [{"kind": "shared_host", "lasting_part": 0.2}]},
    ),
}
"""Of each old key: where it is, another value, and what holds it in a scenario."""

SMALL = {
    "cluster": {"world_size": 2, "devices_per_node": 1, "device": "t4-16gb", "link": "pcie3-x16"},
    "workload": {
        "model": {"kind": "mlp", "widths": [4, 2]},
        "dataset": {"kind": "regression", "num_samples": 16},
        "microbatch": 2,
        "steps": 2,
    },
    "strategy": "ddp",
    "numerics": False,
}


def raw_with(old):
    """A small scenario as plain data, with an old key."""
    raw = json.loads(json.dumps(SMALL))
    raw["cluster"]["inter_node"] = {"topology": "switch", "link": "25gbe"}
    for key, value in json.loads(json.dumps(AT[old][2])).items():
        section, _, rest = key.partition(".")
        if rest:
            raw[section][rest] = value
        else:
            raw[section] = value
    if old == "survives":
        raw["checkpoint"]["storage"] = "1 GB/s"
    if old == "up":
        raw["checkpoint"] = {"every": 9, "storage": "1 GB/s"}
    return raw


def written(raw, folder):
    path = folder / "old.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def value_at(scenario, key):
    here = scenario.resolved()
    for part in key.split("."):
        here = here[int(part)] if part.isdecimal() else here[part]
    return here


def advice(old):
    (parent,) = [parent for parent, key in KEYS if key == old]
    new = KEYS[parent, old]
    return new, f"{parent}.{old} is now {parent}.{new}; the old key will be removed."


def test_every_old_key_is_tried_here():
    assert set(AT) == {old for _, old in KEYS}
    assert len({*KEYS.values()}) == len(KEYS)


@for_each("old", AT)
def test_an_old_key_in_a_file_means_the_new_one(old, tmp_path):
    new, line = advice(old)
    key, _, _ = AT[old]
    with pytest.warns(OldKeyWarning) as caught:
        scenario = simdp.load_scenario(written(raw_with(old), tmp_path))
    assert {str(one.message) for one in caught} == {line}
    where = key.removesuffix(old) + new
    text = json.dumps(scenario.resolved())
    assert f'"{new}"' in text
    assert f'"{old}"' not in text
    path = tmp_path / "new.yaml"
    path.write_text(yaml.safe_dump(scenario.resolved()), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert value_at(simdp.load_scenario(path), where) == value_at(scenario, where)


@for_each("old", AT)
@for_each("file_is_new", [False, True])
def test_an_old_key_can_be_set_over_either_name(old, file_is_new, tmp_path):
    new, line = advice(old)
    key, value, _ = AT[old]
    raw = raw_with(old)
    raw = with_current_keys(raw, advises=False) if file_is_new else raw
    for name in (old, new):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dotted = key.removesuffix(old) + name
            scenario = simdp.load_scenario(written(raw, tmp_path), {dotted: value})
        assert value_at(scenario, key.removesuffix(old) + new) == value
        assert ({str(one.message) for one in caught} == {line}) == (name == old)


@for_each("old", AT)
def test_an_old_key_can_be_swept(old, tmp_path):
    new, line = advice(old)
    key, value, _ = AT[old]
    raw = with_current_keys(raw_with(old), advises=False) | {"sweep": {key: [value]}}
    with pytest.warns(OldKeyWarning) as caught:
        scenario = simdp.load_scenario(written(raw, tmp_path))
    assert {str(one.message) for one in caught} == {line}
    where = key.removesuffix(old) + new
    assert scenario.sweep == {where: [value]}
    with pytest.warns(OldKeyWarning):
        again = simdp.load_scenario(written(raw, tmp_path), {key: value})
    assert not again.sweep
    raw["sweep"][where] = [value]
    message = f"sweep: {key} and {where} are the same key; keep"
    with pytest.warns(OldKeyWarning), pytest.raises(ScenarioError, match=message):
        simdp.load_scenario(written(raw, tmp_path))


@for_each("old", AT)
def test_a_key_under_both_names_is_refused(old, tmp_path):
    new, _ = advice(old)
    key, value, _ = AT[old]
    raw = raw_with(old)
    here = raw
    *parents, _ = key.split(".")
    for part in parents:
        here = here[int(part)] if part.isdecimal() else here[part]
    here[new] = value
    with pytest.raises(ScenarioError, match=f"{old} and {new} are the same key; keep {new}."):
        simdp.load_scenario(written(raw, tmp_path))


def test_an_old_key_of_another_place_stays_unknown():
    with pytest.raises(ValueError, match="unknown key 'comeback'"):
        Elastic.model_validate({"kind": "elastic", "comeback": "1 h"})
    assert current_key("workload.model.up") == "workload.model.up"
    assert current_key("up") == "up"


def test_a_machine_file_may_have_an_old_key(tmp_path):
    straggler = {"kind": "shared_host", "lasting_part": 0.2}
    machine = {"cluster": {**SMALL["cluster"], "stragglers": [straggler]}}
    machine["cluster"] |= {"inter_node": {"topology": "switch", "link": "25gbe"}}
    machine["source"] = "a data sheet"
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(machine), encoding="utf-8")
    assert read_machine(str(path), tmp_path).cluster["stragglers"] == [straggler]
    raw = {**SMALL, "cluster": {"machine": "mine.yaml", "world_size": 2}}
    with pytest.warns(OldKeyWarning, match="stragglers.persistent_variance"):
        scenario = simdp.load_scenario(written(raw, tmp_path))
    assert scenario.cluster.stragglers[0].persistent_variance == 0.2


def test_a_saved_result_with_old_keys_is_read_with_the_new_ones(tmp_path):
    raw = with_current_keys(raw_with("lasting_part"), advises=False)
    raw["sweep"] = {"cluster.stragglers.0.persistent_variance": [0.1, 0.4]}
    study = simdp.sweep(simdp.load_scenario(written(raw, tmp_path)))
    path = tmp_path / "result.json"
    study.save(path)
    new = Study.load(path)
    path.write_text(path.read_text().replace("persistent_variance", "lasting_part"))
    old = Study.load(path)
    assert [point.set for point in old.points] == [point.set for point in new.points]
    assert old.scenario == new.scenario
    with pytest.warns(OldKeyWarning):
        assert simdp.load_scenario(path).sweep == raw["sweep"]


def test_a_saved_result_with_a_key_under_both_names_is_refused(tmp_path):
    path = tmp_path / "result.json"
    scenario = {"workload": {"host": {"ahead": True, "async_launch": True}}}
    path.write_text(json.dumps({"simdp": "0", "scenario": scenario, "points": []}))
    with pytest.raises(ScenarioError, match=r"is not a result\.json"):
        Study.load(path)


def test_a_saved_plan_with_old_keys_is_read_with_the_new_ones(tmp_path):
    path, read = tmp_path / "plan.json", []
    path.write_text(json.dumps({"best": {"set": {"workload.host.ahead": True}}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlanResult, "of", read.append)
        PlanResult.load(path)
    assert read == [{"best": {"set": {"workload.host.async_launch": True}}}]


def test_a_run_goes_on_from_a_state_with_an_old_key(tmp_path):
    raw = with_current_keys(raw_with("ahead"), advises=False) | {"numerics": True}
    scenario = simdp.load_scenario(written(raw, tmp_path))
    state = simdp.simulate(scenario, stop_after=1, keep_state=True).state
    assert "async_launch" in state.scenario["workload"]["host"]
    host = {**state.scenario["workload"]["host"]}
    host["ahead"] = host.pop("async_launch")
    old = replace(
        state, scenario={**state.scenario, "workload": {**state.scenario["workload"], "host": host}}
    )
    path = tmp_path / "state.npz"
    old.save(path)
    again = State.load(path)
    assert again.scenario == state.scenario
    assert again.belongs_to(scenario)


def test_the_command_line_prints_the_advice_once(tmp_path, capfd):
    path = written(raw_with("up"), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show = warnings.showwarning
        assert run_command_line(["check", str(path), "--set", "recovery.up=at_once"]) == 0
        assert warnings.showwarning is show
    _, line = advice("up")
    assert capfd.readouterr().err.count(line) == 1


def test_other_warnings_are_shown_as_python_shows_them():
    shown = []
    _show(lambda *given, **named: shown.append(given), set(), UserWarning("x"), UserWarning)
    assert [str(message) for message, _ in shown] == ["x"]
