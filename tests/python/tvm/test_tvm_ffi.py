"""Tests of the ops in tvm-ffi beside the matrix: outputs that are given, what is refused, programs
without Python, and other versions."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import cudarelu
import cudarelu.tvm_ffi
from cudarelu.testing.environment import torch_cuda_missing, tvm_ffi_missing

if reason := tvm_ffi_missing("cpu"):
    pytest.skip(reason, allow_module_level=True)

import tvm_ffi

from support.commands import environment, run
from support.onnx_runtimes import RUNTIMES
from support.op_modules import LIBRARY

ROOT = Path(__file__).parents[3]
OPS = tvm_ffi.load_module(cudarelu.tvm_ffi.library_path())
X = torch.linspace(-2, 2, 24).reshape(3, 8)
ENDS = torch.tensor([3], dtype=torch.int32)
POINTS = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")


def test_outputs_are_returned_or_given():
    expected = cudarelu.relu(X)
    y = OPS.relu(X)
    assert type(y) is torch.Tensor
    assert torch.equal(y, expected)
    y.fill_(7)
    assert OPS.relu(X, y) is None
    assert torch.equal(y, expected)


def test_several_outputs():
    expected = cudarelu.knn_query(POINTS, ENDS, nsample=2)
    results = OPS.knn_query(POINTS, ENDS, None, None, 2)
    assert len(results) == 2
    given = [torch.empty_like(each) for each in expected]
    assert OPS.knn_query(POINTS, ENDS, None, None, 2, *given) is None
    for result, into, y in zip(results, given, expected, strict=True):
        assert torch.equal(result, y)
        assert torch.equal(into, y)


def test_absent_inputs_and_defaults():
    assert torch.equal(OPS.layer_norm(X), cudarelu.layer_norm(X))
    bias = torch.ones(8)
    expected = cudarelu.layer_norm(X, None, bias, eps=0.5)
    assert torch.equal(OPS.layer_norm(X, None, bias, 0.5), expected)
    y = torch.empty_like(X)
    OPS.layer_norm(X, None, bias, y)
    assert torch.equal(y, cudarelu.layer_norm(X, None, bias))


def test_attributes():
    assert torch.equal(OPS.leaky_relu(X, 2), cudarelu.leaky_relu(X, negative_slope=2))
    assert torch.equal(OPS.gelu(X), cudarelu.gelu(X))
    for label in ("none", "tanh"):
        assert torch.equal(OPS.gelu(X, label), cudarelu.gelu(X, approximate=label))


def test_numpy():
    x = X.numpy()
    y = np.empty_like(x)
    OPS.softmax(x, y)
    np.testing.assert_array_equal(y, cudarelu.softmax(x))
    with pytest.raises(
        RuntimeError, match="relu: the array library of the arguments cannot allocate tens"
    ):
        OPS.relu(x)


def test_an_output_in_place_of_an_input():
    x = X.clone()
    OPS.relu(x, x)
    assert torch.equal(x, cudarelu.relu(X))
    OPS.add(x, x, x)
    assert torch.equal(x, 2 * cudarelu.relu(X))


def test_sizes_without_elements():
    assert OPS.relu(torch.empty(0, 3)).shape == (0, 3)
    assert OPS.relu(torch.tensor(-1.0)).item() == 0
    x = torch.empty(3, 8)
    OPS.relu(x[:, :0], x[1:2, :0].expand(3, 0))


def test_a_view_with_an_offset():
    assert torch.equal(OPS.relu(X[1:]), cudarelu.relu(X[1:]))


def test_other_threads():
    x = torch.randn(1000, 300, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(OPS.softmax(x), torch.softmax(x, -1))
    torch.testing.assert_close(OPS.matmul_nt(x, x), x @ x.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: OPS.relu(), TypeError, "relu: x is missing"),
        (lambda: OPS.add(X, None), TypeError, "add: b is missing"),
        (lambda: OPS.relu(1.0), TypeError, "relu: x must be a tensor"),
        (lambda: OPS.relu(X, 1.0), TypeError, "relu: y must be a tensor"),
        (lambda: OPS.relu(X, None), TypeError, "relu: y must be a tensor"),
        (lambda: OPS.relu(X, X, X), TypeError, "relu: 2 outputs are given, but it has 1"),
        (lambda: OPS.leaky_relu(X, True), TypeError, "leaky_relu: negative_slope must be a float"),
        (lambda: OPS.leaky_relu(X, "a"), TypeError, "leaky_relu: negative_slope must be a float"),
        (lambda: OPS.leaky_relu(X, None), TypeError, "leaky_relu: negative_slope must be a float"),
        (
            lambda: OPS.knn_query(POINTS, ENDS, None, None, 2.0),
            TypeError,
            "knn_query: nsample must be an int",
        ),
        (
            lambda: OPS.knn_query(POINTS, ENDS, None, None, 0),
            ValueError,
            "knn_query: nsample must be in [1, 1024], not 0",
        ),
        (
            lambda: OPS.knn_query(POINTS, ENDS, None, None, 1234567),
            ValueError,
            "knn_query: nsample must be in [1, 1024], not 1234567",
        ),
        (
            lambda: OPS.attention(*[X[None, :, None]] * 3, None, "a"),
            TypeError,
            "attention: is_causal must be a bool",
        ),
        (
            lambda: OPS.knn_query(POINTS, torch.tensor([4], dtype=torch.int32)),
            ValueError,
            "knn_query: offset[0] is 4, which exceeds dimension n, 3",
        ),
        (lambda: OPS.gelu(X, 1), TypeError, "gelu: approximate must be a str"),
        (
            lambda: OPS.gelu(X, "a longer label"),
            ValueError,
            "gelu: approximate must be none (0) or tanh (1), not a longer label",
        ),
        (lambda: OPS.relu(X.T), ValueError, "relu: x is not contiguous"),
        (lambda: OPS.relu(X, torch.empty(8, 3).T), ValueError, "relu: y is not contiguous"),
        (lambda: OPS.relu(X, X.double()), TypeError, "relu: y must be float32, not float64"),
        (lambda: OPS.relu(X, X[1:]), ValueError, "relu: y must be [3, 8], not [2, 8]"),
        (lambda: OPS.relu(X[1:], X[:2]), ValueError, "relu: y overlaps x"),
        (lambda: OPS.sum_rows(X[:1], X[0]), ValueError, "sum_rows: y overlaps x"),
        (
            lambda: OPS.linear_gelu_with_sum(X, torch.ones(4, 8), None, *[torch.ones(3, 4)] * 2),
            ValueError,
            "linear_gelu_with_sum: sum overlaps y",
        ),
        (lambda: OPS.add(X, X[0]), ValueError, "add: dimensions * are [3, 8] in a but [8] in b"),
        (
            lambda: OPS.softmax(X.to(torch.complex64)),
            TypeError,
            "softmax: x has an unsupported dtype; supported: float32, float64, float16, bfloat16",
        ),
        (
            lambda: OPS.softmax(X.int()),
            TypeError,
            "softmax: x is int32; supported dtypes: float32, float64, float16, bfloat16",
        ),
        (
            lambda: OPS.knn_query(POINTS, ENDS.to(torch.complex64)),
            TypeError,
            "knn_query: offset has an unsupported dtype; supported: int32",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call()


def test_an_address_between_elements():
    bytes_of_x = np.zeros(17, np.uint8)
    x = np.ndarray(4, np.float32, bytes_of_x, offset=1)
    view = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * 4).from_address(x.ctypes.data))
    with pytest.raises(ValueError, match="relu: x is not aligned to the size of its elements"):
        OPS.relu(view, np.empty(4, np.float32))


@pytest.mark.skipif(bool(torch_cuda_missing()), reason=torch_cuda_missing() or "")
class TestCuda:
    def test_devices(self):
        with pytest.raises(ValueError, match="add: b is not on the same device as a"):
            OPS.add(X.cuda(), X)

    def test_the_stream_is_that_of_pytorch(self):
        x = torch.randn(1 << 24, device="cuda")
        expected = torch.relu(x * 2)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            y = OPS.relu(x * 2)
            assert torch.equal(y, expected)

    def test_arrays_whose_library_allocates_nothing(self):
        """They serve an op that needs no workspace."""
        x = tvm_ffi.from_dlpack(X.cuda())
        y = torch.empty_like(X, device="cuda")
        OPS.relu(x, tvm_ffi.from_dlpack(y))
        torch.cuda.synchronize()
        assert torch.equal(y.cpu(), cudarelu.relu(X))


# Other modules


@pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} has not been built")
def test_a_module_of_a_user():
    my = tvm_ffi.load_module(str(LIBRARY))
    torch.testing.assert_close(my.swish(X, 2.0), X * torch.sigmoid(2 * X))
    product = my.linear_swish(X, torch.eye(8), None)  # by the engines of the project's library
    torch.testing.assert_close(product, X * torch.sigmoid(X))
    with pytest.raises(AttributeError, match="no function 'relu'"):
        _ = my.relu


INLINE = """
#include "cudarelu/elementwise.h"
namespace named {{
constexpr std::string_view text = "twice(x: T[*]) -> y: T[*]";
struct Doubled {{
  // The "signature" is the first literal.
  static constexpr cudarelu::OpSpec spec{{
      .signature ={signature},
      .summary = "2 x.",
      .dtypes = cudarelu::floating_types,
      .definition = "y = Add(x, x)",
  }};
  template <class T>
  CUDARELU_FN T operator()(T x) const {{ return x + x; }}
}};
}}
"""


@NEEDS_COMPILER
def test_a_module_that_is_loaded_from_sources():
    literal = INLINE.format(signature='\n          "twice(x: T[*])"  // in parts\n " -> y: T[*]"')
    module = cudarelu.load_inline("named", literal, cuda=False)
    assert torch.equal(tvm_ffi.load_module(module.path).twice(X), 2 * X)


@NEEDS_COMPILER
def test_a_signature_that_is_no_literal():
    message = "the signature must be a literal, which begins with the op's name"
    with pytest.raises(RuntimeError, match=rf"(?s)^named: \S+/named\.h:7:.*{message}"):
        cudarelu.load_inline("named", INLINE.format(signature=" text"), cuda=False)


# Without Python


def include_folders():
    folder = Path(tvm_ffi.__file__).parent
    return [f"-I{folder / 'include'}", f"-I{ROOT / 'src/readers/tvm_ffi'}"]


@NEEDS_COMPILER
def test_the_program_of_the_documentation(tmp_path):
    (code,) = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs/tvm-ffi.md").read_text(), re.DOTALL)
    (tmp_path / "program.cpp").write_text(code)
    command = code.splitlines()[0].removeprefix("// ")
    run("sh", "-euc", command, cwd=tmp_path)
    library = cudarelu.tvm_ffi.library_path()
    folder = Path(tvm_ffi.__file__).parent / "lib"
    settings = environment(LD_LIBRARY_PATH=folder)
    assert run(tmp_path / "a.out", library, env=settings) == "0 2\n"


IN_C = """
#include <dlfcn.h>
#include <stdio.h>
#include <tvm/ffi/c_api.h>

