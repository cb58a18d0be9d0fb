"""Links of the documents lead to files and headings that exist. `make docs` checks the same."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "benchmarks", "examples")
PAGES = [*ROOT.glob("*.md"), *(path for each in FOLDERS for path in (ROOT / each).rglob("*.md"))]


def prose(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub and the site give to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links(page):
    text = re.sub(r"`[^`\n]*`(?!\])", "", prose(page))
    broken = []
    for link, anchor in re.findall(r"\]\((?!\w+:)([^)\s#]*)#?([^)\s]*)\)", text):
        target = page.parent / link if link else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{link}#{anchor}")
    assert not broken


def test_the_index_has_every_document():
    index = (ROOT / "docs/README.md").read_text()
    names = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {name for name in names if f"]({name}" not in index} == set()
    tables = re.findall(r"^\|.*\|\n\|---", index, re.MULTILINE)
    assert tables  # the navigation of the site, which docs/site/hooks.py reads
    assert all(re.fullmatch(r"\| [^|]+ \| \|\n\|---", each) for each in tables)
