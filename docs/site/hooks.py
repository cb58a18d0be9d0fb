"""The pages of the site: the documents as they are in the repository, the files that they link to,
and the references of Python and of the C++ headers.

The site has the folders of the repository, so that a link leads where it leads on the disk.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from pathlib import Path, PurePosixPath

import headers
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
INDEX = "docs/README.md"  # its tables are the navigation
INCLUDE = "src/module/include"
CHINESE = ".zh-CN.md"
PYTHON = "reference/python.md"
PACKAGES = ("cudarelu", "nn", "nn.attention", "elementwise", "onnx", "ort", "jax", "testing")
LANGUAGES = {"cpp": "h cpp cu cuh", "python": "py", "cmake": "cmake txt"}
SHOWN = (".md", ".png", ".svg", ".css", ".json", ".jsonl")  # not as a page of source
FILES = re.compile(
    r"docs/(pictures|plots|site|gpu-runs)/.*\.(png|svg|css|json)|benchmarks/results/.*"
    r"|(docs|benchmarks|examples)/.*\.md|[^/]*\.md"
)
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")

_command = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
TRACKED = [
    name
    for name in subprocess.run(
        _command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    if (ROOT / name).exists()
]
HEADERS = [
    name.removeprefix(f"{INCLUDE}/")
    for name in TRACKED
    if name.startswith(INCLUDE) and re.search("^///", (ROOT / name).read_text(), re.MULTILINE)
]


def target(page: str, link: str) -> str:
    """The path in the repository to which a link of a page leads."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def page_of(path: str) -> str | None:
    """The page that shows a file or a folder; None if it is shown as it is or does not exist."""
    if (ROOT / path).is_dir():
        return posixpath.normpath(f"{path}/README.md")
    return f"{path}.md" if path in TRACKED and not path.endswith(SHOWN) else None


def source(path: str) -> str:
    """The page of a file that is no document, or of a folder without a README."""
    text = f"---\nsearch:\n  exclude: true\n---\n# {PurePosixPath(path).name}\n\n`{path}`\n\n"
    if (ROOT / path).is_dir():
        files = [name.removeprefix(f"{path}/") for name in TRACKED if name.startswith(f"{path}/")]
        return text + "".join(f"- [{name}]({name})\n" for name in files)
    suffix = PurePosixPath(path).suffix.removeprefix(".")
    language = next((name for name, of in LANGUAGES.items() if suffix in of.split()), "text")
    return f"{text}````{language}\n{(ROOT / path).read_text()}\n````\n"


def python_reference() -> str:
    text = f"{headers.BEHIND_GUIDES}# Python\n\n"
    text += "The functions of the ops themselves are in [ops.md](../docs/ops.md).\n"
    for name in PACKAGES:
        package = name if name == "cudarelu" else f"cudarelu.{name}"
        text += f"\n## {package}\n\n::: {package}\n    options:\n      show_root_heading: false\n"
        text += "      show_root_toc_entry: false\n"
    return text


def navigation() -> list:
    """The tables of the index as sections, each page in the first that names it."""
    nav: list = [{"Overview": "README.md"}, {"All documents": INDEX}]
    seen = {"README.md", INDEX}
    chinese = sorted(name for name in TRACKED if name.endswith(CHINESE))
    for title, rows in re.findall(
        r"^\| (.+) \| \|\n\|---\|---\|\n((?:\|.*\n)+)", _text(INDEX), re.M
    ):
        pages = []
        for link, _ in LINK.findall(rows):
            path = target(INDEX, link)
            if path.endswith(".md") and path not in {*seen, *chinese}:
                seen.add(path)
                pages.append(path)
        nav.append({title.capitalize(): pages})
    by_folder: dict[str, list] = {}
    for name in HEADERS:
        by_folder.setdefault(posixpath.dirname(name), []).append({name: f"reference/{name}.md"})
    nav.append({"Reference": [PYTHON, *({f"C++: {name}": of} for name, of in by_folder.items())]})
    nav.append({"中文": chinese})
    return nav


def _text(path: str) -> str:
    return (ROOT / path).read_text()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = navigation()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    names = [name for name in TRACKED if FILES.fullmatch(name)]
    for name in names:
        files.append(File(name, str(ROOT), config.site_dir, use_directory_urls=False))
    pages = {PYTHON: python_reference()}
    pages |= {f"reference/{n}.md": headers.reference(n, _text(f"{INCLUDE}/{n}")) for n in HEADERS}
    texts = [(name, _text(name)) for name in names if name.endswith(".md")]
    for name, text in texts:  # grows: a page of a folder has links too
        for link, _ in LINK.findall(text):
            path = target(name, link)
            page = page_of(path)
            if page and page not in pages and page not in names:
                pages[page] = source(path)
                texts.append((page, pages[page] if (ROOT / path).is_dir() else ""))
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links to files and folders lead to their pages."""

    def rewritten(link: re.Match) -> str:
        path, anchor = link[1], link[2] or ""
        shown = page_of(target(page.file.src_uri, path))
        start = posixpath.dirname(page.file.src_uri)
        return (posixpath.relpath(shown, start or ".") if shown else path) + anchor

    return LINK.sub(rewritten, markdown)


def on_page_content(html: str, **_: object) -> str:
    return html.replace("::</p>", ":</p>")  # docstrings mark a block so


def on_post_page(output: str, page: Page, **_: object) -> str:
    if page.file.src_uri.endswith(CHINESE):
        return output.replace('<html lang="en"', '<html lang="zh-CN"', 1)
    return output
