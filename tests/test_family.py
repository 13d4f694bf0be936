"""Families: tables of our own kinds, and what comes from outside."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from simdp import family
from simdp.cli import run_command_line
from simdp.cluster.topologies import TOPOLOGIES
from simdp.errors import KindError, ScenarioError
from simdp.family import Family
from simdp.scenario import load_scenario
from simdp.strategies import STRATEGIES
from simdp.strategies.base import Strategy
from simdp.studies.families import families, kinds
from simdp.workload.layers import LAYERS
from simdp.workload.layers.activations import ACTIVATIONS, Activation
from simdp.workload.models import MODELS

MODULE = """\
from typing import Literal

from simdp.strategies.ddp import DDP
from simdp.strategies.data_parallel import Single
from simdp.strategies import Strategy
from simdp.workload.layers.activations.rectifiers import ReLU
from simdp.workload.models.sequential import MLP


class Mine(DDP):
    '''DDP by another name.'''

    kind: str = "mine"


class Named(Single):
    '''It calls itself single.'''


class Half(Strategy):
    kind: str

    def setup(self, facts):
        yield from ()


class Ramp(ReLU):
    '''relu by another name.'''

    kind: str = "ramp"


class Net(MLP):
    '''mlp by another name.'''

    kind: str = "net"


def function():
    pass
