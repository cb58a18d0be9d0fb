"""The pictures in docs/pictures are those of its script, and the documents show each, in light and
dark."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/pictures"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]


@pytest.fixture(scope="module")
def drawn():
    specification = importlib.util.spec_from_file_location("draw", FOLDER / "draw.py")
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    return script.files()


def test_they_are_as_drawn(drawn):
    assert {path.name: path.read_text() for path in FOLDER.glob("*.svg")} == drawn


def test_numbers_in_the_text_are_those_of_the_picture(drawn):
    (alt,) = re.findall(
        r'cuda-graph-light.svg" alt="(.*?)"', (ROOT / "docs/pytorch.md").read_text()
    )
    numbers = re.findall(r"[\d.]+ µs", alt)
    assert len(numbers) == 2
    assert all(f": {number}" in drawn["cuda-graph-light.svg"] for number in numbers)


def test_each_is_shown_in_light_and_dark():
    shown = set()
    for page in PAGES:
        for picture in re.findall(r"<picture>.*?</picture>", page.read_text(), re.DOTALL):
            (dark,) = re.findall(r'\(prefers-color-scheme: dark\)" srcset="(.*?)"', picture)
            (light,) = re.findall(r'<img src="(.*?)" alt="[^"]+"', picture)
            assert dark == light.replace("-light.", "-dark.")
            shown |= {(page.parent / path).resolve() for path in (dark, light)}
    assert shown == {path for path in FOLDER.iterdir() if path.suffix in (".svg", ".png")}
