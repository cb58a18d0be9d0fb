"""cudarelu.load: what it says about bad input, each in one sentence, and about modules that clash.

The modules are loaded in processes of their own, since a process keeps the modules that it loads.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cudarelu
from cudarelu import _build, _cache
from cudarelu._build import kept_sources
from support.full_disks import unwritable

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="g++ is missing")

HEADER = """
#pragma once
#include "cudarelu/elementwise.h"

namespace twice_ops {
struct Twice {
  static constexpr cudarelu::OpSpec spec{
      .signature = "twice(x: T[*]) -> y: T[*]",
      .summary = "2 x, elementwise.",
      .dtypes = cudarelu::DTypeSet::of({cudarelu::DType::float32}),
      .definition = "y = Add(x, x)",
  };
  template <class T>
  CUDARELU_FN T operator()(T x) const {
    return x + x;
  }
};
}  // namespace twice_ops
"""


@pytest.fixture
def header(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDARELU_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "twice.h"
    path.write_text(HEADER)
    return path


def run(code: str) -> str:
    """The output of a program in the working folder."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", "import cudarelu\n" + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


# Sources


def test_a_source_that_does_not_exist(header):
    with pytest.raises(FileNotFoundError, match=r"^twice_ops: there is no source /\S+/twice\.c$"):
        cudarelu.load("twice_ops", [header, "twice.c"], cuda=False)


def test_no_op():
    message = r"^my: no header declares an op: a struct with `static constexpr OpSpec spec`$"
    with pytest.raises(RuntimeError, match=message):
        cudarelu.load_inline("my", "struct NoOp {};", cuda=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("class", "a module cannot have the name class, a keyword of C++, Python or gradients"),
        ("namespace", "a module cannot have the name namespace, a keyword of C++, Python or"),
        ("aten", "a module cannot have the name aten, which PyTorch uses itself"),
        ("cudarelu", "a module cannot have the name cudarelu, the name of this package"),
        (
            "../up",
            "a module cannot have the name '../up': a name consists of lower-case letters, digits",
        ),
    ],
)
def test_names(name, message, header, tmp_path):
    """They are refused before anything is compiled or written."""
    with pytest.raises(ValueError, match=r"cannot have the name") as error:
        cudarelu.load(name, [header], cuda=False)
    assert str(error.value).startswith(message)
    with pytest.raises(ValueError, match=r"cannot have the name"):
        cudarelu.load_inline(name, HEADER, cuda=False)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("before", "after", "line", "message"),
    [
        (") ->", ") -", 8, "signature: `->` is missing before"),
        ("x: T[*]", "if: T[*]", 8, "signature: if is a keyword of Python"),
        ("return x + x", "return x + z", 15, "z. was not declared in this scope"),
        ("T operator()(T x)", "T operator()(T x, T z)", 7, "no match for call to"),
        ("{cudarelu::DType::float32}", "{float32}", 10, "float32. was not declared in this scope"),
    ],
)
def test_the_first_line_of_an_error_is_about_the_source(before, after, line, message, header):
    assert before in HEADER
    header.write_text(HEADER.replace(before, after))
    with pytest.raises(RuntimeError) as error:
        cudarelu.load("twice_ops", [header], cuda=False)
    first = str(error.value).splitlines()[0]
    assert first.startswith(f"twice_ops: {header}:{line}:")
    assert re.search(message, first)


def test_a_signature_in_a_raw_literal(header):
    """The compiler would say only that a constant is none."""
    text = re.sub(r'"(twice\(.*)"', r'R"(\1)"', HEADER.replace(") ->", ") -"))
    assert 'R"(twice(' in text
    header.write_text(text)
    message = cudarelu._build._signature_error([header])
    assert message.startswith(f"{header}:8: error: signature: `->` is missing before")


def test_a_declaration_that_a_reader_refuses(header, monkeypatch):
    """The error names the source, not the library, which is deleted."""

    def read(path):
        raise ValueError(f"{path}: twice: there is no definition")

    monkeypatch.setattr(cudarelu._build._C, "read_library", read)
    with pytest.raises(ValueError, match="there is no definition") as error:
        cudarelu._build._check_declarations(Path("a.part/libtwice_ops.so"), [header])
    assert str(error.value) == f"{header}:8: error: twice: there is no definition"


