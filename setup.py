"""Maps the scenarios, which lie beside the package, into it; all else stands in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path("scenarios")


class BuildWithScenarios(build_py):
    """An installed package has them as ``simdp/scenarios``; an editable one reads them in place."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.editable_mode:
            return
        folders = [path for path in (ROOT, *ROOT.rglob("*")) if path.is_dir()]
        for folder in sorted(path for path in folders if path.name != "__pycache__"):
            package = ".".join(["simdp", *folder.parts])
            self.packages = [*self.packages, package]
            self.package_dir = {**(self.package_dir or {}), package: folder.as_posix()}
            self.package_data = {**self.package_data, package: ["*.*"]}


setup(cmdclass={"build_py": BuildWithScenarios})