"""

PLUGIN = "simdp_plugin_of_tests"


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A module in the current folder."""
    (tmp_path / f"{PLUGIN}.py").write_text(MODULE)
    (tmp_path / "broken_plugin_of_tests.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "raising_plugin_of_tests.py").write_text("raise RuntimeError('one\\ntwo')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield PLUGIN
    for name in list(sys.modules):
        if name.endswith("plugin_of_tests"):
            del sys.modules[name]
    for table in (STRATEGIES, TOPOLOGIES, ACTIVATIONS, LAYERS, MODELS):
        table._found.clear()


@pytest.fixture
def offered(plugin, monkeypatch):
    """The module as an installed package offers it; two packages offer the same name."""

    def point(name, value, group):
        return metadata.EntryPoint(name, f"{plugin}:{value}", group)

    points = metadata.EntryPoints(
        [
            point("mine", "Mine", "simdp.strategies"),
            point("ddp", "Half", "simdp.strategies"),
            point("half", "Half", "simdp.strategies"),
            point("twice", "Mine", "simdp.strategies"),
            point("twice", "Named", "simdp.strategies"),
            point("gone", "Gone", "simdp.strategies"),
            point("ramp", "Ramp", "simdp.activations"),
            point("net", "Net", "simdp.models"),
            point("gpt2-xl", "Net", "simdp.models"),
            point("mine", "Mine", "another.group"),
        ]
    )
    monkeypatch.setattr(metadata, "entry_points", lambda: points)
    family._offers.cache_clear()
    yield
    family._offers.cache_clear()


def refused(kind, table=STRATEGIES):
    with pytest.raises(KindError) as caught:
        table.find(kind)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_family_is_a_table():
    package = "simdp.workload.layers.activations"
    few = Family("few", Activation, package, {"relu": "rectifiers:ReLU", "tanh": "smooth:Tanh"})
    more = Family("more", Activation, package, {"gelu": "smooth:GELU"}, few)
    assert list(more) == ["relu", "tanh", "gelu"]
    assert len(more) == 3
    assert "relu" in more
    assert "silu" not in more
    assert [member.__name__ for member in more.values()] == ["ReLU", "Tanh", "GELU"]
    assert more.find("gelu") is more["gelu"]
    assert more.find("silu") is None
    with pytest.raises(KeyError):
        more["silu"]


def test_a_class_is_found_where_it_is_written_out(plugin):
    found = STRATEGIES.find(f"{plugin}:Mine")
    assert issubclass(found, Strategy)
    assert found is STRATEGIES.find(f"{plugin}:Mine")
    assert f"{plugin}:Mine" not in STRATEGIES  # as a mapping it holds our own


def test_what_is_wrong_with_a_class_is_said_in_one_line(plugin):
    assert refused(f"{plugin}:Mine", TOPOLOGIES) == (
        f"'{plugin}:Mine' is no Topology; derive it from simdp.cluster.topologies.base.Topology."
    )
    assert refused(f"{plugin}:function").endswith(
        "is no Strategy; derive it from simdp.strategies.base.Strategy."
    )
    assert refused(f"{plugin}:Half") == f"'{plugin}:Half' is not finished; it lacks train_step."
    assert refused(f"{plugin}:Named") == (
        f"'{plugin}:Named' calls itself 'single'; write kind: str = '{plugin}:Named' in its class."
    )
    assert refused(f"{plugin}:Mime") == (
        f"'{plugin}:Mime': the module {plugin} has no Mime. Did you mean '{plugin}:Mine'?"
    )
    assert refused("no_such_module.part:Mine") == (
        "'no_such_module.part:Mine': there is no module no_such_module; install it, or run where "
        "it lies."
    )
    assert refused("broken_plugin_of_tests:Mine") == (
        "'broken_plugin_of_tests:Mine' cannot be loaded: ModuleNotFoundError: No module named "
        "'nothing_of_this_name'."
    )
    assert refused("raising_plugin_of_tests:Mine") == (
        "'raising_plugin_of_tests:Mine' cannot be loaded: RuntimeError: one."
    )
    for kind in (f"{plugin}:", ":Mine", f"{plugin}:Mine:Mine", "a b:Mine"):
        assert refused(kind) == (
            f"{kind!r} is not module:Class; write for example my_package.my_module:MyClass."
        )


def test_a_scenario_says_where_it_stands(plugin, refuse):
    assert refuse(strategy=f"{plugin}:Half") == [
        f"strategy: the strategy '{plugin}:Half' is not finished; it lacks train_step."
    ]
    assert refuse(strategy={"kind": f"{plugin}:Mine", "bucket_kap": "1 MiB"})[0].startswith(
        "strategy: unknown key 'bucket_kap'. Did you mean 'bucket_cap'? Known: "
    )
    (line,) = refuse(strategy="nobody")
    assert line.startswith("strategy: unknown strategy 'nobody'; known: apex, ")


def test_packages_offer_kinds(offered, plugin):
    assert STRATEGIES.find("mine").__name__ == "Mine"
    assert STRATEGIES.find("ddp").__module__ == "simdp.strategies.ddp"  # nobody replaces our own
    assert STRATEGIES.find("nobody") is None
    assert STRATEGIES.offered() == ["gone", "half", "mine", "twice"]
    assert ACTIVATIONS.find("ramp").__name__ == "Ramp"
    assert LAYERS.find("ramp") is ACTIVATIONS.find("ramp")  # a family that holds another
    assert refused("half") == "'half' is not finished; it lacks train_step."
    assert refused("twice") == (
        "'twice' is offered by an unknown package and an unknown package; write out which is "
        f"meant: {plugin}:Mine or {plugin}:Named."
    )
    assert refused("gone").startswith(f"'gone' cannot be loaded from {plugin}:Gone: AttributeE")


def test_offers_are_listed_and_hinted_at(offered, refuse):
    known = families()["strategies"]
    assert known["mine"] == "DDP by another name. (from an unknown package)"
    assert known["half"].startswith("cannot be used: 'half' is not finished; it lacks train_step.")
    assert known["ddp"].startswith("``torch.nn.parallel")
    assert "Did you mean 'mine'? Known: " in refuse(strategy="mime")[0]


def test_a_model_of_a_package_is_listed_and_takes_no_place_of_a_preset(offered):
    known = kinds("models")
    assert known["net"] == "mlp by another name. (from an unknown package)"
    assert known["gpt2-xl"].startswith("1,557,611,200 parameters, ")
    assert list(known) == sorted(known)


def test_an_offer_takes_part_in_scenarios(offered, load):
    scenario = load(strategy={"kind": "mine", "bucket_cap": "1 MiB"})
    assert scenario.strategy.kind == "mine"
    assert scenario.resolved()["strategy"]["kind"] == "mine"
    model = {"kind": "mlp", "widths": [3, 4, 2], "activation": "ramp"}
    layers = load({"workload.model": model}).workload.model
    assert layers.activation == "ramp"
    assert [type(call.layer).__name__ for call in layers.graph.calls].count("Ramp") == 1


def test_nothing_outside_is_looked_at_for_kinds_of_our_own(monkeypatch):
    def never():
        raise RuntimeError("packages were looked through")

    monkeypatch.setattr(family, "_offers", never)
    load_scenario("8gpu_ring")
    load_scenario("bert_mnli")  # whose model is a preset, which is no kind of the table
    with pytest.raises(RuntimeError, match="looked through"):
        load_scenario("8gpu_ring", {"strategy": "nobody"})


@pytest.mark.slow
def test_the_command_line_finds_a_module_in_the_current_folder(plugin, capsys):
    chosen = ["--set", f"strategy={plugin}:Mine", "--set", "numerics=false"]
    assert run_command_line(["run", "8gpu_ring", *chosen, "--no-plots", "--quiet"]) == 0
    saved = Path("runs/8gpu_ring/result.json")
    assert run_command_line(["check", str(saved)]) == 0
    assert load_scenario(saved).strategy.kind == f"{plugin}:Mine"
    over = ["--over", f"strategy=ddp,{plugin}:Mine", "--set", "numerics=false"]
    assert run_command_line(["compare", "8gpu_ring", *over, "--no-plots", "--quiet"]) == 0
    capsys.readouterr()
    assert run_command_line(["check", "8gpu_ring", "--set", "strategy=no_module:Mine"]) == 2
    assert "strategy: the strategy 'no_module:Mine': there is no" in capsys.readouterr().err


def test_the_errors_are_of_the_input():
    assert KindError.exit_status == ScenarioError.exit_status == 2