@pytest.mark.slow
def test_an_error_of_a_signature_is_one_sentence(header):
    """The compiler's text tells nothing more."""
    header.write_text(HEADER.replace(") ->", ") -"))
    with pytest.raises(RuntimeError) as error:
        cudarelu.load("twice_ops", [header], cuda=False)
    assert str(error.value).startswith(f"twice_ops: {header}:8: error: signature: `->` is missing")
    assert "\n" not in str(error.value)


def test_a_source_that_is_left_out(header):
    """The linker's text begins with the names of its functions."""
    functor = HEADER[HEADER.index("  template") : HEADER.index("};\n}")]
    text = HEADER.replace(functor, "  static cudarelu::Status cpu(const cudarelu::Call& call);\n")
    header.write_text(text.replace("elementwise.h", "kernel.h"))
    message = (
        r"^twice_ops: undefined reference to .twice_ops::Twice::cpu\(cudarelu::Call const&\)'\n"
    )
    with pytest.raises(RuntimeError, match=message):
        cudarelu.load("twice_ops", [header], cuda=False)


@pytest.mark.slow
def test_one_source_needs_no_list(header, tmp_path):
    """Nor a path without spaces."""
    folder = tmp_path / "my $ #ops"
    folder.mkdir()
    header.rename(folder / "twice.h")
    output = run(
        """
        import pathlib
        first = cudarelu.load("twice_ops", "my $ #ops/twice.h", cuda=False)
        assert cudarelu.load("twice_ops", pathlib.Path("my $ #ops/twice.h"), cuda=False) is first
        print(first.name)
        """
    )
    assert output == "twice_ops\n"


@pytest.mark.parametrize(
    ("change", "line", "place"),
    [
        (lambda text: text.replace("namespace twice_ops", "namespace my"), 6, "in namespace my"),
        (lambda text: re.sub(r"namespace.*{|}  // name.*", "", text), 6, "in no namespace"),
        (lambda text: text.replace("ops {", "ops { namespace b\n{") + "}", 7, r"in .*_ops::b"),
    ],
)
def test_a_header_of_another_namespace(change, line, place, header):
    """One sentence, before anything is compiled."""
    header.write_text(change(HEADER))
    message = rf"^twice_ops: {header}:{line}: error: Twice is {place}, but the ops of this module "
    with pytest.raises(RuntimeError, match=rf"{message}must be in namespace twice_ops, .*\Z"):
        cudarelu.load("twice_ops", [header], cuda=False)


def spec(before: str) -> str:
    """The header with another beginning of the spec."""
    return HEADER.replace("static constexpr cudarelu::OpSpec spec{", before)


def struct(before: str) -> str:
    """The header with another beginning of the struct."""
    return HEADER.replace("struct Twice {", before)


@pytest.mark.parametrize(
    "text",
    [
        HEADER.replace("  ", "\t").replace("#include", "#\tinclude"),
        HEADER.replace("\n", "\r\n"),
        "\ufeff" + HEADER.replace("#pragma once", "").strip(),
        HEADER.replace(" {\n", "\n{\n"),
        spec("inline constexpr static ::cudarelu::OpSpec\n  spec =\n  {"),
        spec("static constexpr auto spec = cudarelu::OpSpec{"),
        struct('struct Twice {  // "a" comment\n  /* struct Other {\n "b" } */'),
        struct("struct Other;\nclass alignas(8) Twice final : Base<int> {\n public:"),
        struct("enum class Kind { a };\nstruct Helper { int x[2]; };\nstruct Twice {"),
        struct("#if 0\nstruct Old {\n static constexpr OpSpec spec{\n#endif\nstruct Twice {"),
        struct(
            "template <class T> struct Pair { T a; };\nconstexpr int n = 1'000;\nstruct Twice {"
        ),
        HEADER.replace('"twice(x: T[*]) -> y: T[*]"', 'R"s(\n  twice(x: T[*]) -> y: T[*])s"'),
        HEADER.replace("namespace twice_ops {", "inline namespace v1 { namespace twice_ops {")
        + "}",
        HEADER.replace("namespace twice_ops {", "TWICE_BEGIN").replace(
            "}  // name", "TWICE_END //"
        ),
        HEADER.replace("namespace twice_ops {", "#ifdef A\nnamespace b {\n#else\nNS\n#endif"),
    ],
    ids=[
        "tabs",
        "CRLF",
        "BOM",
        "braces on lines",
        "spec on lines",
        "auto",
        "comments",
        "class",
        "helpers",
        "#if 0",
        "template",
        "raw literal",
        "inline namespace",
        "macros",
        "#ifdef",
    ],
)
def test_a_header_as_editors_leave_it(text, tmp_path):
    """The op and its line are found."""
    header = tmp_path / "twice.h"
    header.write_text(text, newline="")
    generate = _build.SDK / "module/generate.sh"
    command = ["sh", generate, tmp_path / "made", "twice_ops", "twice_ops", header]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.split() == [
        word
        for part, suffix in (("cpu", "cpp"), ("cuda", "cu"))
        for word in (part, f"{tmp_path}/made/elementwise/Twice.{suffix}")
    ]
    made = (tmp_path / "made/all_ops.h").read_text()
    assert "List<twice_ops::Twice>" in made
    assert made.endswith("CUDARELU_TVM_FFI(twice_ops::Twice, twice)\n")
    (line,) = set(re.findall(r"#line (\d+)", made))
    assert "OpSpec" in text.splitlines()[int(line) - 1]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (HEADER.encode("utf-16"), "the file is in UTF-16: save it in UTF-8"),
        (HEADER.replace("\n", "\r").encode(), "lines end with CR alone: save the file with LF or"),
    ],
    ids=["UTF-16", "CR"],
)
def test_a_header_that_compilers_cannot_read(written, message, header):
    header.write_bytes(written)
    with pytest.raises(RuntimeError, match=f"^twice_ops: {header}:1: error: {message}"):
        cudarelu.load("twice_ops", [header], cuda=False)


