"""The runtimes that serve the ops. A host reports why it cannot run here, and runs a case."""

from __future__ import annotations

import functools
import subprocess
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.helper
import torch

from .._modules import module_named
from .._pytorch.functions import FUNCTIONS, overload_of
from .._table import OWN_NAMESPACE, OpInfo
from ..ort.library import PROVIDERS, register
from .cases import Case, output_dtypes, unchanged
from .environment import (
    cupy_missing,
    jax_missing,
    ort_cuda_missing,
    ort_infer,
    ort_missing,
    torch_cuda_missing,
    tvm_ffi_missing,
)
from .tiers import batch, is_first
from .torch_calls import as_tuple

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Host:
    """A runtime on a device."""

    name: str  # "torch-cpu"
    runtime: str  # "torch"
    device: str  # "cpu" or "cuda"

    def unavailable(self) -> str | None:
        """Why the host cannot run here, or None."""
        return None

    def serves(self, op: OpInfo, dtype: str) -> bool:
        """Whether the host runs the op for this dtype of the type variable."""
        return self.device in op.devices

    def run(self, op: OpInfo, case: Case) -> list[np.ndarray]:
        """The outputs of a case. Raises unittest.SkipTest if the host lacks the dtype."""
        raise NotImplementedError


class OnDevice(Host):
    """One that runs on the device that is chosen."""

    prefix: str  # of the name

    def __init__(self, device: str) -> None:
        self.name = f"{self.prefix}-{device}"
        self.device = device


def onnx_type(dtype: np.dtype) -> int:
    """The number of a dtype in ONNX."""
    return onnx.helper.np_dtype_to_tensor_dtype(dtype)


def one_op_model(op: OpInfo, runs: list[Case]) -> onnx.ModelProto:
    """A model with a node for each case; the sizes of its inputs are symbols.

    Names have the number of the case: input `a` of case 2 is `a_2`, and likewise the outputs.
    """
    nodes, inputs, outputs = [], [], []
    for number, case in enumerate(runs):
        names = []
        for name, array in case.inputs.items():
            names.append("" if array is None else f"{name}_{number}")
            if array is not None:
                shape = [f"{name}_{number}_{axis}" for axis in range(array.ndim)]
                inputs.append(
                    onnx.helper.make_tensor_value_info(names[-1], onnx_type(array.dtype), shape)
                )
        attributes: dict[str, Any] = {**op.onnx_attributes(case.attributes)}
        dtypes = output_dtypes(op, case)
        for p, dtype in zip(op.outputs, dtypes, strict=True):
            outputs.append(
                onnx.helper.make_tensor_value_info(f"{p.name}_{number}", onnx_type(dtype), None)
            )
        nodes.append(
            onnx.helper.make_node(
                op.onnx.op_type,
                names,
                [f"{p.name}_{number}" for p in op.outputs],
                name=f"{case.dtype}-{case.id}",
                domain=op.onnx.domain,
                **attributes,
            )
        )
    versions = {"": 18, op.onnx.domain: op.onnx.version}
    opsets = [onnx.helper.make_opsetid(*each) for each in versions.items()]
    graph = onnx.helper.make_graph(nodes, op.name, inputs, outputs)
    return onnx.helper.make_model(graph, ir_version=8, opset_imports=opsets)


