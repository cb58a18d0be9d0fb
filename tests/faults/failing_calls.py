"""Calls each op in a host, with memory for 0, 1, ... large blocks; prints how many calls failed."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import cudarelu
from cudarelu.testing.cases import Case
from cudarelu.testing.hosts import Torch, TvmFfi, one_op_model
from cudarelu.testing.torch_calls import as_tuple
from support.cases import large_case

MEMORY = ctypes.CDLL(None)
MOST = 30
ERRORS: dict[str, Any] = {
    "torch": RuntimeError,
    "gradient": RuntimeError,
    "numpy": MemoryError,
    "ort": Exception,
    "tvm-ffi": Exception,
    "jax": Exception,
}


def torch_call(op: cudarelu.OpInfo, case: Case) -> Callable[[], Any]:
    tensors = [Torch("cpu").tensor(array) for array in case.inputs.values()]
    return lambda: getattr(cudarelu, op.name)(*tensors, **case.attributes)


def numpy_call(op: cudarelu.OpInfo, case: Case) -> Callable[[], Any]:
    return lambda: getattr(cudarelu, op.name)(*case.inputs.values(), **case.attributes)


def gradient_call(op: cudarelu.OpInfo, case: Case) -> Callable[[], Any]:
    """A call in PyTorch and its gradients."""
    tensors = [Torch("cpu").tensor(array) for array in case.inputs.values()]
    leaves = [x.requires_grad_() for x in tensors if x is not None and x.is_floating_point()]

    def call() -> Any:
        results = getattr(cudarelu, op.name)(*tensors, **case.attributes)
        outputs = [y for y in as_tuple(results) if y.requires_grad]
        if not (op.gradient and outputs):
            return results
        ones = [torch.ones_like(y) for y in outputs]
        found = torch.autograd.grad(outputs, leaves, ones, allow_unused=True)
        return tuple(x for x in found if x is not None)

    return call


def jax_call(op: cudarelu.OpInfo, case: Case) -> Callable[[], Any]:
    import jax.numpy as jnp

    arrays = [x if x is None else jnp.asarray(x) for x in case.inputs.values()]
    return lambda: getattr(cudarelu, op.name)(*arrays, **case.attributes)


def ort_call(op: cudarelu.OpInfo, case: Case) -> Callable[[], Any]:
    import onnxruntime as ort

    import cudarelu.ort

    ort.disable_telemetry_events()  # their thread allocates too
    options = cudarelu.ort.register(ort.SessionOptions())
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    options.intra_op_num_threads = 1
    model = one_op_model(op, [case]).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {f"{name}_0": array for name, array in case.inputs.items() if array is not None}
    return lambda: session.run(None, feeds)


CALLS = {
    "torch": torch_call,
    "gradient": gradient_call,
    "numpy": numpy_call,
    "ort": ort_call,
    "tvm-ffi": TvmFfi("cpu").call,
    "jax": jax_call,
}


def arrays(results: Any) -> list[np.ndarray]:
    several = isinstance(results, Sequence) and not isinstance(results, np.ndarray)
    return [
        each.detach().numpy() if isinstance(each, torch.Tensor) else np.asarray(each)
        for each in (results if several else [results])
    ]


def in_use() -> int:
    gc.collect()
    return MEMORY.failing_memory_in_use()


def fail_each(name: str, call: Callable[[], Any], error: type[Exception]) -> int:
    expected = arrays(call())
    for allowed in range(MOST):
        before = in_use()
        MEMORY.failing_memory_after(allowed)
        message = None
        try:
            call()
        except (error, MemoryError) as raised:
            message = str(raised)
        finally:
            refused = MEMORY.failing_memory_refused()
            MEMORY.failing_memory_after(-1)
        if not refused:
            return allowed
        if message is not None and not re.search("memory|alloc|workspace", message):
            raise AssertionError(f"{name}: the error does not speak of memory: {message}")
        after = in_use()
        if after > before:
            raise AssertionError(f"{name}: {after - before} blocks are left after: {message}")
        for one, other in zip(arrays(call()), expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)
    raise AssertionError(f"{name}: more than {MOST} blocks")


def main(host: str) -> None:
    total = 0
    for op in cudarelu.ops():
        total += fail_each(op.name, CALLS[host](op, large_case(op)), ERRORS[host])
    print(total, "failed allocations")


main(sys.argv[1])
