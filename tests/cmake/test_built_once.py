"""Built once: one wheel of cudarelu serves several versions of PyTorch, and one file of an op
module serves these, all versions of ONNX Runtime, several versions of Python, and a C++ program.

The module is libmy_ops.so, which the build has made; no process here compiles it. The wheel is
built in the second tier only; the other PyTorch is installed for it.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from support.commands import dynamic, environment, install_wheel, needs, python_3_12, run
from support.onnx_runtimes import RUNTIMES, VERSIONS, run_with
from support.op_modules import LIBRARY
from support.ort_infer import BUILT, ORT_INFER
from support.wheels import HERE, OTHER, WHEELS

ROOT = Path(__file__).parents[2]

IN_PYTORCH = """
import sys
import torch
import cudarelu

x = torch.tensor([[-1.0, 0.5, 2.0]], dtype=torch.float64, requires_grad=True)
y = cudarelu.relu(x)
assert y.tolist() == torch.ops.cudarelu.relu(x).tolist() == [[0.0, 0.5, 2.0]]
assert torch.autograd.grad(y.sum(), x)[0].tolist() == [[0.0, 1.0, 1.0]]
assert cudarelu.relu(x.detach().numpy()).tolist() == [[0.0, 0.5, 2.0]]

my = cudarelu.load_library(sys.argv[1])
y, expected = my.swish(x, beta=2.0), x * torch.sigmoid(2.0 * x)
torch.testing.assert_close(y, expected)
torch.testing.assert_close(*(torch.autograd.grad(each.sum(), x)[0] for each in (y, expected)))
torch.testing.assert_close(torch.vmap(lambda row: my.swish(row, beta=2.0))(x), expected)
print(torch.__version__, cudarelu._C.__file__, my.path)
"""

IN_ONNX_RUNTIME = """
import sys
import numpy, onnxruntime

assert not {"torch", "cudarelu"} & set(sys.modules)
library, model, x, y = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(library)
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
numpy.testing.assert_allclose(session.run(None, {"x": numpy.load(x)})[0], numpy.load(y), rtol=1e-6)
print(onnxruntime.__version__)
"""


# One wheel for several versions of PyTorch


@pytest.fixture(scope="module")
def wheel(wheels) -> Path:
    if (wheels / "missing").exists():
        pytest.skip((wheels / "missing").read_text())
    (path,) = (wheels / "several").glob("cudarelu-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    return install_wheel(wheel, tmp_path_factory.mktemp("installed_for_several"))


@pytest.mark.slow
@pytest.mark.xdist_group("wheels")
@needs("cmake", "ninja", module="scikit_build_core")
@pytest.mark.skipif(
    not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="Python's headers are missing",
)
class TestWheelForSeveralPyTorches:
    def test_holds_a_reader_for_each(self, wheel):
        archive = zipfile.ZipFile(wheel)
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        readers = {
            f"cudarelu/pytorch_{version}/{name}"
            for version in (HERE, OTHER)
            for name in (f"_C{suffix}", "libcudarelu_torch.so")
        }
        kernels = "cudarelu/libcudarelu_ops.so"  # once, as what needs no PyTorch
        others = {kernels, "cudarelu/libcudarelu_tensorflow.so"}
        assert {name for name in sizes if name.endswith(".so")} == others | readers
        assert max(sizes[name] for name in readers) < 2e6
        (metadata,) = (name for name in sizes if name.endswith("/METADATA"))
        record = archive.read(metadata.replace("METADATA", "RECORD")).decode()
        assert {line.split(",")[0] for line in record.splitlines()} == sizes.keys()
        (found,) = re.findall(r"^Requires-Dist: torch(.*)$", archive.read(metadata).decode(), re.M)
        older, newer = sorted(int(each.removeprefix("2.")) for each in (HERE, OTHER))
        between = "".join(f",!=2.{minor}.*" for minor in range(older + 1, newer))
        assert found == f">=2.{older},<2.{newer + 1}{between}"

    def test_a_build_folder_has_the_reader_of_its_pytorch_alone(self, wheel, wheels):
        """A reader of another PyTorch, here of the first build, would be of older sources."""
        assert (wheels / "readers").read_text() == f"pytorch_{max(HERE, OTHER)}"

    @pytest.mark.parametrize("version", [HERE, OTHER])
    def test_serves(self, version, installed, tmp_path):
        """Runs an op, and an op of a module that was built for none of these versions."""
        path = f"{installed}:{WHEELS / f'torch-{OTHER}'}" if version == OTHER else installed
        settings = environment(PYTHONPATH=path)
        printed = run(sys.executable, "-c", IN_PYTORCH, LIBRARY, cwd=tmp_path, env=settings)
        found, reader, module = printed.split()
        assert found.startswith(f"{version}.")
        assert Path(reader).parent == installed / f"cudarelu/pytorch_{version}"
        assert Path(module).samefile(LIBRARY)


# One file of an op module


@pytest.fixture
def example(tmp_path) -> tuple[Path, Path, Path]:
    """A model with one node, my.Swish, its input, and its output as NumPy computes it."""
    x = np.random.default_rng(0).standard_normal((3, 40), np.float32)
    node = helper.make_node("Swish", ["x"], ["y"], domain="my", beta=2.0)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, 40)) for name in "xy"]
    graph = helper.make_graph([node], "example", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    files = tmp_path / "model.onnx", tmp_path / "x.npy", tmp_path / "y.npy"
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), files[0])
    np.save(files[1], x)
    np.save(files[2], x / (1 + np.exp(-2 * x)))
    return files


@pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} has not been built")
class TestModule:
    @needs("readelf", "nm")
    def test_needs_no_host(self):
        libraries = " ".join(dynamic(LIBRARY, "NEEDED"))
        assert not re.search("torch|c10|python|onnxruntime|cudarelu", libraries)
        undefined = run("nm", "-D", "--undefined-only", LIBRARY)
        assert not re.search(r" (Py|Ort|_ZNK?(2at|3c10|5torch))", undefined)

    @pytest.mark.parametrize("version", VERSIONS)
    def test_in_an_old_onnx_runtime(self, version, example):
        done = run_with(version, IN_ONNX_RUNTIME, LIBRARY, *example)
        assert done.stdout.strip() == version, done.stderr

    def test_in_this_onnx_runtime(self, example):
        printed = run(sys.executable, "-c", IN_ONNX_RUNTIME, LIBRARY, *example)
        assert printed.strip() == onnxruntime.__version__

    def test_in_python_3_12(self, example):
        packages = RUNTIMES / "python3.12"
        if not packages.exists():
            pytest.skip("Python 3.12's packages are missing: tools/old_runtimes.sh installs them")
        settings = environment(PYTHONPATH=packages)
        printed = run(python_3_12(), "-c", IN_ONNX_RUNTIME, LIBRARY, *example, env=settings)
        assert printed.startswith("1.")

    @BUILT
    def test_in_a_cpp_program(self, example):
        model, x, y = example
        printed = run(
            *(ORT_INFER, model, "--provider", "cpu", "--library", LIBRARY, "--input", f"x={x}"),
            *("--compare", f"y={y}"),
        )
        assert "my::Swish" in printed
