"""Options of the test suite, and the small scenario that many tests change."""

import gc
import os
import sys
from pathlib import Path

# Workers of xdist share the cores: threads of NumPy's that wait for one another there take four
# times as long. Said before NumPy is loaded, here and by what tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import yaml
from draws import ALL, FEW
from hypothesis import HealthCheck, is_hypothesis_test, settings
from real_torch import NoTorch, torch_installed
from small_scenario import MINIMAL

from simdp.errors import ScenarioError
from simdp.scenario import load_scenario

if not torch_installed():
    sys.meta_path.insert(0, NoTorch())

# How long an example takes depends on what else the machine does, and is nobody's fault here. The
# examples are those of the run before, so that a run tells of the code alone;
# `pytest --hypothesis-profile=thorough` draws fifty times as many, others each time.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("simdp", max_examples=FEW, derandomize=True, **PATIENT)
settings.register_profile("long", max_examples=ALL, derandomize=True, **PATIENT)
settings.register_profile("thorough", max_examples=300, **PATIENT)
settings.load_profile("simdp")


TESTS = Path(__file__).parent
NEED_TORCH = ("torch/", "torch_scripts/", "probes/test_torch", "test_cli_torchrun.py")
"""Folders and files whose tests are skipped without torch, by their beginnings."""


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write golden/scenarios anew, then compare; what README and docs/ print; listed.json",
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="run what is marked `long` as well, and the long commands of README and docs/",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Draw all examples with `--long`; `--hypothesis-profile` has the last word."""
    if config.getoption("--long"):
        settings.load_profile("long")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark all that needs torch as `extra`; skip what is `long` without the option for it.

    With it, tests of Hypothesis are `long` too, since they draw more.
    """
    for item in items:
        if item.path.relative_to(TESTS).as_posix().startswith(NEED_TORCH):
            item.add_marker("extra")
        if config.getoption("--long") and is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("long")
    if not (config.getoption("--long") or config.getoption("--update-golden")):
        minutes = pytest.mark.skip(reason="long; .ci/run tries it with --long")
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(minutes)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the garbage collector away from modules and tests, which live until the end.

    Full collections would walk all of them again and again: a tenth of the CPU time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker a contiguous half of the tests, so that it loads few modules twice."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture
def load(tmp_path):
    """Write the minimal scenario with some top keys replaced, and load it with overrides."""

    def load(overrides=None, **top):
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump({**MINIMAL, **top}, sort_keys=False))
        return load_scenario(path, overrides)

    return load


@pytest.fixture
def refuse(load, tmp_path):
    """Load what must be refused; return the problems without the file that leads each line."""

    def refuse(overrides=None, **top):
        with pytest.raises(ScenarioError) as caught:
            load(overrides, **top)
        lead = f"{tmp_path / 'small.yaml'}: "
        assert all(line.startswith(lead) for line in caught.value.problems)
        return [line.removeprefix(lead) for line in caught.value.problems]

    return refuse
