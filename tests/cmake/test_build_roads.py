"""Other ways to build the ops: a wheel, PyTorch's extension builder, and C++ without Python.

Each is built as a user would build it, for the CPU, in a separate process that does not see the
build folder. Tests that compile are slow. Where it is possible, ccache serves them with what was
compiled in build/: from a folder at the same depth, with the same flags.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import CUDA_HOME

from cudarelu.testing.environment import torch_cuda_missing
from support.commands import dynamic, environment, install_wheel, needs, run
from support.ort_infer import BUILD

ROOT = Path(__file__).parents[2]
TORCH = Path(torch.__path__[0])
TORCH_MINOR = ".".join(torch.__version__.split(".")[:2])
READERS = f"pytorch_{TORCH_MINOR}"  # the folder of the libraries that depend on PyTorch
CPP_INFERENCE = ROOT / "examples/cpp_inference"
LIBTORCH_BUILD = ROOT / "build-test-libtorch"

NEEDS_GPU = pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
NEEDS_NVCC = pytest.mark.skipif(CUDA_HOME is None, reason="PyTorch finds no CUDA toolkit")


# The metadata of a wheel

METADATA = """
import pathlib, sys
from scikit_build_core.build import prepare_metadata_for_build_wheel
folder = pathlib.Path(sys.argv[1])
print((folder / prepare_metadata_for_build_wheel(folder) / "METADATA").read_text())
"""
SDIST = """
import sys, tarfile
from scikit_build_core.build import build_sdist
name = build_sdist(sys.argv[1])
file = name.removesuffix(".tar.gz") + "/PKG-INFO"
print(tarfile.open(f"{sys.argv[1]}/{name}").extractfile(file).read().decode())
"""


def required(metadata: str) -> list[str]:
    """The dependencies, except those of extras."""
    return re.findall(r"^Requires-Dist: ([^;\n]+)$", metadata, re.MULTILINE)


@needs("cmake", module="scikit_build_core")
class TestDependencies:
    """The dependencies that the build backend reports, in an environment with its requirements and
    a PyTorch."""

    @pytest.fixture
    def ask(self, tmp_path):
        for name in ("scikit-build-core", "packaging", "pathspec"):
            distribution = importlib.metadata.distribution(name)
            for top in {file.parts[0] for file in distribution.files} - {".."}:
                (tmp_path / top).symlink_to(distribution.locate_file(top))

        def run_it(code: str, version: str | None) -> subprocess.CompletedProcess:
            if version:
                (tmp_path / "torch.dist-info").mkdir()
                text = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
                (tmp_path / "torch.dist-info/METADATA").write_text(text)
            (tmp_path / "out").mkdir()
            return subprocess.run(
                [sys.executable, "-S", "-c", code, tmp_path / "out"],
                capture_output=True,
                text=True,
                cwd=ROOT,
                env=environment(PYTHONPATH=tmp_path),
                check=False,
            )

        return run_it

    @pytest.mark.parametrize(
        ("version", "minor"), [(torch.__version__, TORCH_MINOR), ("2.15.0a0+git1a2b", "2.15")]
    )
    def test_of_a_wheel(self, version, minor, ask):
        done = ask(METADATA, version)
        assert required(done.stdout)[0] == f"torch=={minor}.*", done.stderr

    def test_without_pytorch(self, ask):
        done = ask(METADATA, None)
        assert done.returncode == 1
        assert done.stderr.startswith("a wheel of cudarelu depends on the version of PyTorch")
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize(
        "version", [None, pytest.param(torch.__version__, marks=pytest.mark.slow)]
    )
    def test_of_the_sources(self, version, ask):
        """The sources accept any PyTorch that is new enough. A wheel's requirements may differ."""
        done = ask(SDIST, version)
        assert required(done.stdout)[0] == "torch>=2.11", done.stderr
        assert "\nDynamic: Requires-Dist\n" in done.stdout


# The wheel