class Torch(OnDevice):
    """PyTorch: `torch.ops.<namespace>.<op>`."""

    prefix = runtime = "torch"

    def unavailable(self) -> str | None:
        return torch_cuda_missing() if self.device == "cuda" else None

    def tensor(self, array: np.ndarray | None) -> torch.Tensor | None:
        """The array on the device, with the same strides and offset from an aligned address."""
        if array is None:
            return None
        bits = array.view(np.int16) if array.dtype == BFLOAT16 else array
        offset = bits.__array_interface__["data"][0] % 16 // bits.itemsize
        bytes_at = np.lib.array_utils.byte_bounds(bits) if bits.size else (0, 0)
        extent = (bytes_at[1] - bytes_at[0]) // bits.itemsize
        flat = np.lib.stride_tricks.as_strided(bits, (extent,), (bits.itemsize,))
        storage = torch.from_numpy(np.concatenate([np.zeros(offset, bits.dtype), flat]))
        strides = [stride // bits.itemsize for stride in bits.strides]
        moved = storage.to(self.device).as_strided(bits.shape, strides, offset)
        return moved.view(torch.bfloat16) if array.dtype == BFLOAT16 else moved

    def run(self, op: OpInfo, case: Case) -> list[np.ndarray]:
        tensors = [self.tensor(array) for array in case.inputs.values()]
        outputs = as_tuple(overload_of(op)(*tensors, **case.attributes))
        for output in outputs:
            assert output.device.type == self.device
        return [numpy_of(output) for output in outputs]


def numpy_of(tensor: torch.Tensor) -> np.ndarray:
    """The elements as an array, bfloat16 too."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).cpu().numpy().view(BFLOAT16)
    return tensor.cpu().numpy()


class NumPy(Host):
    """The ops on NumPy arrays."""

    name = runtime = "numpy"
    device = "cpu"

    def run(self, op: OpInfo, case: Case) -> list[np.ndarray]:
        results = FUNCTIONS[op.qualified_name](*case.inputs.values(), **case.attributes)
        return list(as_tuple(results))


class CuPy(Host):
    """The ops on CuPy arrays."""

    name = runtime = "cupy"
    device = "cuda"

    def unavailable(self) -> str | None:
        return cupy_missing()

    def array(self, array: np.ndarray | None) -> Any:
        """The array with the same strides and offset from an aligned address."""
        import cupy

        if array is None:
            return None
        try:
            return cupy.from_dlpack(Torch("cuda").tensor(array))
        except NotImplementedError as error:  # CuPy supports bfloat16 from 14 on
            raise unittest.SkipTest(str(error)) from error

    def run(self, op: OpInfo, case: Case) -> list[np.ndarray]:
        import cupy

        arrays = [self.array(array) for array in case.inputs.values()]
        outputs = as_tuple(FUNCTIONS[op.qualified_name](*arrays, **case.attributes))
        assert all(type(output) is cupy.ndarray for output in outputs)
        return [numpy_of(torch.from_dlpack(output)) for output in outputs]


class Jax(OnDevice):
    """The ops on JAX arrays."""

    prefix = runtime = "jax"

    def unavailable(self) -> str | None:
        return jax_missing(self.device)

    def run(self, op: OpInfo, case: Case) -> list[np.ndarray]:
        import jax

        (device, *_) = jax.devices(self.device)
        arrays = [
            array if array is None else jax.device_put(array, device)
            for array in case.inputs.values()
        ]
        outputs = as_tuple(FUNCTIONS[op.qualified_name](*arrays, **case.attributes))
        assert all(isinstance(output, jax.Array) for output in outputs)
        assert all(output.devices() == {device} for output in outputs)
        return [np.asarray(output) for output in outputs]


class TvmFfi(OnDevice):
    """The functions of the module's library for tvm-ffi, on PyTorch's tensors."""

    prefix = runtime = "tvm-ffi"

    def unavailable(self) -> str | None:
        return tvm_ffi_missing(self.device)

    def call(self, op: OpInfo, case: Case) -> Callable[..., Any]:
        """The function of the op with the arguments of the case; it takes outputs as well."""
        import tvm_ffi

        function = tvm_ffi.load_module(module_named(op.namespace).path)[op.name]
        tensors = [Torch(self.device).tensor(array) for array in case.inputs.values()]
        arguments: list[Any] = [x if x is None else x.contiguous() for x in tensors]
        arguments += [case.attributes.get(each.name, each.default) for each in op.attributes]
        return functools.partial(function, *arguments)

    def run(self, op: OpInfo, case: Case) -> list[np.ndarray]:
        function = self.call(op, case)
        results = function()
        outputs = [results] if isinstance(results, torch.Tensor) else list(results)
        given = [torch.empty_like(output) for output in outputs]
        assert function(*given) is None
        for output, into in zip(outputs, given, strict=True):
            assert output.device.type == self.device
            torch.testing.assert_close(into, output, equal_nan=True)
        return [numpy_of(output) for output in outputs]


class Ort(OnDevice):
    """ONNX Runtime's Python package."""

    prefix, runtime = "ort", "onnxruntime"

    def unavailable(self) -> str | None:
        return ort_cuda_missing() if self.device == "cuda" else ort_missing()

    def run(self, op: OpInfo, case: Case) -> list[np.ndarray]:
        return _ort_results(self.device, op, in_first_tier(self, op, case))[_key(case)]


def in_first_tier(host: Host, op: OpInfo, case: Case) -> bool:
    return is_first(op, host.runtime, case.dtype.name, case.id)


def _key(case: Case) -> tuple[str, str]:
    """Names a case among those of several dtypes."""
    return case.dtype.name, case.id


def full_precision(device: str) -> tuple[str, dict[str, str]]:
    """ONNX Runtime's provider for a device, which multiplies float32 without TF32."""
    return PROVIDERS[device], {"use_tf32": "0"} if device == "cuda" else {}


@functools.lru_cache(maxsize=4)  # one for each device and tier
def _ort_results(device: str, op: OpInfo, first: bool) -> dict[tuple[str, str], list[np.ndarray]]:
    """The outputs of the cases of an op and a tier, by dtype and case. The cases are nodes of one
    model, since it takes longer to create a session than to run them. An error names the node,
    named after its dtype and case."""
    import onnxruntime as ort

    runs = list(batch(op, "onnxruntime", op.dtypes, first))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if device == "cuda":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    register(options)
    model = one_op_model(op, runs).SerializeToString()
    session = ort.InferenceSession(model, options, providers=[full_precision(device)])
    if hasattr(session, "get_provider_graph_assignment_info"):  # from ONNX Runtime 1.24 on
        placements = session.get_provider_graph_assignment_info()
        assert {each.ep_name for each in placements} == {PROVIDERS[device]}
        assert sum(len(each.get_nodes()) for each in placements) == len(runs)
    feeds = {
        f"{name}_{number}": ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
            np.ascontiguousarray(array).reshape(array.shape), onnx_type(array.dtype)
        )
        for number, case in enumerate(runs)
        for name, array in case.inputs.items()
        if array is not None
    }
    with unchanged(*runs):
        results = iter(session.run_with_ort_values(None, feeds))
    return {_key(case): [from_ort(next(results)) for _ in op.outputs] for case in runs}


