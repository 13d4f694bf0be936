"""Audits of the scripts: what is found in each is true, and written in audited.yaml."""

from pathlib import Path
from typing import get_args

import pytest
import yaml
from table import SCRIPTS

pytest.importorskip("torch")

from simdp.errors import ScenarioError
from simdp.results.audit import LegitimateCause
from simdp.torch.audit import ScriptAudit, audit_script

HERE = Path(__file__).parent
KNOWN = yaml.safe_load((HERE / "audited.yaml").read_text())


def test_every_script_is_judged():
    assert set(KNOWN) == set(SCRIPTS)


def test_what_is_wrong_has_a_reason():
    for name, known in KNOWN.items():
        wrong = set(known.get("found", ())) - set(get_args(LegitimateCause))
        assert bool(wrong) == bool(known.get("why")), name


@pytest.mark.parametrize("name", [name for name, known in KNOWN.items() if known.get("often")])
def test_what_an_audit_finds_is_true(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = KNOWN[name]
    ranks = tuple(known.get("ranks", (1, 2)))
    arguments = tuple(one.replace("PORT", "29500") for one in SCRIPTS[name].args)
    asked = ScriptAudit(str(HERE / "scripts" / f"{name}.py"), arguments, ranks, max_steps=6)
    if "refused" in known:
        with pytest.raises(ScenarioError) as raised:
            audit_script(asked)
        assert raised.value.problems == [known["refused"]]
    else:
        assert [one.cause for one in audit_script(asked).findings] == known.get("found", [])
