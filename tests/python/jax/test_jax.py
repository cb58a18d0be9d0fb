"""Tests of the ops in JAX beside the matrix: sharding, donation, programs for other machines, and
what is refused. The matrix has jit, gradients of all orders, vmap, scan and export for every op."""

import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import cudarelu
from cudarelu import _C
from cudarelu.testing.environment import jax_missing

if reason := jax_missing("cpu"):
    pytest.skip(reason, allow_module_level=True)

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import cudarelu.jax
from cudarelu.jax import sharding
from support.cases import slow_after
from support.commands import environment, python_3_12, run
from support.onnx_runtimes import RUNTIMES

ROOT = Path(__file__).parents[3]
P = PartitionSpec
RANDOM = np.random.default_rng(0)
X = jnp.asarray(RANDOM.standard_normal((16, 8)), jnp.float32)
WEIGHT = jnp.asarray(RANDOM.standard_normal((5, 8)), jnp.float32)
BIAS = jnp.asarray(RANDOM.standard_normal(5), jnp.float32)
NEEDS_EIGHT = pytest.mark.skipif(jax.device_count("cpu") < 8, reason="needs 8 devices of XLA")


def mesh_of(*shape):
    devices = jax.devices("cpu")[: int(np.prod(shape))]
    names = ("a", "b")[: len(shape)]
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape), devices=devices)


def placed(x, mesh, *spec):
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def loss(x, weight, bias):
    y = cudarelu.linear_gelu(cudarelu.layer_norm(x), weight, bias)
    return (cudarelu.softmax(y) ** 2).sum()


def assert_close(actual, expected):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=1e-5, atol=1e-6)


# Sharding