@pytest.mark.slow
def test_a_header_with_tabs_and_braces_of_their_own(header):
    text = HEADER.replace("  ", "\t").replace(" {\n", "\n{\n").replace("\n", "\r\n")
    header.write_text("\ufeff" + text, newline="")
    run("""
        import torch
        my = cudarelu.load("twice_ops", "twice.h", cuda=False)
        assert torch.equal(my.twice(torch.ones(1)), torch.full((1,), 2.0))
    """)


def test_a_functor_without_its_header(header):
    header.write_text(HEADER.replace("elementwise.h", "kernel.h"))
    with pytest.raises(RuntimeError) as error:
        cudarelu.load("twice_ops", [header], cuda=False)
    first = str(error.value).splitlines()[0]
    assert first.startswith(f"twice_ops: {header}:7:")
    assert "an elementwise op needs #include <cudarelu/elementwise.h> in its header" in first


@pytest.mark.slow
def test_a_declaration_on_one_line(header):
    """A namespace, a struct and its spec may begin on one line."""
    lines = HEADER.partition("namespace")
    text = lines[0] + (lines[1] + lines[2]).replace("{\n", "{ ", 3)
    assert "namespace twice_ops { struct Twice { " in text
    header.write_text(text)
    output = run(
        """
        import torch
        my = cudarelu.load("twice_ops", "twice.h", cuda=False)
        print(my.twice(torch.ones(1)))
        """
    )
    assert output == "tensor([2.])\n"


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("y = x + x", "the definition cannot be parsed: line 1, column 7"),
        pytest.param(
            "y = Addd(x, x)",
            "the definition is not valid ONNX: No Op registered for Addd",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "z = Add(x, x)",
            "the definition has no value y, the op's output",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_definition_that_is_not_valid(definition, message, header):
    """Nothing is registered, and the corrected source can be loaded."""
    header.write_text(HEADER.replace("y = Add(x, x)", definition))
    output = run(
        f"""
        import pathlib, torch
        for _ in range(2):
            try:
                cudarelu.load("twice_ops", "twice.h", cuda=False)
            except ValueError as error:
                print(error)
        assert not [each for each in cudarelu.modules() if each.name == "twice_ops"]
        assert not hasattr(torch.ops.twice_ops, "twice")
        header = pathlib.Path("twice.h")
        header.write_text(header.read_text().replace("{definition}", "y = Add(x, x)"))
        print(cudarelu.load("twice_ops", "twice.h", cuda=False).twice(torch.ones(1)))
        """
    )
    first, second, result = output.splitlines()
    assert first == second
    assert first.startswith(f"twice_ops::twice: {message}")
    assert result == "tensor([2.])"


@pytest.mark.slow
def test_accelerate_leaves_out_a_definition_that_is_not_valid(header):
    """Of a library that was not built by `load`; there is one warning."""
    header.write_text(HEADER.replace("y = Add(x, x)", "y = x + x"))
    output = run(
        """
        import warnings
        import onnx.parser
        import cudarelu._build
        import cudarelu.onnx

        cudarelu._build._check_declarations = lambda *_: None
        cudarelu.load("twice_ops", "twice.h", cuda=False)
        text = '<ir_version: 8, opset_import: ["" : 18]> g (float[N] x) => (float[N] y)'
        model = onnx.parser.parse_model(text + " { y = Relu(x) }")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                _, report = cudarelu.onnx.accelerate(model)
        print(*[each.op for each in report.replaced], *[each.message for each in caught], sep="\\n")
        """
    )
    replaced, warning = output.splitlines()
    assert replaced == "relu"
    assert warning.startswith(
        "the op twice of the module twice_ops is left out: twice_ops::twice: "
    )
    assert "the definition cannot be parsed: line 1, column 7" in warning


@pytest.mark.slow
def test_the_reference_names_the_library(header):
    run(
        """
        import shutil
        shutil.copy(cudarelu.load("twice_ops", "twice.h", cuda=False).path, "libtwo.so")
        """
    )
    output = run(
        """
        from cudarelu.__main__ import main
        main(["ops", "--markdown", "--module", "twice_ops", "--library", "./libtwo.so"])
        """
    )
    page = output.partition("# The ops of twice_ops")[2]
    command = "    python -m cudarelu ops --markdown --library libtwo.so --module twice_ops\n"
    assert command in page
    assert 'twice_ops = cudarelu.load_library("libtwo.so")\n' in page


# The architectures


@pytest.fixture
def nvcc(tmp_path, monkeypatch) -> Path:
    """An nvcc and C++ compiler that only writes its arguments to a file, and fails."""
    path = tmp_path / "cuda/bin/nvcc"
    path.parent.mkdir(parents=True)
    path.write_text(
        '#!/bin/sh\ncase "$*" in *--version) ;; *) echo "$@" >>"$0.log"; exit 1 ;; esac\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("CXX", str(path))
    return path


@pytest.mark.parametrize(
    ("listed", "built_for", "flags"),
    [
        ("9.0", "90", ["arch=compute_90,code=sm_90"]),
        (
            "8.0;9.0+PTX",
            "80 90+PTX",
            ["arch=compute_80,code=sm_80", "arch=compute_90,code=[compute_90,sm_90]"],
        ),
        ("8.0, 9.0a", "80 90a", ["arch=compute_80,code=sm_80", "arch=compute_90a,code=sm_90a"]),
    ],
)
def test_the_architectures_of_a_list(listed, built_for, flags, header, nvcc, monkeypatch):
    """The compiler receives them, and the module names them."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    with pytest.raises(RuntimeError, match=r"^twice_ops: "):
        cudarelu.load("twice_ops", [header], cuda=True)
    output = Path(f"{nvcc}.log").read_text()
    assert re.findall(r"-gencode=(\S+)", output) == flags
    assert f'-DCUDARELU_BUILT_FOR="the CPU and CUDA architectures {built_for}"' in output


@pytest.mark.parametrize("entry", ["sm_90", "Ampere", "90"])
def test_what_is_no_architecture(entry, header, nvcc, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", f"8.0;{entry}")
    message = rf"^twice_ops: TORCH_CUDA_ARCH_LIST has {entry}, which is no compute capability"
    with pytest.raises(ValueError, match=message):
        cudarelu.load("twice_ops", [header], cuda=True)


# The compilers


@pytest.mark.parametrize("kind", ["launcher", "option", "space", "path with a space"])
def test_a_compiler_with_more_words(kind, header, tmp_path, monkeypatch):
    """As CMake, make and PyTorch take them."""
    launcher = tmp_path / "a launcher"
    launcher.write_text('#!/bin/sh\necho "$@" >>"$0.log"\nexec "$@"\n')
    launcher.chmod(0o755)
    (tmp_path / "a compiler").symlink_to(shutil.which("g++"))
    commands = {
        "launcher": f"'{launcher}' g++ -m64",
        "option": "g++ -m64",
        "space": " g++ ",
        "path with a space": f"{tmp_path}/a compiler",
    }
    monkeypatch.setenv("CXX", commands[kind])
    header.write_text("struct NoOp {};")
    with pytest.raises(RuntimeError, match="no header declares an op"):
        _build.build("twice_ops", header, cuda=False)
    if kind == "launcher":
        assert Path(f"{launcher}.log").read_text() == "g++ -m64 --version\n"


def test_options_of_a_compiler_for_nvcc(header, nvcc, monkeypatch):
    """nvcc takes the compiler without what runs it, and its options one by one."""
    monkeypatch.setenv("CXX", f"env {nvcc} -m64 -Wa,--noexecstack")
    monkeypatch.setenv("CUDACXX", f"env {nvcc} -Xptxas=-v")
    with pytest.raises(RuntimeError, match=r"^twice_ops: "):
        cudarelu.load("twice_ops", [header], cuda=True)
    output = Path(f"{nvcc}.log").read_text()
    (cuda,) = (line for line in output.splitlines() if "-gencode" in line)
    assert cuda.startswith("-Xptxas=-v ")
    assert f"-ccbin {nvcc} " in cuda
    assert r"-Xcompiler -m64 -Xcompiler -Wa\,--noexecstack" in cuda
    monkeypatch.setenv("NVCC_CCBIN", "g++")  # nvcc reads it
    Path(f"{nvcc}.log").unlink()
    with pytest.raises(RuntimeError, match=r"^twice_ops: "):
        cudarelu.load("twice_ops", [header], cuda=True)
    assert "-ccbin" not in Path(f"{nvcc}.log").read_text()


@pytest.mark.parametrize("variable", ["CXX", "CUDACXX"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (
            "/missing/g++",
            FileNotFoundError,
            r"there is no program /missing/g\+\+: install it, or set",
        ),
        ("env missing -m64", FileNotFoundError, "there is no program missing: install it, or set"),
        ("-m64", FileNotFoundError, "there is no program -m64: install it, or set"),
        ("'g++", ValueError, r"\(No closing quotation\): set"),
        ("false", RuntimeError, r"`false --version` fails \(.*status 1.*\): set"),
    ],
)
def test_a_compiler_that_does_not_run(variable, value, error, message, header, nvcc, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(error, match=f"{message} {variable}"):
        cudarelu.load("twice_ops", [header], cuda=True)


# The cache


def test_a_cache_that_cannot_be_written(header, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUDARELU_CACHE_DIR", str(tmp_path / "file"))
    message = r"^twice_ops: the cache folder \S+/file/\S+ cannot be written \(.+\); set CUDARELU_CA"
    with pytest.raises(OSError, match=message):
        cudarelu.load("twice_ops", [header], cuda=False)
    with pytest.raises(OSError, match=message):
        cudarelu.load_inline("twice_ops", HEADER, cuda=False)


class Builds:
    """Builds a module with a copy of the SDK, which tests change, and counts what is run."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sdk = folder / "sdk"
        shutil.copytree(_build.SDK, self.sdk)
        self.change("module/flags.json", b"-O3", b"-O0")  # compiles faster
        monkeypatch.setattr(_build, "SDK", self.sdk)
        self._calls = folder / "calls"
        compiler = folder / "compiler"
        compiler.write_text(f'#!/bin/sh\necho "$@" >>{self._calls}\nexec g++ "$@"\n')
        compiler.chmod(0o755)
        monkeypatch.setenv("CXX", str(compiler))

    def change(self, file: str, before: bytes, after: bytes) -> None:
        content = (self.sdk / file).read_bytes()
        assert before in content
        (self.sdk / file).write_bytes(content.replace(before, after, 1))

    def run(self, build: Callable[[], Path]) -> tuple[Path, int, int]:
        """The library, and how many times the compiler compiled and linked."""
        self._calls.write_text("")
        library = build()
        calls = self._calls.read_text()
        return library, calls.count(" -c "), calls.count("-shared ")


@pytest.fixture
def builds(header, tmp_path, monkeypatch) -> Builds:
    return Builds(tmp_path, monkeypatch)


def of_a_header() -> Callable[[], Path]:
    return lambda: _build.build("twice_ops", "twice.h", cuda=False)


def of_a_definition() -> Callable[[], Path]:
    with cudarelu.Library("defined") as library:
        cudarelu.define("twice(x: T[*]) -> y: T[*]", "y = Add(x, x)", summary="2 x.")
    return lambda: library.build(cuda=False)


@pytest.mark.parametrize("module", [of_a_header, of_a_definition])
def test_a_change_of_the_core_links_again(builds, module):
    build = module()
    first, compiled, linked = builds.run(build)
    assert (compiled, linked) == (2, 1)
    assert builds.run(build) == (first, 0, 0)

    dates = b"/               0           ", b"/               1           "
    libraries = {first}
    for change in (
        ("lib/libcudarelu_module.a", *dates),
        ("module/exports.version", b"{", b"{ # exported\n"),
        ("module/flags.json", b'"link": [', b'"link": ["-Wl,-z,now", '),
    ):
        builds.change(*change)
        library, compiled, linked = builds.run(build)
        assert (compiled, linked) == (0, 1)
        assert builds.run(build) == (library, 0, 0)
        libraries.add(library)
    assert len(libraries) == 4
    assert all(each.exists() for each in libraries)  # processes may have them

    for file, before, after in (
        ("module/flags.json", b'"-Wl,-z,now", ', b""),
        ("module/exports.version", b" # exported\n", b""),
        ("lib/libcudarelu_module.a", *reversed(dates)),
    ):
        builds.change(file, before, after)
    assert builds.run(build) == (first, 0, 0)


def test_what_compiles_again(builds):
    """The content of what is compiled, and not its time."""
    build = of_a_header()
    library, *_ = builds.run(build)
    for file in builds.sdk.rglob("*"):
        os.utime(file, (1, 1))
    assert builds.run(build) == (library, 0, 0)
    builds.change("include/cudarelu/detail/cuda/elementwise.cuh", b"\n", b" \n")
    assert builds.run(build) == (library, 0, 0)  # the CPU does not need it
    for change in (
        ("include/cudarelu/detail/cpu/elementwise.h", b"\n", b" \n"),
        ("module/generate.sh", b"\n", b" \n"),
        ("module/flags.json", b"-O0", b"-O1"),
    ):
        builds.change(*change)
        other, compiled, linked = builds.run(build)
        assert (compiled, linked) == (2, 1)
        assert other != library


def test_a_damaged_cache_is_built_again(builds, tmp_path):
    """As a program that cleans folders, or a crash of the system, may leave it."""
    build = of_a_header()
    library, *_ = builds.run(build)

    def empty(file: Path) -> None:
        file.unlink()  # this process keeps the library
        file.touch()

    for name, damage, compiled in (
        ("libtwice_ops.so", Path.unlink, 0),
        ("libtwice_ops.so", empty, 0),
        ("compiled.json", empty, 2),
        ("1.o", Path.unlink, 2),
    ):
        (file,) = (tmp_path / "cache/modules").rglob(name)
        damage(file)
        assert builds.run(build) == (library, compiled, 1)
        assert file.stat().st_size > 0


@pytest.fixture
def folder_of_all() -> Iterator[Path]:
    """A folder that all users can read. Those of pytest are for one user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_the_cache_has_is_used_without_writing(folder_of_all, monkeypatch):
    """On a disk that is read-only, in another place and by other users, as in a container, whose
    image has it. Some platforms give containers users with any number and group 0."""
    cache = folder_of_all / "cache"
    monkeypatch.setenv("CUDARELU_CACHE_DIR", str(cache))
    builds = Builds(folder_of_all, monkeypatch)
    build = of_a_definition()
    library, *_ = builds.run(build)
    with unwritable(cache, "read-only"):
        assert builds.run(build) == (library, 0, 0)

    def build_as_user(group: int) -> Path:
        os.setegid(group)
        os.seteuid(12345)
        try:
            return build()
        finally:
            os.seteuid(0)
            os.setegid(0)

    def change_mode(mode: str) -> None:
        subprocess.run(["chmod", "-R", mode, cache], check=True)

    cache = cache.rename(folder_of_all / "moved")
    monkeypatch.setenv("CUDARELU_CACHE_DIR", str(cache))
    library = cache / library.relative_to(folder_of_all / "cache")
    monkeypatch.setenv("HOME", "/missing")
    for group in (12345, 0):
        change_mode("go=")
        message = rf"written \(Permission denied\); set .*, or .* \(chmod -R go\+rX {cache}\)$"
        with pytest.raises(OSError, match=message):
            build_as_user(group)
        change_mode("go=rX")
        assert build_as_user(group) == library
        change_mode("g=u")
        message = rf"user 0, mode 775\), .*: .* \(chmod -R go-w {cache}\), set CUDARELU_CACHE_DIR"
        with pytest.raises(PermissionError, match=message):
            build_as_user(group)


def test_a_user_without_a_home(header, monkeypatch):
    for variable in ("CUDARELU_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a number that /etc/passwd does not have
    with pytest.raises(RuntimeError, match="has no home folder for the cache: set CUDARELU_CACHE_"):
        cudarelu.load("twice_ops", [header], cuda=False)
    assert _cache.cached_libraries() == {}


# Libraries


def test_a_library_that_is_not_a_module():
    library = Path(cudarelu._C.__file__).parent / "libcudarelu_torch.so"
    message = r"libcudarelu_torch\.so: not an op module, since it does not export cudarelu_get_mo"
    with pytest.raises(ValueError, match=message):
        cudarelu.load_library(library)


@pytest.mark.parametrize("part", [0.2, 0.9])
def test_a_library_that_is_incomplete(tmp_path, part):
    """The dynamic linker would end the process."""
    whole = Path(cudarelu._C.__file__).parents[1] / "libcudarelu_ops.so"
    library = tmp_path / "libpart.so"
    with whole.open("rb") as file:
        library.write_bytes(file.read(int(part * whole.stat().st_size)))
    with pytest.raises(ValueError, match=r"libpart\.so: the library is incomplete: it has \d+ byt"):
        cudarelu.load_library(library)


@pytest.mark.slow
def test_modules_that_clash(header):
    """The sources are compiled twice here, the second time with another summary."""
    output = run(
        """
        import pathlib, shutil, torch
        first = cudarelu.load("twice_ops", ["twice.h"], cuda=False)
        assert cudarelu.load("twice_ops", ["twice.h"], cuda=False) is first
        shutil.copy(first.path, "copy.so")
        assert cudarelu.load_library("copy.so") is first

        header = pathlib.Path("twice.h")
        header.write_text(header.read_text().replace("2 x, elementwise", "x + x, elementwise"))
        try:
            cudarelu.load("twice_ops", ["twice.h"], cuda=False)
        except ValueError as error:
            print(error)
            other = str(error).rpartition(" and ")[2]
            assert pathlib.Path(other).exists() and first.path in str(error)

        # As an installation does: another file under the name of the loaded one.
        shutil.copy(other, "new.so")
        pathlib.Path("new.so").replace(first.path)
        try:
            cudarelu.load_library(first.path)
        except ValueError as error:
            print(error)
        assert torch.equal(first.twice(torch.ones(2)), torch.full((2,), 2.0))
        """
    )
    clash, replaced = output.splitlines()
    assert clash.startswith("two modules have the name twice_ops: /")
    assert ", which this process keeps, and /" in clash
    assert replaced.endswith(
        "libtwice_ops.so has been replaced since it was loaded; load the new one in a new process"
    )


# Other users


def test_the_cache_is_private_to_the_user(header, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", failing_compiler(tmp_path / "failing"))
    with pytest.raises(RuntimeError):
        cudarelu.load("twice_ops", [header], cuda=False)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "cache" / "modules").stat().st_mode) == 0o700


def test_what_others_can_write_is_not_run(builds, tmp_path):
    """Libraries that are loaded, and objects that are linked."""
    build = of_a_header()
    library, *_ = builds.run(build)
    cache = tmp_path / "cache"
    objects = sorted(cache.rglob("*.o"))
    for file in [library, *objects]:
        for each in (file, *file.parents):
            if each.is_relative_to(cache):
                each.chmod(0o755)
    assert builds.run(build) == (library, 0, 0)  # others can read it

    def is_refused(changed: Path) -> None:
        with pytest.raises(PermissionError, match=f"^{changed} can be written by other users"):
            build()

    for changed in (cache, cache / "modules/twice_ops", library):
        changed.chmod(0o777)
        is_refused(changed)
        changed.chmod(0o755)
    library.unlink()
    for changed in objects:
        changed.chmod(0o777)
        is_refused(changed)
        changed.chmod(0o755)
    if os.geteuid() == 0:  # only root can give a file to another user
        os.chown(cache, 12345, -1)
        is_refused(cache)


# Faults


def failing_compiler(path: Path) -> str:
    """A C++ compiler that only says its version."""
    path.write_text('#!/bin/sh\n[ "$1" = --version ]\n')
    path.chmod(0o755)
    return str(path)


def scratch_folders(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.part"))


def test_a_killed_build(header, tmp_path, monkeypatch):
    """Its temporary folder stays while it runs, and a later build of the module removes it."""
    cache = tmp_path / "cache"
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\n[ "$1" = --version ] && exit\nsleep 600\n')
    slow.chmod(0o755)
    load = "import cudarelu; cudarelu.load('twice_ops', ['twice.h'], cuda=False)"
    building = subprocess.Popen(
        [sys.executable, "-c", load],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CXX": str(slow)},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not scratch_folders(cache):
            assert building.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        monkeypatch.setenv("CXX", failing_compiler(tmp_path / "failing"))
        with pytest.raises(RuntimeError):
            cudarelu.load("twice_ops", [header], cuda=False)
        assert len(scratch_folders(cache)) == 1
    finally:
        os.killpg(building.pid, signal.SIGKILL)
        building.wait()
    assert len(scratch_folders(cache)) == 1
    with pytest.raises(RuntimeError):
        cudarelu.load("twice_ops", [header], cuda=False)
    assert not scratch_folders(cache)


@pytest.mark.slow
def test_sources_of_a_killed_process(tmp_path, monkeypatch):
    """Sources that are half written are not read."""
    monkeypatch.setenv("CUDARELU_CACHE_DIR", str(tmp_path / "cache"))
    script = """
        import os, signal
        from pathlib import Path
        from cudarelu._build import kept_sources

        class Files(dict):
            def items(self):
                yield "a.h", "first"
                os.kill(os.getpid(), signal.SIGKILL)

        kept_sources("twice_ops", "text", Files)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert scratch_folders(tmp_path / "cache")
    files = {"a.h": "first", "b.h": "second"}
    kept = kept_sources("twice_ops", "text", lambda: files)
    assert {each.name: each.read_text() for each in kept} == files
    assert not scratch_folders(tmp_path / "cache")


@pytest.mark.slow
def test_texts_in_a_locale_of_ascii(header, tmp_path, monkeypatch):
    """The sources that are kept, saved and included have any letters, and any paths. So has what
    compilers say."""
    header.write_text(HEADER.replace("elementwise.", "\xe9l\xe9ment."), encoding="utf-8")
    own = tmp_path / "\xe9" / "own.h"
    own.parent.mkdir()
    own.touch()
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "a.d").write_text(f"a.o: {own}\n", encoding="utf-8")
    shutil.copy(header, own.parent / "twice.cpp")
    failing = tmp_path / "failing"
    failing.write_text(
        '#!/bin/sh\n[ "$1" = --version ] || ! echo "\xe9: error"\n', encoding="utf-8"
    )
    failing.chmod(0o755)
    monkeypatch.setenv("CXX", str(failing))
    for name, value in {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)
    run(r"""
        from pathlib import Path
        from cudarelu._build import _included, kept_sources

        with cudarelu.Library("accented") as library:
            cudarelu.define("f(x: T[*]) -> y: T[*]", "y = Neg(x)", summary="\xe9")
            library.add_sources("twice.h")
        library.save("my_ops")
        kept_sources("accented", "text", library.headers)
        (own,) = _included(Path("build"))
        assert Path(own).name == "own.h"
        try:
            cudarelu.load("twice_ops", ["twice.h", Path(own).parent / "twice.cpp"], cuda=False)
        except RuntimeError as error:
            assert r"\xc3\xa9: error" in str(error), error
        else:
            raise AssertionError
    """)
    assert (tmp_path / "my_ops/src/twice.h").read_bytes() == header.read_bytes()
    (kept,) = tmp_path.glob("cache/inline/*/f")
    for path in (kept, tmp_path / "my_ops/src/f.h"):
        assert '.summary = "\xe9"' in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_disk_that_cannot_be_written(kind, tmp_path, monkeypatch):
    folder = tmp_path / "disk"
    monkeypatch.setenv("CUDARELU_CACHE_DIR", str(folder / "cache"))
    with unwritable(folder, kind) as reason:
        with pytest.raises(
            OSError, match=rf"^twice_ops: the cache folder .* \({reason}\); set CUDA"
        ):
            cudarelu.load_inline("twice_ops", HEADER, cuda=False)
        assert not list(folder.rglob("*.part"))
        assert not list(folder.rglob("*.h"))


def test_a_disk_that_is_full_after_the_sources(header, tmp_path, monkeypatch):
    folder = tmp_path / "disk"
    monkeypatch.setenv("CUDARELU_CACHE_DIR", str(folder / "cache"))
    with unwritable(folder, "full", free=1 << 16):
        with pytest.raises(RuntimeError, match=r"No space left on device") as error:
            cudarelu.load_inline("twice_ops", HEADER, cuda=False)
        assert str(error.value).startswith("twice_ops: ")
        assert not list(folder.rglob("*.part"))
        assert not list(folder.rglob("*.so"))
