"""Calls each op in a host, with memory for 0, 1, ... large blocks; prints how many calls failed."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import cudarelu
from cudarelu.testing.cases import DTYPES, Case, Plan, has_many_dimensions, make_case
from cudarelu.testing.hosts import Torch, one_op_model

MEMORY = ctypes.CDLL(None)
MOST = 30
ERRORS: dict[str, Any] = {"torch": RuntimeError, "numpy": MemoryError, "ort": Exception}


def torch_call(op: cudarelu.OpInfo, case: Case) -> Callable[[], Any]:
    tensors = [Torch("cpu").tensor(array) for array in case.inputs.values()]
    return lambda: getattr(cudarelu, op.name)(*tensors, **case.attributes)


def numpy_call(op: cudarelu.OpInfo, case: Case) -> Callable[[], Any]:
    return lambda: getattr(cudarelu, op.name)(*case.inputs.values(), **case.attributes)


def ort_call(op: cudarelu.OpInfo, case: Case) -> Callable[[], Any]:
    import onnxruntime as ort

    import cudarelu.ort

    options = cudarelu.ort.register(ort.SessionOptions())
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False
    options.intra_op_num_threads = 1
    model = one_op_model(op, [case]).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {f"{name}_0": array for name, array in case.inputs.items() if array is not None}
    return lambda: session.run(None, feeds)


CALLS = {"torch": torch_call, "numpy": numpy_call, "ort": ort_call}


def arrays(results: Any) -> list[np.ndarray]:
    return [
        np.asarray(each) for each in (results if isinstance(results, tuple | list) else [results])
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
        except MemoryError:
            message = "out of memory"  # its type says so
        except error as raised:
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
        many = has_many_dimensions(op)
        dtype = next(each for each in op.dtypes if each in ("float32", "int32"))
        case = make_case(op, DTYPES[dtype], Plan("large", (16,) if many else (130,), 48))
        total += fail_each(op.name, CALLS[host](op, case), ERRORS[host])
    print(total, "failed allocations")


main(sys.argv[1])
