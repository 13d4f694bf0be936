"""What pyproject.toml cannot say: where the scenarios lie, and what the package index shows.

The README's links are relative, for a clone. The package index has no files beside the README, so
that a build with ``SIMDP_REPOSITORY_URL`` in its environment, such as the address of a repository
on GitHub, makes them absolute there; without it they stay as they are.
"""

import os
import re
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


def absolute_links(text: str, repository: str) -> str:
    """Lead a page's relative links, and its pictures, to the main branch of a repository."""

    def absolute(found: re.Match[str]) -> str:
        sign, words, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found[0]
        return f"{sign}[{words}]({repository}/{'raw' if sign else 'blob'}/main/{target})"

    return re.sub(r"(!?)\[([^]]*)\]\(([^)\s]+)\)", absolute, text)


README = Path("README.md").read_text(encoding="utf-8")
REPOSITORY = os.environ.get("SIMDP_REPOSITORY_URL", "").rstrip("/")

setup(
    cmdclass={"build_py": BuildWithScenarios},
    long_description=absolute_links(README, REPOSITORY) if REPOSITORY else README,
    long_description_content_type="text/markdown",
    project_urls={"Repository": REPOSITORY} if REPOSITORY else {},
)
