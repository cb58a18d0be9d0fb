"""The reference of a C++ header, as Markdown, from its comments.

A header begins with a comment that says what it is for. A declaration that a comment of `///`
precedes is documented: that of a type with its members, that of a function without its body.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

BEHIND_GUIDES = "---\nsearch:\n  boost: 0.3\n---\n"  # in the results of a search
MOST_LINES = 60  # of a type that is shown with the bodies of its functions


def introduction(text: str) -> str:
    """The comment at the head of the file."""
    lines = re.match(r"(//.*\n)*", text)[0].splitlines()
    return "\n".join(line.removeprefix("//").removeprefix(" ") for line in lines)


def documented(text: str) -> Iterator[tuple[str, str]]:
    """The comments at the level of namespaces, each with the declaration that it is of."""
    text = re.sub(r"^namespace detail \{$.*?^\}  // namespace detail$", "", text, flags=re.M | re.S)
    for comment, rest in re.findall(r"((?:^///.*\n)+)(?=((?:.*\n)*))", text, re.MULTILINE):
        lines = rest.splitlines()
        if lines[0].startswith(("namespace", "#")) or lines[0].endswith("\\"):  # of a macro
            continue
        yield re.sub("^/// ?", "", comment, flags=re.MULTILINE), declaration(lines)


def declaration(lines: list[str]) -> str:
    """The declaration that begins here, without its body unless it is a small type's."""
    size = 0
    for size in range(1, len(lines) + 1):
        text = "\n".join(lines[:size])
        if text.endswith((";", "}")) and all(
            text.count(a) == text.count(b) for a, b in ("()", "{}")
        ):
            break
    if without_template(text).startswith(("struct", "class", "enum")):
        return text if size <= MOST_LINES else text[: text.index(" {")] + ";"
    body = re.search(r"(\s*:\s[^:]*)?\s*\{(?=\n| return)", text)
    return text[: body.start()] + ";" if body and text.endswith("}") else text


def without_template(declared: str) -> str:
    return re.sub(r"\A(template <.*?>\n(  requires .*\n)?)+", "", declared, flags=re.DOTALL)


def name(declared: str) -> str:
    """The name of what is declared, for a heading."""
    plain = without_template(declared)
    plain = re.sub(r"\b(alignas|__launch_bounds__)\([^()]*(\([^()]*\)[^()]*)*\)\s*", "", plain)
    patterns = (
        r"\A(?:struct|class|enum class|enum|using)\s+(\w+)",
        r"\A[^(=]*?(\w+)(?:<[^=]*>)?\s*[={]",  # a constant
        r"(operator[^\s(]+|\w+)\s*\(",
    )
    return next(found[1] for pattern in patterns if (found := re.search(pattern, plain)))


def reference(path: str, text: str) -> str:
    """The page of a header; `path` is as in an #include."""
    parts = [f"{BEHIND_GUIDES}# {path}", introduction(text)]
    for comment, declared in documented(text):
        parts += [f"## {name(declared)}", f"```cpp\n{declared}\n```", comment]
    return "\n\n".join(parts) + "\n"