def from_ort(value: Any) -> np.ndarray:
    """The array of an OrtValue, which ONNX Runtime's own method lacks for bfloat16."""
    if value.element_type() == onnx.TensorProto.BFLOAT16:
        tensor = torch.from_dlpack(value._ortvalue.to_dlpack())
        return tensor.view(torch.int16).numpy().view(BFLOAT16)
    return value.numpy()


class OrtInfer(OnDevice):
    """The executable ort_infer."""

    prefix = runtime = "ort_infer"

    def unavailable(self) -> str | None:
        reason = ort_cuda_missing() if self.device == "cuda" else ort_missing()
        return reason or (None if ort_infer() else "ort_infer was not built")

    def run(self, op: OpInfo, case: Case) -> list[np.ndarray]:
        return _ort_infer_results(self.device, op, in_first_tier(self, op, case))[_key(case)]


@functools.lru_cache(maxsize=4)  # one for each device and tier
def _ort_infer_results(
    device: str, op: OpInfo, first: bool
) -> dict[tuple[str, str], list[np.ndarray]]:
    """The outputs of the cases of an op and a tier, by dtype and case, which are nodes of one
    model: a process for each would take longer."""
    runs = list(batch(op, "ort_infer", op.dtypes, first))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        onnx.save(one_op_model(op, runs), path / "model.onnx")
        command = [str(ort_infer()), str(path / "model.onnx")]
        command += ["--provider", device, "--output-dir", str(path / "out")]
        if op.namespace != OWN_NAMESPACE:
            command += ["--library", module_named(op.namespace).path]
        for number, case in enumerate(runs):
            for name, array in case.inputs.items():
                if array is not None:
                    file = path / f"{name}_{number}.npy"
                    np.save(file, np.ascontiguousarray(array).reshape(array.shape))
                    command += ["--input", f"{name}_{number}={file}"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return {
            _key(case): [_load_npy(path / "out" / f"{p.name}_{number}.npy") for p in op.outputs]
            for number, case in enumerate(runs)
        }


def _load_npy(path: Path) -> np.ndarray:
    array = np.load(path)
    return array.view(BFLOAT16) if array.dtype.kind == "V" else array
