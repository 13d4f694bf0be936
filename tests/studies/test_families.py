"""Families: every table and catalogue is listed, each kind with a line of its own."""

import importlib
import pkgutil
from collections.abc import Mapping

from for_each import for_each

import simdp
from simdp.cluster.device import DEVICES
from simdp.cluster.link import LINKS
from simdp.cluster.machine import MACHINES
from simdp.spec import Spec
from simdp.studies.families import families
from simdp.workload.models import MODELS, PRESETS

KNOWN = families()
NO_TABLES = {"benchmarks", "constants", "devices", "links", "machines", "scenarios"}


def is_spec(member):
    return isinstance(member, type) and issubclass(member, Spec)


def tables():
    """Every table from kinds to specs that some package of simdp declares, by its name."""
    found = {}
    for module in pkgutil.walk_packages(simdp.__path__, "simdp."):
        if not module.ispkg:
            continue
        for name, table in list(vars(importlib.import_module(module.name)).items()):
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
    assert KNOWN["devices"]["a100-sxm4-80gb"] == "19.5 TFLOP/s float32, 80 GB at 2039 GB/s"


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


def test_a_real_model_says_what_a_sample_of_it_is():
    found = families()["models"]
    assert "per sample (128 tokens)" in found["bert-large"]
    assert "per sample (3x224x224)" in found["resnet50"]


def test_constants_of_a_class_come_with_their_spread_and_every_site():
    said = KNOWN["constants"]["network.tcp"]
    assert "1.80 GB/s a node at most (mean of sites; 90 % of sites 0.51 GB/s to 6.35 GB/s" in said
    assert "pollux 0.77 GB/s" in said
    assert "published by NVIDIA" in KNOWN["constants"]["peer.nvlink"]