@NEEDS_EIGHT
class TestSharding:
    @pytest.mark.parametrize(
        ("shape", "spec"), [((8,), ("a",)), ((2, 4), (("a", "b"),)), ((2, 4), ("b",))]
    )
    def test_rows_stay_where_they_are(self, shape, spec):
        x = placed(X, mesh_of(*shape), *spec)
        function = jax.jit(lambda x: cudarelu.softmax(cudarelu.layer_norm(x)))
        assert function(x).sharding.spec == P(*spec)
        assert "all-gather" not in function.lower(x).compile().as_text()
        assert_close(function(x), function(X))

    @pytest.mark.parametrize("shape", [(8,), (2, 4)])
    def test_gradients_of_what_all_rows_share_are_summed(self, shape):
        mesh = mesh_of(*shape)
        spec = ("a",) if len(shape) == 1 else (("a", "b"),)
        gradients = jax.jit(jax.grad(loss, (0, 1, 2)))
        x, weight, bias = placed(X, mesh, *spec), placed(WEIGHT, mesh), placed(BIAS, mesh)
        found = gradients(x, weight, bias)
        assert found[0].sharding.spec == P(*spec)
        assert_close(found, gradients(X, WEIGHT, BIAS))
        text = gradients.lower(x, weight, bias).compile().as_text()
        assert "all-gather" not in text
        assert "all-reduce" in text

    def test_gathering_warns_once(self):
        sharding._WARNED.clear()
        x = placed(X, mesh_of(8), None, "a")
        with pytest.warns(UserWarning, match=r"^softmax gathers x, which is sharded as .*'a'"):
            result = jax.jit(cudarelu.softmax)(x)
        assert_close(result, cudarelu.softmax(X))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            jax.jit(lambda x: cudarelu.softmax(x + 1))(x)

    def test_an_op_whose_rows_depend_on_each_other_is_not_split(self):
        points = jnp.asarray(RANDOM.random((16, 3)), jnp.float32)
        size = jnp.full(3, 0.4, jnp.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = jax.jit(cudarelu.grid_cluster)(placed(points, mesh_of(8), "a"), size)
        assert_close(found, cudarelu.grid_cluster(points, size))

    def test_axes_in_types(self):
        """A mesh with axes of the type Explicit, as jax.make_mesh makes it by default: the types of
        arrays have their sharding."""
        mesh = jax.make_mesh((8,), ("a",), devices=jax.devices("cpu")[:8])
        types = []

        def traced(x, weight):
            y = cudarelu.linear(x, weight)
            types.extend(jax.typeof(each).sharding.spec for each in (y, cudarelu.sum_rows(y)))
            return y

        x, weight = placed(X, mesh, "a", None), placed(WEIGHT, mesh)
        with jax.set_mesh(mesh):
            assert_close(jax.jit(traced)(x, weight), traced(X, WEIGHT))
            assert types[:2] == [P("a", None), P(None)]
            found = jax.jit(jax.grad(loss, (0, 1, 2)))(x, weight, placed(BIAS, mesh))
            assert_close(found, jax.grad(loss, (0, 1, 2))(X, WEIGHT, BIAS))
            with pytest.raises(Exception, match=r"^softmax: x is sharded as .*reshard") as caught:
                jax.jit(cudarelu.softmax)(placed(X, mesh, None, "a"))
            assert type(caught.value).__name__ == "ShardingTypeError"

    def test_without_jit(self):
        x = placed(X, mesh_of(8), "a")
        assert cudarelu.relu(x).sharding.spec == P("a")
        assert_close(cudarelu.relu(x), cudarelu.relu(X))

    def test_shard_map(self):
        """With JAX's check of what varies over the mesh, which makes it sum the gradients."""
        rows, whole = P("a"), P()
        function = jax.shard_map(
            jax.grad(loss, (0, 1, 2)),
            mesh=mesh_of(8),
            in_specs=(rows, whole, whole),
            out_specs=(rows, whole, whole),
        )
        assert_close(jax.jit(function)(X, WEIGHT, BIAS), jax.grad(loss, (0, 1, 2))(X, WEIGHT, BIAS))


def test_attributes_differ_in_the_sign_of_zero():
    """JAX compares parameters with ==, and keeps programs by them."""
    signs = [np.signbit(cudarelu.scale(X, factor=factor)) for factor in (0.0, -0.0)]
    jitted = jax.jit(lambda x: [cudarelu.scale(x, factor=factor) for factor in (0.0, -0.0)])(X)
    assert [np.signbit(y).tolist() for y in jitted] == [each.tolist() for each in signs]
    assert (signs[0] != signs[1]).all()
    assert np.isnan(jax.jit(lambda x: cudarelu.scale(x, factor=float("nan")))(X)).all()


# Donation


def test_in_place_writes_over_a_donated_argument():
    x = jnp.linspace(-1, 1, 1 << 16)
    pointer, expected = x.unsafe_buffer_pointer(), np.maximum(np.asarray(x), 0)
    y = jax.jit(cudarelu.jax.in_place(cudarelu.relu), donate_argnums=0)(x)
    assert y.unsafe_buffer_pointer() == pointer
    assert x.is_deleted()
    np.testing.assert_array_equal(y, expected)


def test_in_place_keeps_what_is_read_later():
    function = jax.jit(
        lambda x: (cudarelu.jax.in_place(cudarelu.leaky_relu)(x, negative_slope=2), x)
    )
    y, x = function(X)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, cudarelu.leaky_relu(X, negative_slope=2))


def test_in_place_has_gradients():
    def doubled(x):
        return cudarelu.jax.in_place(cudarelu.tanh)(x * 2).sum()

    assert_close(jax.jit(jax.grad(doubled))(X), jax.grad(lambda x: cudarelu.tanh(x * 2).sum())(X))


def test_in_place_needs_an_op_that_can():
    with pytest.raises(TypeError, match="layer_norm cannot overwrite an input"):
        cudarelu.jax.in_place(cudarelu.layer_norm)


# Programs