int main(int count, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  TVMFFISafeCallType relu = (TVMFFISafeCallType)dlsym(library, "__tvm_ffi_relu");
  if (relu == NULL) return 1;
  float x[] = {-1, 2}, y[2];
  int64_t shape[] = {2};
  DLTensor input = {x, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, NULL, 0}, output = input;
  output.data = y;
  TVMFFIAny given[2] = {{kTVMFFIDLTensorPtr}, {kTVMFFIDLTensorPtr}}, result = {kTVMFFINone};
  given[0].v_ptr = &input;
  given[1].v_ptr = &output;
  int code = relu(NULL, given, 2, &result);
  printf("%d %g %g, %d\\n", code, y[0], y[1], relu(NULL, given, 1, &result));
}
"""


@NEEDS_COMPILER
def test_a_program_in_c_that_does_not_load_tvm_ffi(tmp_path):
    """A call with outputs needs nothing of it; any other fails."""
    (tmp_path / "program.c").write_text(IN_C)
    program = tmp_path / "program"
    run("cc", *include_folders(), tmp_path / "program.c", "-ldl", "-o", program)
    assert run(program, cudarelu.tvm_ffi.library_path()) == "0 0 2, -1\n"


@NEEDS_COMPILER
def test_the_interface_is_that_of_the_package(tmp_path):
    """The memory layout that src/readers/tvm_ffi/tvm_ffi.h declares."""
    pairs = {
        "Device": ("DLDevice", "type:device_type index:device_id"),
        "ElementType": ("DLDataType", "code bits lanes"),
        "Tensor": ("DLTensor", "data device rank:ndim dtype shape strides byte_offset"),
        "Object": ("TVMFFIObject", "references:combined_ref_count type:type_index deleter"),
        "Text": ("TVMFFIByteArray", "data size"),
        "Any": (
            "TVMFFIAny",
            "type:type_index small_size:small_str_len integer:v_int64 real:v_float64 pointer:v_ptr "
            "c_text:v_c_str object:v_obj small:v_bytes",
        ),
    }
    numbers = {
        "none": "None",
        "integer": "Int",
        "real": "Float",
        "tensor_pointer": "DLTensorPtr",
        "text_pointer": "RawStr",
        "small_text": "SmallStr",
        "text": "Str",
        "tensor": "Tensor",
        "big_integer": "BigInt",
    }
    lines = ["#include <tvm/ffi/container/tensor.h>", '#include "tvm_ffi.h"', "#include <cstddef>"]
    lines.append("namespace own = cudarelu::tvm_ffi;")
    for own, (theirs, members) in pairs.items():
        lines.append(f"static_assert(sizeof(own::{own}) == sizeof({theirs}));")
        for member in members.split():
            name, _, other = member.partition(":")
            lines.append(
                f"static_assert(offsetof(own::{own}, {name}) == "
                f"offsetof({theirs}, {other or name}));"
            )
    for name, value in numbers.items():
        lines.append(f"static_assert(int(own::Type::{name}) == kTVMFFI{value});")
    (tmp_path / "layout.cpp").write_text("\n".join(lines))
    run("c++", "-std=c++20", "-fsyntax-only", *include_folders(), tmp_path / "layout.cpp")


# Other versions

CALLS = """
import sys
import numpy as np
import tvm_ffi

