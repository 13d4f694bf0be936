"""The README's promises: its two commands, what a run prints, its links and its pictures."""

import re

import pytest
from pages import DOCS, README, ROOT, blocks, play, rewrite, same

import simdp

TEXT = README.read_text()
SITE = "https://simdp.github.io/simdp/"
FILES = "https://github.com/simdp/simdp/blob/main/"
PICTURES = "https://raw.githubusercontent.com/simdp/simdp/main/"


def test_it_is_short():
    assert len(README.read_bytes()) <= 9 * 1024


def test_it_opens_with_two_single_line_commands():
    """They make an environment of their own, in which simdp then is."""
    first = blocks(README, "sh")[0].text.strip().splitlines()
    assert len(first) == 2
    assert first[0].startswith("python3 -m venv .venv && .venv/bin/pip install -q . && ")
    assert first[0].endswith(".venv/bin/python -m simdp run scenarios/8gpu_ring.yaml")
    assert first[1].startswith(".venv/bin/pip install -q '.[test]' && ")
    assert first[1].endswith(".venv/bin/python -m pytest -n auto")


@pytest.mark.long
def test_its_other_commands_work_and_print_what_it_says(tmp_path, monkeypatch, capsys, request):
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    outputs = play(README, capsys, request.config.getoption("--long"))
    assert outputs
    if request.config.getoption("--update-golden"):
        rewrite(README, outputs)
    else:
        for block, printed in outputs:
            assert same(block.text, printed), f"the README shows another output than:\n{printed}"


def test_its_pictures_resolve_everywhere_and_are_drawn_by_the_gallery():
    from simdp.studies.gallery import pictures

    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", TEXT)
    assert len(shown) == 3
    drawn = {f"{PICTURES}plots/{name}.png" for name in pictures()}
    assert set(shown) <= drawn


def test_its_links_lead_to_pages_and_files_that_exist():
    links = re.findall(r"(?<!!)\[[^]]+\]\(([^)]+)\)", TEXT)
    assert len(links) >= 5
    for link in links:
        if link.startswith(SITE):
            page = link.removeprefix(SITE).strip("/")
            assert (DOCS / f"{page}.md").is_file(), link
        else:
            assert link.startswith(FILES), link
            assert (ROOT / link.removeprefix(FILES)).is_file(), link


def test_the_version_is_the_packages():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == simdp.__version__