@pytest.fixture(scope="module")
def wheel(wheels) -> Path:
    (path,) = (wheels / "one").glob("cudarelu-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The wheel in an empty folder: cudarelu/, and bin/ with ort_infer."""
    return install_wheel(wheel, tmp_path_factory.mktemp("installed"))


USE = """
import numpy, onnxruntime, torch
import cudarelu, cudarelu.onnx, cudarelu.ort

x = torch.tensor([[-1.0, 2.0, -3.0, 4.0]])
expected = [[0.0, 2.0, 0.0, 4.0]]
assert cudarelu.relu(x).tolist() == torch.ops.cudarelu.relu(x).tolist() == expected
assert cudarelu.relu(x.numpy()).tolist() == expected

options = cudarelu.ort.register(onnxruntime.SessionOptions())
model = cudarelu.onnx.demo_model().SerializeToString()
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
assert session.run(None, {"x": x.numpy()})[0].tolist() == expected
numpy.save("x.npy", x.numpy())

maps = open("/proc/self/maps").read()
print(cudarelu.__version__, *sorted({line.split()[-1] for line in maps.split("\\n")
                                     if "cudarelu" in line}), sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.xdist_group("wheels")
@needs("cmake", "ninja", "readelf", module="scikit_build_core")
@pytest.mark.skipif(
    not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="Python's headers are missing",
)
class TestWheel:
    def test_holds_what_it_should(self, wheel):
        names = set(zipfile.ZipFile(wheel).namelist())
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        sources = (ROOT / "python/cudarelu").rglob("*")
        package = {
            str(path.relative_to(ROOT / "python/cudarelu"))
            for path in sources
            if path.suffix in (".py", ".pyi", ".typed")
            or ("scaffold" in path.parts and path.is_file() and path.suffix != ".pyc")
        }
        package |= {
            "libcudarelu_ops.so",
            "libcudarelu_tensorflow.so",
            "_build_info.py",
            "_functions.pyi",
        }
        package |= {f"{READERS}/_C{suffix}", f"{READERS}/libcudarelu_torch.so"}
        module = ROOT / "src/module"
        package |= {f"sdk/{path.relative_to(module)}" for path in module.rglob("include/**/*.*")}
        package |= {
            f"sdk/module/{name}" for name in ("generate.sh", "module.cpp", "exports.version")
        }
        package |= {"sdk/module/flags.json", "sdk/lib/libcudarelu_module.a"}
        config = [path.name for path in (ROOT / "cmake/sdk").iterdir()]
        config.append("cudarelu-config-version.cmake")
        package |= {f"sdk/lib/cmake/cudarelu/{name}" for name in config}
        assert {name for name in names if name.startswith("cudarelu/")} == {
            f"cudarelu/{name}" for name in package
        }
        others = {name for name in names if not name.startswith("cudarelu/")}
        (version,) = re.findall(
            r"project\(cudarelu VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()
        )
        assert wheel.name.startswith(f"cudarelu-{version}-")
        assert {name for name in others if ".dist-info/" not in name} == {
            "_cudarelu_command.py",
            f"cudarelu-{version}.data/scripts/ort_infer",
        }

    def test_metadata(self, wheel):
        archive = zipfile.ZipFile(wheel)
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = archive.read(name).decode()
        assert re.search(r"^Requires-Python: >=3.11$", metadata, re.MULTILINE)
        torch_here = f"torch=={TORCH_MINOR}.*"
        assert required(metadata) == [torch_here, "numpy>=2", "onnx>=1.17", "ml_dtypes"]
        extras = re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE)
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert extras == sorted(project["optional-dependencies"])

    def test_bill_of_materials(self, wheel):
        archive = zipfile.ZipFile(wheel)
        (name,) = [name for name in archive.namelist() if name.endswith(".cdx.json")]
        assert re.fullmatch(r"cudarelu-[^/]*\.dist-info/sboms/cudarelu\.cdx\.json", name)
        bill = json.loads(archive.read(name))
        assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
        assert wheel.name.startswith(f"cudarelu-{bill['metadata']['component']['version']}-")
        contained = {each["name"]: each["version"] for each in bill["components"]}
        assert contained.keys() - {"cuda-toolkit"} == {"CLI11", "nanobind", "nlohmann_json", "zlib"}
        assert contained["nanobind"] == importlib.metadata.version("nanobind")
        assert all(re.match(r"\d+\.\d+", version) for version in contained.values())
        for each in bill["components"]:
            assert each["purl"].endswith(f"@{each['version']}")
            assert each["licenses"][0]["expression"]

    def test_serves_from_an_empty_folder(self, installed, tmp_path):
        settings = environment(PYTHONPATH=installed)
        printed = run(sys.executable, "-c", USE, cwd=tmp_path, env=settings).split("\n")
        mapped = [Path(line) for line in printed if line.startswith("/")]
        package = installed / "cudarelu"
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        assert set(mapped) == {
            package / "libcudarelu_ops.so",
            package / READERS / "libcudarelu_torch.so",
            package / READERS / f"_C{suffix}",
        }

        command = (sys.executable, "-m", "cudarelu", "export-demo", "myrelu.onnx")
        run(*command, cwd=tmp_path, env=settings)
        ort_infer = installed / "bin/ort_infer"
        printed = run(ort_infer, "myrelu.onnx", "--input", "x=x.npy", cwd=tmp_path)
        assert "[[0. 2. 0. 4.]]" in printed
        assert "custom_domain::CustomRelu on CPUExecutionProvider" in printed

    def test_the_program(self, installed, tmp_path):
        program = installed / "bin/cudarelu"
        settings = environment(PYTHONPATH=installed)
        assert "relu(x: T[*]) -> y: T[*]\n" in run(program, "ops", cwd=tmp_path, env=settings)
        (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
        settings = environment(PYTHONPATH=f"{tmp_path}:{installed}")
        done = subprocess.run(
            [program, "doctor", "--provider", "cpu", "--json"],
            capture_output=True,
            text=True,
            env=settings,
            check=False,
        )
        assert (done.returncode, done.stderr) == (1, "")
        found = {each["id"]: each for each in json.loads(done.stdout)}
        assert found["pytorch.import"]["evidence"] == "ModuleNotFoundError: No module named 'torch'"
        assert found["pytorch.build"]["status"] == "ok"

    def test_passes_the_tests(self, installed, tmp_path):
        """Tests of all parts of the wheel, which is built for the CPU."""
        build, empty = tmp_path / "build", tmp_path / "empty"
        (build / "python").mkdir(parents=True)
        (build / "python/cudarelu").symlink_to(installed / "cudarelu")
        (build / "ort_infer").symlink_to(installed / "bin/ort_infer")
        libraries = [*BUILD.glob("libcudarelu_ort_*.so"), BUILD / "libmy_ops.so"]
        for library in libraries:  # others that tests use
            (build / library.name).symlink_to(library)
        empty.mkdir()
        tests = ROOT / "tests"
        # Of each kind of op, one case in all hosts: the other tests test the same sources.
        ops = "-relu- or -softmax- or -linear_gelu- or -attention- or -knn_query-"
        for chosen in (
            [tests / "ops/test_ops.py", "-k", f"float32-odd and ({ops})"],
            [tests / "cli_app/test_ort_infer.py"],
        ):
            printed = run(
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen),
                cwd=empty,
                env=environment(
                    PYTHONPATH=installed, CUDARELU_BUILD_DIR=build, CUDA_VISIBLE_DEVICES=""
                ),
            )
            assert re.search(r"^\d+ passed", printed, re.MULTILINE)

    def test_finds_libraries_beside_itself_alone(self, installed):
        for path in [*installed.glob("cudarelu/**/*.so"), installed / "bin/ort_infer"]:
            torch_library = path.name.startswith(("_C.", "libcudarelu_torch"))
            expected = ["$ORIGIN:$ORIGIN/../../torch/lib"] if torch_library else []
            if path.name == "libcudarelu_tensorflow.so":
                expected = ["$ORIGIN"]
            assert dynamic(path, "RUNPATH") + dynamic(path, "RPATH") == expected, path.name


# PyTorch's extension builder


@pytest.fixture
def unoptimized(tmp_path) -> Path:
    """A g++ that does not optimize, whatever its flags are: that takes half the time."""
    program = tmp_path / "g++"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@" -O0\n')
    program.chmod(0o755)
    return program


@pytest.mark.slow
@needs("ninja", "g++")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[NEEDS_GPU, NEEDS_NVCC])])
def test_jit_load(device, unoptimized, tmp_path):
    settings = environment(CXX=unoptimized, CCACHE_BASEDIR=tmp_path, CCACHE_NOHASHDIR=1)
    if device == "cpu":
        settings["CUDA_VISIBLE_DEVICES"] = ""
    command = (sys.executable, ROOT / "examples/jit_load.py", "--build-directory", tmp_path / "jit")
    printed = run(*command, cwd=tmp_path, env=settings)
    for each in {"cpu", device}:
        line = f"{each}: relu([-1.0, 0.0, 2.0]) = [0.0, 0.0, 2.0], gradient [0.0, 0.0, 1.0]"
        assert line in printed

    library = tmp_path / "jit/cudarelu_jit.so"
    built = library.stat().st_mtime_ns
    run(*command, cwd=tmp_path, env=settings)
    assert library.stat().st_mtime_ns == built  # a second run builds nothing


COMPILE_CUDA = """
import sys
from pathlib import Path
from torch.utils import cpp_extension
import jit_load

arguments = jit_load.extension(Path(sys.argv[1]), cuda=True)
names = [Path(source).name for source in arguments["sources"]]  # each is that of an object
assert len(set(names)) == len(names) > 50, names
sources = [source for source in arguments["sources"] if source.endswith(tuple(sys.argv[2:]))]
assert len(sources) == len(sys.argv) - 2, sources
cpp_extension.load(**arguments | {"sources": sources}, verbose=True)
"""


@pytest.mark.slow
@NEEDS_NVCC
@needs("ninja", "c++", "nm")
def test_jit_load_compiles_for_cuda(tmp_path):
    """Compiles an engine, cuBLASLt's loader and Hopper's attention into one library. This needs no
    GPU."""
    files = (
        "gemm/fallback_gemm.cu",
        "elementwise/Relu.cu",
        "cublaslt_library.cpp",
        "sm90_forward.cu",
    )
    settings = environment(
        PYTHONPATH=ROOT / "examples",
        TORCH_CUDA_ARCH_LIST="9.0",
        CCACHE_BASEDIR=tmp_path,
        CCACHE_NOHASHDIR=1,
    )
    run(sys.executable, "-c", COMPILE_CUDA, tmp_path / "jit", *files, cwd=tmp_path, env=settings)
    symbols = run("nm", "-C", "--defined-only", tmp_path / "jit/cudarelu_jit.so")
    assert "cudarelu::ops::attention::sm90_forward(" in symbols
    assert "cudarelu::elementwise_cuda<cudarelu::ops::Relu>(" in symbols


# C++ without Python


def configure_cpp_inference(build: Path, *options: str) -> None:
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    run(
        *("cmake", "-G", "Ninja", "-S", CPP_INFERENCE, "-B", build, *options),
        *("-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", *launcher),
    )


def build_cpp_inference(build: Path) -> None:
    configure_cpp_inference(build, f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}")
    run("cmake", "--build", build)


@pytest.fixture(scope="module")
def cpp_inference(once) -> Path:
    return once("cpp_inference", build_cpp_inference) / "cpp_inference"


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def models(request, once) -> Path:
    def export(folder: Path) -> None:
        package = Path(cudarelu_library()).parents[2]
        run(
            *(sys.executable, CPP_INFERENCE / "export_models.py", folder),
            *("--device", request.param),
            cwd=folder,
            env=environment(PYTHONPATH=package, AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL="O0"),
        )

    return once(f"models_{request.param}", export)


def cudarelu_library() -> str:
    import cudarelu

    return str(Path(cudarelu._C.__file__).parent / "libcudarelu_torch.so")


def assert_no_python_in(path: Path) -> None:
    assert "libtorch_cpu.so" in dynamic(path, "NEEDED")
    assert not [name for name in dynamic(path, "NEEDED") if "python" in name]


@needs("readelf")
def test_the_library_needs_no_python():
    assert_no_python_in(Path(cudarelu_library()))


@pytest.mark.slow
@pytest.mark.xdist_group("cpp_inference")
@needs("cmake", "ninja", "c++", "readelf")
class TestCppInference:
    def test_no_python_in_it(self, cpp_inference):
        assert_no_python_in(cpp_inference)

    @pytest.mark.parametrize("model", ["scripted.pt", "traced.pt", "aoti.pt2"])
    def test_gives_the_output_of_python(self, cpp_inference, models, model):
        command = (cpp_inference, cudarelu_library(), "example.pt", model)
        printed = run(*command, cwd=models, env=environment(LD_DEBUG="files"))
        assert f"{model} on c" in printed
        assert "equals the expected output" in printed
        # All libraries that the process opened, at its start or later.
        opened = re.findall(r"file=(\S+) \[0\];\s+generating link map", printed)
        assert any("libcudarelu_torch.so" in name for name in opened)
        assert not [name for name in opened if "python" in Path(name).name]

    def test_notices_another_output(self, cpp_inference, models, tmp_path):
        example = torch.load(models / "example.pt")
        example["output"][0, 0] += 0.01
        torch.save(example, tmp_path / "example.pt")
        command = (cpp_inference, cudarelu_library(), tmp_path / "example.pt", "traced.pt")
        done = subprocess.run(command, cwd=models, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "DIFFERS" in done.stdout

    @pytest.mark.parametrize("model", ["scripted.pt", "aoti.pt2"])
    def test_needs_the_ops(self, cpp_inference, models, model):
        """Without our library the models do not run, so our ops computed the output."""
        command = (cpp_inference, "libc.so.6", "example.pt", model)
        done = subprocess.run(command, cwd=models, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "cudarelu" in done.stderr

    @pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
    def test_calls_ops_on_tensors(self, cpp_inference, device):
        program = cpp_inference.with_name("call_ops")
        assert not [name for name in dynamic(program, "NEEDED") if "python" in name]
        printed = run(program, cudarelu_library(), device)
        losses = [float(each) for each in re.findall(r"(?m)^step \d+: loss (\S+)$", printed)]
        assert len(losses) == 3
        assert losses[-1] < losses[0] / 10
        assert f"the gradients on {device} equal those of LibTorch" in printed
        done = subprocess.run([program, "libc.so.6"], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "cudarelu::linear_relu" in done.stderr


def link_libtorch(folder: Path) -> None:
    """Makes an unpacked LibTorch of links: to the parts of PyTorch's package that do not need
    Python, and to the CUDA libraries, which are in other packages."""
    ignore = shutil.ignore_patterns("libtorch_python*")
    for part in ("include", "lib", "share"):
        shutil.copytree(TORCH / part, folder / part, copy_function=os.symlink, ignore=ignore)
    for library in TORCH.parent.glob("nvidia/**/lib/*.so*"):
        if not (folder / "lib" / library.name).exists():
            (folder / "lib" / library.name).symlink_to(library)


@needs("cmake", "ninja", "c++", "readelf")
@pytest.mark.xdist_group("libtorch_build")  # two of the tests compile in one folder
class TestLibTorchWithoutPython:
    @pytest.fixture(scope="class")
    @staticmethod
    def libtorch(once) -> Path:
        return once("libtorch", link_libtorch)

    @pytest.fixture(scope="class")
    @staticmethod
    def build(once, libtorch) -> Path:
        """A configuration of the project that finds LibTorch but not Python."""

        def configure(folder: Path) -> None:
            shutil.rmtree(LIBTORCH_BUILD, ignore_errors=True)
            printed = run(
                *("cmake", "--preset", "cpu", "-S", ROOT, "-B", LIBTORCH_BUILD),
                *("-DCUDARELU_TORCH=ON", "-DCUDARELU_ORT=OFF", "-DCUDARELU_TESTS=OFF"),
                *("-DCMAKE_DISABLE_FIND_PACKAGE_Python=ON", f"-DCMAKE_PREFIX_PATH={libtorch}"),
            )
            version = torch.__version__.split("+")[0]
            assert f"PyTorch {version} ({libtorch}/include)" in printed
            assert "Python module         off" in printed

        once("libtorch_build", configure)
        return LIBTORCH_BUILD

    @pytest.mark.slow
    def test_compiles_and_links_with_it_alone(self, build, libtorch):
        """Compiles one file, and checks the commands that build the library."""
        file = "src/torch_binding/CMakeFiles/cudarelu_torch.dir/autocast.cpp.o"
        run("ninja", "-C", build, file)
        commands = run("ninja", "-C", build, "-t", "commands", "cudarelu_torch")
        assert f"-isystem {libtorch}/include " in commands
        assert str(libtorch / "lib/libtorch_cpu.so") in commands
        assert str(TORCH) not in commands
        assert "python" not in commands.split("libcudarelu_torch.so")[-1]

    def test_example_links_with_it_alone(self, libtorch, tmp_path):
        configure_cpp_inference(tmp_path, f"-DTorch_DIR={libtorch}/share/cmake/Torch")
        commands = run("ninja", "-C", tmp_path, "-t", "commands", "cpp_inference")
        assert str(libtorch / "lib/libtorch.so") in commands
        assert str(TORCH) not in commands

    @pytest.mark.slow
    @pytest.mark.parametrize("models", ["cpu"], indirect=True)  # as the build
    def test_runs_models(self, build, libtorch, models, tmp_path):
        run("ninja", "-C", build, "cudarelu_torch", "cudarelu_ops")
        library = build / "python/cudarelu" / READERS / "libcudarelu_torch.so"
        (path,) = dynamic(library, "RUNPATH")
        assert path.rstrip(":") == f"{libtorch}/lib"
        configure_cpp_inference(tmp_path, f"-DTorch_DIR={libtorch}/share/cmake/Torch")
        run("cmake", "--build", tmp_path)

        command = (tmp_path / "cpp_inference", library, "example.pt", "scripted.pt", "aoti.pt2")
        printed = run(*command, cwd=models, env=environment(LD_DEBUG="libs"))
        assert printed.count("equals the expected output") == 2
        opened = [Path(name) for name in re.findall(r"calling init: (\S+)", printed)]
        of_torch = {path.parent for path in opened if re.match("lib(torch|c10)", path.name)}
        assert of_torch == {libtorch / "lib"}
