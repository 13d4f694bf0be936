"""The README's promises: its two commands, what a run prints, its links and its pictures."""

import re
import runpy

import pytest
from for_each import for_each
from pages import DOCS, README, ROOT, blocks, play, rewrite, same, section

import simdp

TEXT = README.read_text()


def test_it_is_short():
    assert len(README.read_bytes()) <= 9 * 1024


def test_contributing_is_short_and_its_layout_names_what_is_there():
    page = ROOT / "CONTRIBUTING.md"
    assert len(page.read_bytes()) <= 9 * 1024
    rows = re.findall(r"^\| (`[^|]*) \|", section(page, "Code layout"), re.MULTILINE)
    assert 20 <= len(rows) <= 32
    for name in re.findall(r"`([^`]+)`", " ".join(rows)):
        assert (ROOT / "simdp" / name).exists(), name


def test_the_design_is_short_and_has_a_place_for_names():
    page = ROOT / "DESIGN.md"
    assert len(page.read_bytes()) <= 35 * 1024
    assert section(page, "Names").strip()


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


def test_its_pictures_are_in_a_clone_and_drawn_by_the_gallery():
    from simdp.studies.gallery import pictures

    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", TEXT)
    assert len(shown) == 3
    assert set(shown) <= {f"plots/{name}.png" for name in pictures()}
    assert all((ROOT / picture).is_file() for picture in shown)


PAGES = [README, *sorted(DOCS.rglob("*.md")), ROOT / "CONTRIBUTING.md"]


@for_each("page", PAGES)
def test_relative_links_lead_to_files_and_headings_that_exist(page):
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S))
    if page == README:
        assert len(links) >= 8
        assert not [link for link in links if "://" in link]
    for link in links:
        if "://" not in link and not link.startswith("mailto:"):
            target = page.parent / (link.partition("#")[0] or page.name)
            made = target.resolve().parent == DOCS / "reference"  # by docs/reference_hook.py
            assert made or target.exists(), f"{page}: {link}"
            anchor = link.partition("#")[2]
            if anchor and not made:
                assert anchor in anchors(target), f"{page}: {link}"


def anchors(page):
    """The anchors of a page's headings, as mkdocs makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", head).strip().lower().replace(" ", "-") for head in headings}


def test_no_address_is_invented():
    """Neither a site nor a repository of simdp has been announced."""
    invented = re.compile(r"simdp\.github" + r"\.io|github(usercontent)?\.com/" + "simdp")
    texts = (
        ".py",
        ".md",
        ".toml",
        ".yml",
        ".yaml",
        ".json",
        ".html",
        ".js",
        ".css",
        ".cfg",
        ".txt",
    )
    names = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "DESIGN.md", "pyproject.toml"]
    files = [ROOT / name for name in (*names, "mkdocs.yml", "setup.py")]
    for folder in ("simdp", "docs", "scenarios", "tests", "benchmarks", "records"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in texts]
    found = [path for path in files if invented.search(path.read_text("utf-8", errors="replace"))]
    assert found == []


def test_the_package_index_gets_absolute_links_where_a_repository_is_known(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SIMDP_REPOSITORY_URL", "https://example.org/a/b/")
    monkeypatch.setattr("setuptools.setup", lambda **given: made.update(given))
    made = {}
    runpy.run_path("setup.py")
    described = made["long_description"]
    assert "](docs/" not in described
    assert "](plots/" not in described
    assert "(https://example.org/a/b/raw/main/plots/8gpu_ring_timeline.png)" in described
    assert "(https://example.org/a/b/blob/main/docs/accuracy.md)" in described
    assert made["project_urls"] == {"Repository": "https://example.org/a/b"}
    monkeypatch.delenv("SIMDP_REPOSITORY_URL")
    runpy.run_path("setup.py")
    assert made["long_description"] == TEXT
    assert made["project_urls"] == {}


def test_the_version_is_the_packages():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == simdp.__version__
