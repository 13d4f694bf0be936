"""Families: every table and catalogue is listed, each kind with a line of its own."""

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from for_each import for_each

import simdp
from simdp.cluster.hardware import DEVICES, LINKS, MACHINES
from simdp.spec import Spec
from simdp.studies.families import HOMES, LISTED, families, kinds
from simdp.studies.fits import describe
from simdp.workload.models import MODELS, PRESETS

KNOWN = families()
NO_TABLES = {"benchmarks", "constants", "devices", "hosts", "links", "machines", "scenarios"}


def is_spec(member):
    return isinstance(member, type) and issubclass(member, Spec)


def tables():
    """Every table from kinds to specs that a module of simdp declares, by its name."""
    found = {}
    for path in sorted(Path(simdp.__file__).parent.rglob("*.py")):
        if "Family(" not in path.read_text():
            continue
        parts = path.relative_to(Path(simdp.__file__).parents[1]).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        for name, table in list(vars(importlib.import_module(module)).items()):
            members = isinstance(table, Mapping) and list(table.values())
            if name.isupper() and members and all(is_spec(member) for member in members):
                found[name.lower()] = table
    return found


TABLES = tables()


def test_families_are_sorted_and_so_are_their_kinds():
    assert list(KNOWN) == sorted(KNOWN)
    for members in KNOWN.values():
        assert list(members) == sorted(members)
        assert members


def test_every_table_of_simdp_is_listed():
    assert set(KNOWN) == set(TABLES) | NO_TABLES
    for family, table in TABLES.items():
        presets = set(PRESETS) if family == "models" else set()
        assert set(KNOWN[family]) == set(table) | presets, family


def test_presets_are_listed_among_the_models():
    assert set(KNOWN["models"]) == {*MODELS, *PRESETS}
    assert KNOWN["models"]["vgg16"].startswith("138,357,544 parameters, ")


def test_the_catalogue_is_listed():
    assert list(KNOWN["devices"]) == DEVICES.names()
    assert list(KNOWN["links"]) == LINKS.names()
    assert list(KNOWN["machines"]) == MACHINES.names()
    assert KNOWN["devices"]["a100-sxm4-80gb"] == "19.5 TFLOP/s float32, 79.15 GiB at 2039 GB/s"


@for_each("family", KNOWN)
def test_every_kind_has_one_line_that_says_what_it_is(family):
    for kind, line in KNOWN[family].items():
        assert line.strip() == line != "", kind
        assert "\n" not in line, kind
        assert len(line) > len("A thing."), kind


@for_each("family", sorted(set(KNOWN) - NO_TABLES))
def test_a_line_is_the_first_of_the_documentation_and_a_whole_sentence(family):
    for kind, member in TABLES[family].items():
        if family == "models" and kind in PRESETS:  # what the name alone stands for is shown
            continue
        line = KNOWN[family][kind]
        assert line.endswith("."), f"{kind}: {line}"
        assert member.__doc__.strip().startswith(line)


# Lines of models ---------------------------------------------------------------------------------

HOW_TO_UPDATE = "run: pytest tests/studies/test_families.py -k listed_json --update-golden"


def derived():
    """The lines of all models: of kinds the first of the documentation, of presets the figures."""
    lines = {kind: member.__doc__.strip().splitlines()[0] for kind, member in MODELS.items()}
    return dict(sorted({**lines, **{name: describe(name) for name in PRESETS}}.items()))


def differences(listed, lines):
    """Where a table of lines differs from the lines that it should have."""
    return [
        *(f"{name} is missing" for name in sorted(set(lines) - set(listed))),
        *(f"{name} is superfluous" for name in sorted(set(listed) - set(lines))),
        *(
            f"{name}: {listed[name]!r} is listed, {line!r} is derived"
            for name, line in lines.items()
            if listed.get(name, line) != line
        ),
    ]


@pytest.mark.slow
def test_every_line_of_listed_json_is_derived_from_the_models(request):
    lines = derived()
    if request.config.getoption("--update-golden"):
        LISTED.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n", "utf-8")
    wrong = differences(json.loads(LISTED.read_text("utf-8")), lines)
    assert not wrong, "\n".join([f"{LISTED.name} is not up to date; {HOW_TO_UPDATE}", *wrong])


def test_listed_json_has_every_kind_and_preset_and_no_other():
    names = dict.fromkeys((*MODELS, *PRESETS), "")
    wrong = differences(dict.fromkeys(json.loads(LISTED.read_text("utf-8")), ""), names)
    assert not wrong, "\n".join([f"{LISTED.name} is not up to date; {HOW_TO_UPDATE}", *wrong])


def test_a_missing_a_superfluous_and_a_wrong_line_are_differences():
    found = differences(
        {"gpt2": "1 parameter", "old": "x", "mlp": "m"}, {"gpt2": "2", "mlp": "m", "new": "y"}
    )
    assert found == [
        "new is missing",
        "old is superfluous",
        "gpt2: '1 parameter' is listed, '2' is derived",
    ]


@pytest.mark.slow
def test_only_the_family_that_is_listed_is_imported():
    program = (
        "import sys; from simdp.cli import run_command_line as run; "
        "run(['list', sys.argv[1]]); print(*sys.modules)"
    )

    def imported(family):
        command = [sys.executable, "-c", program, family]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return set(out.splitlines()[-1].split())

    models = imported("models")
    assert "simdp.studies.families" in models
    assert not models & {"numpy", "yaml", "simdp.spec", "simdp.workload", "simdp.cluster"}
    failures = imported("failures")
    assert "simdp.cluster.failures.rates" in failures
    assert not failures & {"simdp.workload", "simdp.strategies", "simdp.engine"}


def test_the_home_of_a_family_holds_its_table():
    assert set(HOMES) == set(KNOWN) - NO_TABLES
    for family, home in HOMES.items():
        assert getattr(importlib.import_module(home), family.upper()) is TABLES[family]


def test_a_real_model_says_what_a_sample_of_it_is():
    found = kinds("models")
    assert "per sample (128 tokens)" in found["bert-large"]
    assert "per sample (3x224x224)" in found["resnet50"]


def test_constants_of_a_class_come_with_their_spread_and_every_site():
    said = KNOWN["constants"]["network.tcp"]
    assert "1.37 GB/s a node at most, with cards of 50 Gbit/s (mean of sites; " in said
    assert "90 % of sites 0.61 GB/s to 3.07 GB/s" in said
    assert "pollux 0.77 GB/s" in said
    assert "published by NVIDIA" in KNOWN["constants"]["peer.nvlink"]
