"""The reference: a page for every family of `list`, and a row for every key of a scenario."""

import re
from pathlib import Path

import pytest

from simdp.studies.families import families
from simdp.studies.schema import described, reference


@pytest.fixture(scope="module")
def pages():
    """Text of each page, by its file name."""
    return reference()


def test_every_family_that_is_listed_has_a_page_with_all_its_kinds(pages):
    for family, kinds in families().items():
        for kind in kinds:
            assert f"`{kind}`" in pages[f"{family}.md"], (family, kind)


def test_every_key_has_a_row_with_its_meaning(pages):
    rows = "\n".join(line for page in pages.values() for line in page.splitlines())
    for name, definition in described().definitions.items():
        for key, schema in definition.get("properties", {}).items():
            said = " ".join(schema.get("description", "").split())[:12].split("`")[0]
            if key != "kind":
                assert re.search(rf"\| `{key}` \|[^\n]*{re.escape(said)}", rows), (name, key)


def test_no_row_is_without_a_meaning(pages):
    for name, page in pages.items():
        rows = [line for line in page.splitlines() if line.startswith("| `")]
        assert all(line.split(" | ")[-1].strip(" |") for line in rows), name


def test_links_lead_to_pages_and_headings(pages):
    anchors = {
        name: {
            re.sub(r"[^\w-]", "", line.strip("# ").replace(" ", "-")).lower()
            for line in page.splitlines()
            if line.startswith("#")
        }
        for name, page in pages.items()
    }
    for name, page in pages.items():
        for file, anchor in re.findall(r"\]\(([\w.]*)#?([\w-]*)\)", page):
            assert file in ("", "index.md") or file in pages, (name, file)
            assert not anchor or anchor in anchors[file or name], (name, file, anchor)


def test_the_page_that_is_written_by_hand_leads_to_pages(pages):
    index = Path(__file__).parents[2] / "docs" / "reference" / "index.md"
    for file in re.findall(r"\]\((\w+\.md)\)", index.read_text()):
        assert file in pages, file
