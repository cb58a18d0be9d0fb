"""The reference of the C++ headers, which is made from their comments."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADERS = ROOT / "src/module/include"


@pytest.fixture(scope="module")
def headers():
    path = ROOT / "docs/site/headers.py"
    specification = importlib.util.spec_from_file_location("headers", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_a_type_a_constant_and_functions(headers):
    text = """// What it is
// for.
#pragma once
namespace a {
namespace detail {
/// Not shown.
int hidden();
}  // namespace detail

/// A type.
template <class T>
struct Pair {
  T first;
  T sum() const { return first; }
};

/// A constant.
inline constexpr int most = 3;

/// Calls f,
/// twice.
template <class F>
Status twice(const F& f,
             int n = 2) {
  return f(n);
}
}  // namespace a
"""
    assert headers.introduction(text) == "What it is\nfor."
    found = {
        headers.name(declared): (comment, declared)
        for comment, declared in headers.documented(text)
    }
    assert list(found) == ["Pair", "most", "twice"]
    assert found["Pair"][1].endswith("{ return first; }\n};")
    assert found["most"] == ("A constant.\n", "inline constexpr int most = 3;")
    twice = "template <class F>\nStatus twice(const F& f,\n             int n = 2);"
    assert found["twice"] == ("Calls f,\ntwice.\n", twice)


@pytest.mark.parametrize("path", sorted(HEADERS.rglob("*.*h")), ids=lambda path: path.name)
def test_every_header_has_a_reference(path, headers):
    page = headers.reference(str(path.relative_to(HEADERS)), path.read_text())
    assert re.search(r"^# cudarelu/\S+\n\n", page, re.MULTILINE)
    assert "## operator\n" not in page
    assert page.count("```") == 2 * page.count("\n## ")