assert tvm_ffi.__version__.startswith(sys.argv[2]), tvm_ffi.__version__
ops = tvm_ffi.load_module(sys.argv[1])
x = np.random.default_rng(0).standard_normal((300, 70)).astype(np.float32)
y = np.empty_like(x)
ops.leaky_relu(x, 0.5, y)
np.testing.assert_array_equal(y, np.where(x < 0, x / 2, x))
ops.gelu(x, "tanh", y)
product = np.empty((300, 300), np.float32)
ops.matmul_nt(x, x, product)
np.testing.assert_allclose(product, x @ x.T, rtol=1e-4, atol=1e-4)
for call, kind, message in (
    (lambda: ops.gelu(x, "tan", y), ValueError, "gelu: approximate must be none (0) or tanh (1)"),
    (lambda: ops.relu(x, 1.0), TypeError, "relu: y must be a tensor"),
    (lambda: ops.relu(x), RuntimeError, "cannot allocate tensors: pass the outputs"),
):
    try:
        call()
    except kind as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
"""


@pytest.mark.parametrize(
    "version", [pytest.param("0.1.0", marks=pytest.mark.slow), tvm_ffi.__version__]
)
def test_one_library_serves_other_versions(version):
    settings = environment(TVM_FFI_DISABLE_TORCH_C_DLPACK=1)
    if version != tvm_ffi.__version__:
        folder = RUNTIMES / f"tvm-ffi-{version}"
        if not folder.exists():
            pytest.skip(f"tvm-ffi {version} is missing: tools/old_runtimes.sh installs it")
        settings["PYTHONPATH"] = str(folder)
    run(sys.executable, "-c", CALLS, cudarelu.tvm_ffi.library_path(), version, env=settings)


def test_symbols():
    """Of every op, and nothing that the process must have."""
    if shutil.which("nm") is None:
        pytest.skip("nm is missing")
    done = subprocess.run(
        ["nm", "-D", cudarelu.tvm_ffi.library_path()], capture_output=True, text=True, check=True
    )
    functions = set(re.findall(r" W __tvm_ffi_(\w+)", done.stdout))
    assert functions == {op.name for op in cudarelu.ops() if op.namespace == "cudarelu"}
    assert not re.search(r" U \w*TVMFFI", done.stdout)
