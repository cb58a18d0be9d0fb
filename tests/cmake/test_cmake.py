"""What CMake finds and selects: the find modules, the CUDA architectures, the closing table.

The tests only configure; they build nothing. The packages to find are folders of empty files, and a
fake nvidia-smi reports the GPUs.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.utils.cpp_extension import CUDA_HOME

ROOT = Path(__file__).parents[2]
PATH = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool, path=PATH) is None for tool in ("cmake", "ninja", "c++")),
    reason="cmake, ninja or c++ is missing",
)

# Variables of the environment that would affect the results.
DECIDING = re.compile(r"(Torch|OnnxRuntime|ORT|CMAKE|CUDA|TORCH_CUDA)\w*|.*_ROOT")


def cmake(*arguments: object, **environment: object) -> tuple[int, str]:
    """The exit status and the output of cmake."""
    kept = {name: value for name, value in os.environ.items() if not DECIDING.fullmatch(name)}
    done = subprocess.run(
        ["cmake", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        env=kept | {"PATH": PATH} | {name: str(value) for name, value in environment.items()},
    )
    return done.returncode, done.stdout


def configured(*arguments: object, **environment: object) -> str:
    """The output of a configuration that must succeed."""
    status, printed = cmake(*arguments, **environment)
    assert status == 0, printed
    return printed


def slow(*values: str) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


def row(printed: str, part: str) -> str:
    """The row of a part in the closing table."""
    (found,) = re.findall(rf"^  {part} +(o.*)$", printed, re.MULTILINE)
    return re.sub(" +", " ", found)


# The find modules


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def torch_folder(folder: Path, version: str = "2.14.1", python: bool = True) -> Path:
    """A folder with the files of LibTorch that CMake reads."""
    numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    text = "".join(f"#define TORCH_VERSION_{name} {number}\n" for name, number in numbers)
    api = folder / "include/torch/csrc/api/include/torch"
    older = version.startswith("2.7.")
    write((api if older else folder / "include/torch/headeronly") / "version.h", text)
    write(api / "torch.h")
    write(folder / "include/torch/library.h")
    write(folder / "share/cmake/Torch/TorchConfig.cmake", "message(FATAL_ERROR config)")
    for name in ("torch", "torch_cpu", "c10", *["torch_python"] * python):
        write(folder / f"lib/lib{name}.so")
    return folder


def ort_folder(folder: Path, api: int = 30, suffix: str = "include", library: bool = True) -> Path:
    write(folder / suffix / "onnxruntime_c_api.h", f"#define ORT_API_VERSION {api}\n")
    if library:
        write(folder / "lib/libonnxruntime.so")
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Callable[..., tuple[int, str]]:
    """project(PACKAGE, *options, **environment): what a project gets from find_package."""
    source = tmp_path_factory.mktemp("project")
    (source / "CMakeLists.txt").write_text(f"""
        cmake_minimum_required(VERSION 3.25)
        project(finds LANGUAGES CXX)
        list(APPEND CMAKE_MODULE_PATH {ROOT}/cmake)
        if(PYTHON)
          find_package(Python COMPONENTS Interpreter REQUIRED)
        endif()
        find_package(${{PACKAGE}})
        list(GET PACKAGE 0 name)
        foreach(variable FOUND VERSION INCLUDE_DIRS API_VERSION LIBRARY)
          message("${{variable}}=${{${{name}}_${{variable}}}}")
        endforeach()
        get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
        message("targets=${{targets}}")
        foreach(target ${{targets}})
          get_target_property(libraries ${{target}} INTERFACE_LINK_LIBRARIES)
          message("${{target}}=${{libraries}}")
        endforeach()
    """)
    build = source / "build"

    def configure(package: str, *options: object, **environment: object) -> dict[str, str]:
        forget = ["-UTorch*", "-UOnnxRuntime*", "-UORT*", "-UCMAKE_PREFIX_PATH", "-U*Python*"]
        options = (*forget, "-UPYTHON", f"-DPACKAGE={package}", *options)
        status, printed = cmake("-G", "Ninja", "-S", source, "-B", build, *options, **environment)
        found = dict(re.findall(r"^([\w:]+)=(.*)$", printed, re.MULTILINE))
        return found | {"status": str(status), "printed": re.sub(r"\s+", " ", printed)}

    return configure


@pytest.mark.xdist_group("find_modules")
class TestFindTorch:
    @pytest.mark.parametrize(
        "given",
        [
            {"Torch_ROOT": ""},
            {"Torch_DIR": "share/cmake/Torch"},
            {"CMAKE_PREFIX_PATH": ""},
            {"CMAKE_PREFIX_PATH": "share/cmake"},  # torch.utils.cmake_prefix_path
        ],
        ids=["root", "dir", "prefix", "config_prefix"],
    )
    @pytest.mark.parametrize("by", ["option", "environment"])
    def test_finds_what_is_given(self, project, tmp_path, given, by):
        ((name, place),) = given.items()
        folder = torch_folder(tmp_path / "libtorch")
        if by == "option":
            found = project("Torch;2.11", f"-D{name}={folder / place}")
        else:
            found = project("Torch;2.11", **{name: folder / place})
        assert found["FOUND"] == "TRUE", found["printed"]
        assert found["VERSION"] == "2.14.1"
        include = folder / "include"
        assert found["INCLUDE_DIRS"] == f"{include};{include}/torch/csrc/api/include"
        lib = folder / "lib"
        assert found["Torch::CPU"] == f"{lib}/libtorch_cpu.so;{lib}/libc10.so"
        assert found["Torch::Python"] == f"Torch::CPU;{lib}/libtorch_python.so"
        assert f"{lib}/libtorch.so" in found["Torch::Torch"].split(";")

    def test_finds_the_interpreters_package(self, project, tmp_path):
        package = torch_folder(tmp_path / "site/torch")
        write(package / "__init__.py", "raise SystemExit('imported')")
        found = project("Torch", "-DPYTHON=ON", PYTHONPATH=tmp_path / "site")
        assert found["INCLUDE_DIRS"].startswith(f"{package}/include;"), found["printed"]
        assert project("Torch", PYTHONPATH=tmp_path / "site")["FOUND"] == "FALSE"

        given = torch_folder(tmp_path / "libtorch")
        for option in (f"-DCMAKE_PREFIX_PATH={given}", f"-DTorch_DIR={given}/share/cmake/Torch"):
            found = project("Torch", "-DPYTHON=ON", option, PYTHONPATH=tmp_path / "site")
            assert found["INCLUDE_DIRS"].startswith(f"{given}/include;")

    def test_order_and_one_folder_for_all(self, project, tmp_path):
        first = torch_folder(tmp_path / "first", python=False)
        second = torch_folder(tmp_path / "second")
        found = project(
            "Torch", f"-DTorch_DIR={first}/share/cmake/Torch", f"-DCMAKE_PREFIX_PATH={second}"
        )
        assert found["Torch::CPU"].startswith(f"{first}/lib/")
        assert "Torch::Python" not in found["targets"]  # only the second has that library

    @pytest.mark.parametrize(
        ("wanted", "version", "suits"),
        [
            ("2.11", "2.11.0", True),
            ("2.11", "2.10.2", False),
            ("2.15", "2.14.1", False),
            ("2.11...<2.14", "2.14.1", False),
            ("2.14.1;EXACT", "2.14.1", True),
        ],
    )
    def test_version(self, project, tmp_path, wanted, version, suits):
        folder = torch_folder(tmp_path, version)
        found = project(f"Torch;{wanted}", f"-DTorch_ROOT={folder}")
        assert found["FOUND"] == ("TRUE" if suits else "FALSE")
        assert found["VERSION"] == version

    def test_says_what_is_missing(self, project, tmp_path):
        found = project("Torch;REQUIRED")
        assert found["status"] == "1"
        assert "Could NOT find Torch" in found["printed"]
        assert "CMAKE_PREFIX_PATH" in found["printed"]
        folder = torch_folder(tmp_path)
        (folder / "lib/libc10.so").unlink()
        assert "missing: Torch_C10_LIBRARY" in project("Torch", f"-DTorch_ROOT={folder}")["printed"]


@pytest.mark.xdist_group("find_modules")
class TestFindOnnxRuntime:
    @pytest.mark.parametrize("name", ["ORT_ROOT", "OnnxRuntime_ROOT", "CMAKE_PREFIX_PATH"])
    @pytest.mark.parametrize("suffix", ["include", "include/onnxruntime/core/session"])
    def test_finds_what_is_given(self, project, tmp_path, name, suffix):
        folder = ort_folder(tmp_path / "include/onnxruntime", suffix=suffix)
        for found in (
            project("OnnxRuntime;1.23", f"-D{name}={folder}"),
            project("OnnxRuntime;1.23", **{name: folder}),
        ):
            assert found["FOUND"] == "TRUE", found["printed"]
            assert (found["VERSION"], found["API_VERSION"]) == ("1.30", "30")
            assert found["INCLUDE_DIRS"] == str(folder / suffix)
            assert found["LIBRARY"] == f"{folder}/lib/libonnxruntime.so"
            assert found["targets"] == "OnnxRuntime::Headers"

    def test_headers_are_enough(self, project, tmp_path):
        found = project("OnnxRuntime", f"-DORT_ROOT={ort_folder(tmp_path, library=False)}")
        assert found["FOUND"] == "TRUE"
        assert found["LIBRARY"].endswith("-NOTFOUND")

    def test_a_wrong_root_is_not_replaced(self, project, tmp_path):
        folder = ort_folder(tmp_path / "right")
        found = project(
            "OnnxRuntime", f"-DORT_ROOT={tmp_path}/wrong", f"-DCMAKE_PREFIX_PATH={folder}"
        )
        assert found["FOUND"] == "FALSE"

    def test_version(self, project, tmp_path):
        found = project("OnnxRuntime;1.23", f"-DORT_ROOT={ort_folder(tmp_path, api=22)}")
        assert (found["FOUND"], found["VERSION"]) == ("FALSE", "1.22")


# The project itself


def configure_project(build: Path, *options: object, **environment: object) -> tuple[int, str]:
    chosen = dict.fromkeys(("CUDA", "TORCH", "ORT", "TESTS"), "OFF")
    for option in options:
        if match := re.match(r"-DCUDARELU_(CUDA|TORCH|ORT|TESTS)=(.*)", str(option)):
            chosen[match[1]] = match[2]
    switches = [f"-DCUDARELU_{part}={value}" for part, value in chosen.items()]
    python = f"-DPython_EXECUTABLE={sys.executable}"
    return cmake("-G", "Ninja", "-S", ROOT, "-B", build, python, *switches, *options, **environment)


def test_links_to_deleted_sources_are_removed(tmp_path):
    package = tmp_path / "build/python/cudarelu"
    package.mkdir(parents=True)
    (package / "moved.py").symlink_to(tmp_path / "nothing.py")
    status, printed = configure_project(tmp_path / "build", "-DCUDARELU_TORCH=OFF")
    assert status == 0, printed
    assert not (package / "moved.py").is_symlink()
    assert (package / "__init__.py").exists()


class TestClosingTable:
    """The closing table, and the error if a required part is missing."""

    @pytest.fixture
    def configure(self, tmp_path):
        def configure(*options: object, **environment: object) -> tuple[int, str]:
            return configure_project(tmp_path / "build", *options, **environment)

        return configure

    def test_torch_of_a_folder_without_python(self, configure, tmp_path):
        folder = torch_folder(tmp_path / "libtorch", python=False)
        options = ("-DCUDARELU_TORCH=AUTO", "-DCMAKE_DISABLE_FIND_PACKAGE_Python=ON")
        status, printed = configure(*options, f"-DTorch_DIR={folder}/share/cmake/Torch")
        assert status == 0, printed
        assert row(printed, "PyTorch binding") == f"on PyTorch 2.14.1 ({folder}/include)"
        assert "this LibTorch does not have libtorch_python" in row(printed, "Python module")

    def test_torch_that_is_too_old(self, configure, tmp_path):
        option = f"-DTorch_ROOT={torch_folder(tmp_path / 'libtorch', '2.7.0')}"
        status, printed = configure("-DCUDARELU_TORCH=AUTO", option)
        assert status == 0, printed
        assert row(printed, "PyTorch binding") == "off PyTorch 2.7.0 is older than 2.11"
        status, printed = configure("-DCUDARELU_TORCH=ON", option)
        assert status == 1
        assert "CUDARELU_TORCH=ON, but PyTorch 2.7.0 is older than 2.11" in re.sub(
            r"\s+", " ", printed
        )

    def test_no_torch(self, configure):
        options = ("-DCUDARELU_TORCH=AUTO", "-DCMAKE_DISABLE_FIND_PACKAGE_Python=ON")
        _, printed = configure(*options)
        assert row(printed, "PyTorch binding").startswith("off no Python and no LibTorch: set ")

    def test_ort_root(self, configure, tmp_path):
        status, printed = configure("-DCUDARELU_ORT=AUTO", ORT_ROOT=tmp_path / "nothing")
        assert status == 1
        missing = f"ORT_ROOT is {tmp_path}/nothing, which has no include/onnxruntime_c_api.h"
        assert missing in re.sub(r"\s+", " ", printed)  # CMake breaks lines
        old = ort_folder(tmp_path / "old", api=22)
        _, printed = configure("-DCUDARELU_ORT=AUTO", ORT_ROOT=old)
        assert row(printed, "ONNX Runtime plugin") == (
            f"off the headers in {old}/include have API version 22; 23 or later is needed"
        )


def test_each_folder_finds_the_architectures(tmp_path):
    """Two folders of a project may look for the package each."""
    write(
        tmp_path / "CMakeLists.txt",
        "cmake_minimum_required(VERSION 3.25)\nproject(two LANGUAGES NONE)\n"
        "add_subdirectory(a)\nadd_subdirectory(b)\n",
    )
    for name in "ab":
        write(
            tmp_path / name / "CMakeLists.txt",
            f"include({ROOT}/cmake/sdk/CudaToolkit.cmake)\n"
            'cudarelu_choose_architectures(found source "")\n'
            f'message(STATUS "{name}: ${{found}}")\n',
        )
    printed = configured(
        "-S", tmp_path, "-B", tmp_path / "build", CUDAARCHS="", TORCH_CUDA_ARCH_LIST=""
    )
    first, second = (re.findall(rf"-- {name}: (.+)", printed) for name in "ab")
    assert first == second != []


@pytest.fixture(scope="module")
def configure_cuda(tmp_path_factory) -> Callable[..., str]:
    """configure_cuda(*options, gpus=CAPABILITIES, **environment): the architectures of the closing
    table, or the whole output if there is no table."""
    folder = tmp_path_factory.mktemp("cuda")
    nvidia_smi = folder / "bin/nvidia-smi"
    write(nvidia_smi)
    nvidia_smi.chmod(0o755)

    def configure(*options, gpus: str = "", **environment) -> str:
        code = f"printf '{gpus}'" if gpus else "exit 9"
        nvidia_smi.write_text(f"#!/bin/sh\n{code}\n")
        forget = ("-UCUDARELU_CUDA_ARCHITECTURES*", "-UCMAKE_CUDA_ARCHITECTURES", "-USKBUILD")
        _, printed = configure_project(
            folder / "build",
            "-DCUDARELU_CUDA=ON",
            *forget,
            *options,
            **{"PATH": f"{nvidia_smi.parent}:{PATH}", "CUDACXX": f"{CUDA_HOME}/bin/nvcc"},
            **environment,
        )
        if "CUDA kernels" not in printed:
            return printed
        return row(printed, "CUDA kernels").split("architectures ")[1]

    configure.build = folder / "build"
    return configure


@pytest.mark.skipif(CUDA_HOME is None, reason="PyTorch finds no CUDA toolkit")
@pytest.mark.xdist_group("cuda_architectures")
class TestArchitectures:
    OURS = "-DCUDARELU_CUDA_ARCHITECTURES=80;90a"
    CMAKES = "-DCMAKE_CUDA_ARCHITECTURES=86"

    @pytest.mark.slow
    def test_order(self, configure_cuda):
        torch = {"TORCH_CUDA_ARCH_LIST": "7.5"}
        everything = {"CUDAARCHS": "89", **torch, "gpus": "8.0\n"}
        assert configure_cuda(self.OURS, self.CMAKES, **everything) == (
            "80;90a (CUDARELU_CUDA_ARCHITECTURES)"
        )
        assert configure_cuda(self.CMAKES, **everything) == "86 (CMAKE_CUDA_ARCHITECTURES)"
        assert configure_cuda(**everything) == "89 (CUDAARCHS)"
        assert configure_cuda(**torch, gpus="8.0\n") == "75-real (TORCH_CUDA_ARCH_LIST)"
        assert configure_cuda(gpus="9.0\n8.0\n9.0\n") == (
            "90;80 (GPUs of this machine; set CUDARELU_CUDA_ARCHITECTURES for others)"
        )

    @pytest.mark.slow
    def test_without_a_gpu(self, configure_cuda):
        others = "(no GPU found; set CUDARELU_CUDA_ARCHITECTURES for others)"
        assert configure_cuda() == f"90 {others}"
        of_make = "-DCUDARELU_CUDA_ARCHITECTURES_WITHOUT_GPU=90-virtual"
        assert configure_cuda(of_make) == f"90-virtual {others}"
        assert configure_cuda(of_make, gpus="8.0\n").startswith("80 (")

    @pytest.mark.parametrize(
        ("listed", "chosen"),
        [
            ("8.0;9.0a+PTX", "80-real;90a"),
            slow("8.0 9.0+PTX", "80-real;90"),
            slow("Hopper", "90"),
            ("Ampere 10.0f", "80-real;86;100f-real"),
        ],
    )
    def test_list_of_torch(self, configure_cuda, listed, chosen):
        assert configure_cuda(TORCH_CUDA_ARCH_LIST=listed) == f"{chosen} (TORCH_CUDA_ARCH_LIST)"

    @pytest.mark.slow
    def test_native_is_the_gpus_here(self, configure_cuda):
        for printed in (
            configure_cuda("-DCMAKE_CUDA_ARCHITECTURES=native", gpus="8.9\n"),
            configure_cuda(TORCH_CUDA_ARCH_LIST="native", gpus="8.9\n"),
        ):
            assert printed.startswith("89 (GPUs of this machine;")

    @pytest.mark.slow
    def test_list_of_torch_that_is_none(self, configure_cuda):
        printed = configure_cuda(TORCH_CUDA_ARCH_LIST="8.0;sm_90")
        assert "TORCH_CUDA_ARCH_LIST is 8.0;sm_90: sm_90 is not a compute capability" in printed
        assert configure_cuda(self.OURS, TORCH_CUDA_ARCH_LIST="sm_90").startswith("80;90a (")

    @pytest.mark.slow
    def test_all_of_a_release(self, configure_cuda):
        printed = configure_cuda("-DCUDARELU_CUDA_ARCHITECTURES=all")
        chosen = printed.split(" ")[0].split(";")
        assert {"80-real", "86-real", "90-real"} <= set(chosen)
        assert [name for name in chosen if name.endswith("-virtual")] == chosen[-1:]
        commands = [
            line
            for line in (configure_cuda.build / "build.ninja").read_text().split("\n")
            if "compute_8" in line
        ]
        knows = "--compress-mode" in subprocess.check_output(
            [f"{CUDA_HOME}/bin/nvcc", "--help"], text=True
        )
        assert {"--compress-mode=size" in line for line in commands} == {knows}

        assert configure_cuda("-DSKBUILD=2").split(" ")[0].split(";") == chosen  # a wheel
        assert configure_cuda("-DSKBUILD=2", gpus="8.0\n").startswith("80 (GPUs of this machine")

    @pytest.mark.parametrize(
        "chosen", ["90", *map(slow, ["90-real", "90a", "90a-real", "80;90"]), "all"]
    )
    def test_hopper_is_compiled_for_90a(self, configure_cuda, chosen):
        configure_cuda(f"-DCUDARELU_CUDA_ARCHITECTURES={chosen}")
        (command,) = re.findall(
            r"^build [^\n]*sm90_gemm\.cu\.o:.*?^$",
            (configure_cuda.build / "build.ninja").read_text(),
            re.M | re.S,
        )
        assert set(re.findall(r"(?:compute|sm)_\w+", command)) == {"compute_90a", "sm_90a"}

    def test_no_hopper_where_90_is_not_compiled_for(self, configure_cuda):
        configure_cuda("-DCUDARELU_CUDA_ARCHITECTURES=80")
        assert "sm90_gemm.cu" not in (configure_cuda.build / "build.ninja").read_text()

    def test_jit_load_compiles_the_same(self, configure_cuda, monkeypatch, tmp_path):
        """examples/jit_load.py compiles the same files, with the same options that affect results
        and select parts."""
        # One command for each file.
        options = ("-DCMAKE_UNITY_BUILD=OFF", "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON")
        configure_cuda("-DCUDARELU_CUDA_ARCHITECTURES=90", "-DCUDARELU_TORCH=ON", *options)
        text = (configure_cuda.build / "compile_commands.json").read_text()
        commands = {
            name(Path(command["file"])): command["command"]
            for command in json.loads(text)
            if re.search(
                r"cudarelu_(core|module|kernels|hopper|torch|tvm_ffi_reader)\.dir",
                command["command"],
            )
        }

        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
        monkeypatch.syspath_prepend(ROOT / "examples")
        built = importlib.import_module("jit_load").extension(tmp_path, cuda=True)
        assert {name(included_by(Path(source))) for source in built["sources"]} == set(commands)
        decides = re.compile(
            r"-O\d|-ff\S+|-fno-(?:math|trapping)\S+|--fmad\S+|-DCUDARELU_(?!BUILT)\S+"
        )
        for file, command in commands.items():
            own = built["extra_cuda_cflags" if file.endswith(".cu") else "extra_cflags"]
            # -O2, of what is no kernel, changes no result.
            assert set(decides.findall(command)) - {"-O2"} <= set(own), file


def included_by(source: Path) -> Path:
    """The source that a file includes which has nothing else, or the file."""
    only = re.fullmatch(r'#include "(/.*)"\n', source.read_text())
    return Path(only[1]) if only else source


def name(source: Path) -> str:
    """The name of a source of the kernels or the binding, the same in any build folder."""
    return "/".join(source.parts[-2:])
