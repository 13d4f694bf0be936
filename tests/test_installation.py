"""What an installation holds: the scenarios, the catalogue, the mark of types, and what it says."""

import os
import tomllib
import warnings
from pathlib import Path

import pytest

import simdp
from simdp.cli.torchrun import OLDEST

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def build():
    """Files of the package as setuptools would install them, by where they come from."""
    setuptools = pytest.importorskip("setuptools", "77")
    from distutils.core import run_setup

    before = Path.cwd()
    os.chdir(ROOT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            command = run_setup("setup.py", stop_after="config").get_command_obj("build_py")
            assert isinstance(command, setuptools.Command)
            command.ensure_finalized()
            return {
                f"{package.replace('.', '/')}/{name}": (Path(folder) / name).resolve()
                for package, folder, _, files in command.data_files
                for name in files
            } | {
                f"{package.replace('.', '/')}/{module}.py": Path(source).resolve()
                for package, module, source in command.find_all_modules()
            }
    finally:
        os.chdir(before)


@pytest.mark.slow
def test_the_scenarios_are_in_the_package_with_their_data(build):
    found = {name for name in build if name.startswith("simdp/scenarios/")}
    there = [path for path in (ROOT / "scenarios").rglob("*.*") if path.suffix != ".pyc"]
    assert found == {f"simdp/{path.relative_to(ROOT).as_posix()}" for path in there}
    for name in found:
        assert build[name] == ROOT / name.removeprefix("simdp/")


def test_everything_in_the_package_is_installed(build):
    wanted = [
        path for path in (ROOT / "simdp").rglob("*") if path.is_file() and path.suffix != ".pyc"
    ]
    assert {path.relative_to(ROOT).as_posix() for path in wanted} <= set(build)
    assert "simdp/py.typed" in build


def test_it_says_what_it_runs_on():
    systems = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "System ::" in line}
    assert {"MacOS", "Linux"} <= systems
    assert "Typing :: Typed" in PROJECT["classifiers"]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "ubuntu-latest" in workflow
    assert "macos-latest" in workflow
    for version in ("3.11", "3.12", "3.13"):
        assert f'"{version}"' in workflow
        assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_its_version_is_the_packages():
    assert PROJECT["version"] == simdp.__version__


def test_the_oldest_torch_is_the_same_wherever_it_is_said():
    oldest = ".".join(map(str, OLDEST))
    assert PROJECT["optional-dependencies"]["torch"] == [f"torch>={oldest}"]
    guide = (ROOT / "docs" / "guides" / "torchrun.md").read_text()
    assert f"`pip install 'simdp[torch]'` {oldest} or later" in guide