def test_sizes_of_an_export_are_symbols():
    export = jax.export.export(
        jax.jit(lambda x: cudarelu.layer_norm(x)),
        platforms=["cpu", "cuda"],
        disabled_checks=cudarelu.jax.export_checks(),
    )(jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 8"), jnp.float32))
    assert str(export.out_avals[0].shape) == "(n, 8)"
    for rows in (1, 16):
        assert_close(export.call(X[:rows]), cudarelu.layer_norm(X[:rows]))


@pytest.mark.parametrize("modules", slow_after(1, ["cudarelu, jax", "jax, cudarelu"]))
def test_an_exported_program_runs_in_a_process_that_imports_both(modules, tmp_path):
    function = jax.jit(lambda x: cudarelu.softmax(cudarelu.leaky_relu(x, negative_slope=0.25)))
    export = jax.export.export(function, disabled_checks=cudarelu.jax.export_checks())(X)
    (tmp_path / "program").write_bytes(export.serialize())
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", function(X))
    code = f"import {modules}, numpy as np; from pathlib import Path; from jax import export\n"
    code += "y = export.deserialize(Path('program').read_bytes()).call(np.load('x.npy'))\n"
    code += "np.testing.assert_array_equal(y, np.load('y.npy'))"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_a_platform_without_kernels_is_refused():
    with pytest.raises(NotImplementedError, match=r"cudarelu::relu.* tpu"):
        jax.export.export(jax.jit(cudarelu.relu), platforms=["tpu"])(X)


# What is refused


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda x: cudarelu.softmax(x.astype(jnp.int32)),
            TypeError,
            "softmax: x is int32; supported dtypes: float32, float64, float16, bfloat16",
        ),
        (
            lambda x: cudarelu.layer_norm(x, jnp.ones(3, x.dtype)),
            ValueError,
            "layer_norm: dimension c is 8 in x but 3 in weight",
        ),
        (lambda x: cudarelu.softmax(x[0, 0]), ValueError, "softmax: x must be [*, c], not []"),
        (
            lambda x: cudarelu.leaky_relu(x, negative_slope=x[0, 0]),
            TypeError,
            "leaky_relu: negative_slope must be a float",
        ),
        (
            lambda x: cudarelu.gelu(x, approximate="sigmoid"),
            ValueError,
            "gelu: approximate must be none (0) or tanh (1), not sigmoid",
        ),
        (lambda x: cudarelu.add(x, "a"), TypeError, "is not a valid JAX array type"),
        (lambda x: cudarelu.add(x), TypeError, "add: b is missing"),
    ],
)
def test_arguments_are_checked_while_tracing(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        jax.jit(call)(X)


def test_values_are_checked_when_the_program_runs():
    """On the CPU: no kernel reads device memory to check it."""
    (device, *_) = jax.devices("cpu")
    points = jax.device_put(np.zeros((4, 3), np.float32), device)
    offset = jax.device_put(np.array([3, 2], np.int32), device)
    message = r"offset\[1\] is 2, less than 3 before it"
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(jax.jit(cudarelu.knn_query)(points, offset))


def test_an_op_without_a_gradient_has_no_derivative():
    points, size = jnp.zeros((4, 3), jnp.float32), jnp.ones(3, jnp.float32)
    with pytest.raises(NotImplementedError, match="grid_cluster has no derivative"):
        jax.jvp(cudarelu.grid_cluster, (points, size), (points, size))


def test_the_handler_refuses_malformed_calls():
    """As a program from a file could contain them."""

    def call(shape, **attributes):
        kind = jax.ShapeDtypeStruct(shape, jnp.float32)
        return jax.block_until_ready(jax.ffi.ffi_call("cudarelu.cudarelu", kind)(X, **attributes))

    one = np.int64(1)
    np.testing.assert_array_equal(call(X.shape, _op="relu", _present=one), cudarelu.relu(X))
    for shape, attributes, message in (
        (X.shape, {"_present": one}, "there is no text _op"),
        (X.shape, {"_op": "absent", "_present": one}, "there is no op absent"),
        (X.shape, {"_op": "relu"}, "there is no integer _present"),
        (X.shape, {"_op": "relu", "_present": np.float32(0.5)}, "there is no integer _present"),
        (X.shape, {"_op": "add", "_present": np.int64(3)}, "an argument is missing"),
        (X.shape, {"_op": "relu", "_present": np.int64(0)}, "an argument is left over"),
        (X.shape, {"_op": "scale", "_present": one}, "there is no floating-point number factor"),
        ((16, 9), {"_op": "relu", "_present": one}, r"relu: y must be \[16, 8\], not \[16, 9\]"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            call(shape, **attributes)


@pytest.mark.slow
def test_without_x64(tmp_path):
    """JAX would make other dtypes of what it is given, and of what the op returns."""
    code = """
import numpy as np, jax, jax.numpy as jnp, cudarelu
points, size = jnp.zeros((4, 3)), jnp.ones(3)
for call, message in (
    (lambda: jax.jit(lambda x: cudarelu.add(x, np.zeros((4, 3))))(points), "b is float64, which"),
    (lambda: jax.jit(cudarelu.grid_cluster)(points, size), "returns int64: enable jax_enable_x64"),
):
    try:
        call()
    except TypeError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# The handler


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_the_interface_is_that_of_jaxlib(tmp_path):
    """The memory layout that src/readers/xla/xla_ffi.h declares."""
    pairs = {
        "Extension": ("Extension_Base", "struct_size type next"),
        "Version": ("Api_Version", "struct_size major:major_version minor:minor_version"),
        "Buffer": ("Buffer", "struct_size dtype data rank dims"),
        "Buffers": ("Args", "struct_size size types buffers:args"),
        "Attributes": ("Attrs", "struct_size size kinds:types names values:attrs"),
        "CallFrame": (
            "CallFrame",
            "struct_size extension_start api context:ctx stage arguments:args results:rets "
            "attributes:attrs",
        ),
        "Number": ("Scalar", "dtype value"),
        "Text": ("ByteSpan", "data:ptr size:len"),
        "ErrorArguments": ("Error_Create_Args", "struct_size message code:errc"),
        "DestroyArguments": ("Error_Destroy_Args", "struct_size error"),
        "StreamArguments": ("Stream_Get_Args", "struct_size context:ctx stream"),
        "AllocateArguments": (
            "DeviceMemory_Allocate_Args",
            "struct_size context:ctx size alignment data",
        ),
        "FreeArguments": ("DeviceMemory_Free_Args", "struct_size context:ctx size data"),
        "ScheduleArguments": ("ThreadPool_Schedule_Args", "struct_size context:ctx task data"),
        "ThreadCountArguments": ("ThreadPool_NumThreads_Args", "context:ctx count:num_threads"),
        "DeviceArguments": ("DeviceOrdinal_Get_Args", "context:ctx device:device_ordinal"),
        "TypeInfo": ("TypeInfo", "struct_size destroy:deleter"),
        "TypeArguments": ("Type_Register_Args", "struct_size name id:type_id info:type_info"),
        "StateArguments": ("State_Set_Args", "struct_size context:ctx stage type:type_id state"),
        "Metadata": ("Metadata", "struct_size api_version traits"),
        "MetadataExtension": ("Metadata_Extension", "base:extension_base metadata"),
        "Api": (
            "Api",
            "struct_size create_error:XLA_FFI_Error_Create destroy_error:XLA_FFI_Error_Destroy "
            "get_stream:XLA_FFI_Stream_Get register_type:XLA_FFI_Type_Register "
            "set_state:XLA_FFI_State_Set get_state:XLA_FFI_State_Get "
            "allocate:XLA_FFI_DeviceMemory_Allocate free:XLA_FFI_DeviceMemory_Free "
            "schedule:XLA_FFI_ThreadPool_Schedule count_threads:XLA_FFI_ThreadPool_NumThreads "
            "get_device:XLA_FFI_DeviceOrdinal_Get",
        ),
    }
    lines = ['#include "xla/ffi/api/c_api.h"', '#include "xla_ffi.h"']
    if (
        "XLA_FFI_InternalExtension"
        in (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    ):
        lines.append("#define XLA_FFI_Extension_Base XLA_FFI_InternalExtension")  # from 0.11.2 on
    for own, (theirs, members) in pairs.items():
        for member in members.split():
            name, _, other = member.partition(":")
            lines.append(
                f"static_assert(offsetof(cudarelu::xla::{own}, {name}) == "
                f"offsetof(XLA_FFI_{theirs}, {other or name}));"
            )
    for name, value in {"f32": "F32", "bf16": "BF16", "s64": "S64", "u8": "U8"}.items():
        lines.append(
            f"static_assert(int(cudarelu::xla::Type::{name}) == XLA_FFI_DataType_{value});"
        )
    (tmp_path / "layout.cpp").write_text("\n".join(lines))
    command = ["c++", "-std=c++20", "-fsyntax-only", f"-I{jax.ffi.include_dir()}"]
    command += [f"-I{ROOT / 'src/readers/xla'}", str(tmp_path / "layout.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]


HANDLER = """
import ctypes, sys
import numpy as np, jax, jax.numpy as jnp
assert jax.__version__ == sys.argv[2], jax.__version__
library = ctypes.CDLL(sys.argv[1])
jax.ffi.register_ffi_target("f", jax.ffi.pycapsule(library.cudarelu_xla_cpu), platform="cpu")
def call(op, shape, *arrays, **attributes):
    kind = jax.ShapeDtypeStruct(shape, jnp.float32)
    present = np.int64(2 ** len(arrays) - 1)
    return jax.ffi.ffi_call("f", kind)(*arrays, _op=op, _present=present, **attributes)
x = jnp.asarray(np.random.default_rng(0).standard_normal((300, 70)), jnp.float32)
y = jax.jit(lambda x: call("leaky_relu", x.shape, x, negative_slope=np.float64(0.5)))(x)
np.testing.assert_array_equal(y, np.where(np.asarray(x) < 0, np.asarray(x) / 2, x))
product = jax.jit(lambda x: call("matmul_nt", (300, 300), x, x))(x)
np.testing.assert_allclose(product, np.asarray(x) @ np.asarray(x).T, rtol=1e-4, atol=1e-4)
try:
    call("absent", x.shape, x).block_until_ready()
except Exception as error:
    assert "there is no op absent" in str(error)
else:
    raise AssertionError
"""


@pytest.mark.parametrize("version", ["0.5.3", "0.12.0"])
def test_one_library_serves_other_versions_of_jax(version):
    """The library that was built for this test runs in the oldest and the newest JAX, which needs
    Python 3.12."""
    folder = RUNTIMES / f"jax-{version}"
    if not folder.exists():
        pytest.skip(f"JAX {version} is missing: tools/old_runtimes.sh installs it")
    (module,) = (each["path"] for each in _C.modules() if each["name"] == "cudarelu")
    python = python_3_12() if version == "0.12.0" else sys.executable
    settings = environment(PYTHONPATH=folder, JAX_PLATFORMS="cpu")
    run(python, "-c", HANDLER, module, version, env=settings)


def test_an_older_jax_is_refused_in_programs():
    """Its arrays are taken all the same."""
    folder = RUNTIMES / "jax-0.5.3"
    if not folder.exists():
        pytest.skip("JAX 0.5.3 is missing: tools/old_runtimes.sh installs it")
    code = "import jax, jax.numpy as jnp, cudarelu\n"
    code += "print(cudarelu.relu(jnp.array([-1.0, 2.0])))\n"
    code += "try:\n    jax.jit(cudarelu.relu)(jnp.ones(3))\n"
    code += "except ImportError as error:\n    print(error)\n"
    path = f"{folder}:{Path(cudarelu.__file__).parents[1]}"
    printed = run(
        sys.executable, "-c", code, env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    )
    assert printed.splitlines() == [
        "[0. 2.]",
        "in programs of JAX, the ops need JAX 0.10 or later; this is JAX 0.5.3",
    ]
