"""The test matrix: every op, host and dtype with every case of the op's signature, and the
features of the hosts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from .._modules import module_named
from .._table import OWN_NAMESPACE, OpInfo, op_named
from .cases import DTYPES, Case, Plan, cases, make_case, output_dtypes, plans, unchanged
from .exports import check_export
from .features import features, wide_dtype
from .hosts import CuPy, Host, Jax, NumPy, Ort, OrtInfer, Torch, TvmFfi
from .jax import JAX_FEATURES, JaxGrad, JaxJit
from .memory import check_memory
from .reference import assert_close, attribute_rounding, reference
from .tensorflow import TENSORFLOW_FEATURES, TensorFlow
from .tiers import is_first, is_representative, is_representative_dtype

_DEVICES = ("cpu", "cuda")
HOSTS: list[Host] = [
    *map(Torch, _DEVICES),
    *(NumPy(), CuPy()),
    *(host(device) for host in (Jax, JaxJit, JaxGrad, TvmFfi) for device in _DEVICES),
    TensorFlow(),
    *(host(device) for host in (Ort, OrtInfer) for device in _DEVICES),
]

FEATURES_OF = {"jax-jit": JAX_FEATURES, "tensorflow": TENSORFLOW_FEATURES}  # by runtime


@dataclass(frozen=True)
class Check:
    """One cell of the matrix: an op, a host, a dtype, and a case or a feature.

    A case compares a call with the op's definition, evaluated in float64, and checks that the
    inputs are not overwritten. A feature is a property of the host, such as "gradients". The
    check "memory" finds writes outside the outputs, on the CPU.

    The checks that are not slow are the first tier: each op in each host and each dtype, and each
    kind of mistake in one place. docs/testing.md says which they are.
    """

    op: OpInfo
    host: Host
    dtype: str
    name: str  # of the case or the feature
    run: Callable[[], None]  # raises an exception that says what is wrong
    slow: bool = False  # whether it belongs to the second tier

    @property
    def id(self) -> str:
        """The name of the check, such as "torch-cpu-my::swish-float32-odd"."""
        return f"{self.host.name}-{self.op.short_name}-{self.dtype}-{self.name}"

    @property
    def call(self) -> str:
        """A line of Python that runs the check alone."""
        load = ""
        if self.op.namespace != OWN_NAMESPACE:
            load = f"cudarelu.load_library({module_named(self.op.namespace).path!r}); "
        names = (self.op.short_name, self.host.name, self.dtype, self.name)
        arguments = ", ".join(f'"{name}"' for name in names)
        return f"import cudarelu, cudarelu.testing as t; {load}t.check({arguments})"


def missing_hosts(ops: Collection[OpInfo] | None = None) -> dict[str, str]:
    """The names of the hosts that cannot run here, or have no kernel of any of the ops, and why."""
    missing = {host.name: reason for host in HOSTS if (reason := host.unavailable())}
    if ops is not None:
        for host in HOSTS:
            if not any(host.device in op.devices for op in ops):
                reason = f"the library has no kernel for {host.device.upper()}"
                missing.setdefault(host.name, reason)
    return missing


def checks(ops: Iterable[OpInfo]) -> Iterator[Check]:
    """The checks of ops in all hosts that can run here, on the devices that an op has kernels for.

    The checks of one op, dtype and case follow one another, since they share the reference.
    """
    missing = missing_hosts()
    working = [host for host in HOSTS if host.name not in missing]
    for op in ops:
        hosts = [host for host in working if any(host.serves(op, dtype) for dtype in op.dtypes)]
        for dtype in op.dtypes:  # first, since such an op may crash or disturb other hosts
            for host in hosts:
                if host.runtime == "numpy":
                    run = functools.partial(_memory, op, dtype)
                    slow = not is_representative_dtype(op, dtype)
                    yield Check(op, host, dtype, "memory", run, slow)
        for dtype in op.dtypes:
            for plan in plans(op, DTYPES[dtype]):
                for host in hosts:
                    if not host.serves(op, dtype):
                        continue
                    run = functools.partial(_check_case, op, host, dtype, plan)
                    slow = not is_first(op, host.runtime, dtype, plan.id)
                    yield Check(op, host, dtype, plan.id, run, slow)
        for host in hosts:
            if host.runtime == "torch":
                for dtype, feature in features(op):
                    if host.device in feature.devices:
                        run = functools.partial(feature.run, op, host.device)
                        # PyTorch compiles an op, as it exports one, whatever its dtype is.
                        others = feature.compiles and dtype not in (op.dtypes[0], wide_dtype(op))
                        slow = others or (feature.compiles and not is_representative(op))
                        yield Check(op, host, dtype, feature.name, run, slow)
            elif host.runtime in FEATURES_OF:
                for feature in FEATURES_OF[host.runtime]:
                    if feature.applies(op):
                        run = functools.partial(feature.run, op, host.device)
                        slow = feature.compiles and not is_representative(op)
                        yield Check(op, host, wide_dtype(op), feature.name, run, slow)
            elif host.runtime == "onnxruntime":
                run = functools.partial(check_export, op, host.device)
                slow = not is_representative(op)
                yield Check(op, host, op.dtypes[0], "exported", run, slow)


def check(op: str, host: str, dtype: str, name: str) -> None:
    """Runs one check of the matrix.

    Args:
        op: the qualified name of an op, or the name of an op of this library.
        host: the name of a host, such as "torch-cpu".
        dtype: the dtype of the type variable of the signature.
        name: the case or the feature.

    Raises:
        AssertionError: if a result is wrong. A host may raise exceptions of its own.
        ValueError: if there is no such check, or the host cannot run here.
    """
    if reason := missing_hosts().get(host):
        raise ValueError(f"{host} cannot run here: {reason}")
    for each in checks([op_named(op)]):
        if (each.host.name, each.dtype, each.name) == (host, dtype, name):
            each.run()
            return
    raise ValueError(f"{op} has no check {name!r} for {dtype} in {host}")


def _memory(op: OpInfo, dtype: str) -> None:
    for case in cases(op, DTYPES[dtype]):
        check_memory(op, case)


@functools.lru_cache(maxsize=1)  # the checks of all hosts for one plan are consecutive
def _expected(op: OpInfo, dtype: str, plan: Plan) -> tuple[Case, list[np.ndarray]]:
    case = make_case(op, DTYPES[dtype], plan)
    return case, reference(op, case)


def _check_case(op: OpInfo, host: Host, dtype: str, plan: Plan) -> None:
    case, references = _expected(op, dtype, plan)
    with unchanged(case):
        outputs = host.run(op, case)
    assert len(outputs) == len(op.outputs)
    dtypes = output_dtypes(op, case)
    for actual, wanted, own in zip(outputs, references, dtypes, strict=True):
        assert_close(op, case, actual, wanted, own)
    if _has_the_same_bits(op, host, case):
        for parameter, actual, others in zip(
            op.outputs, outputs, _in_torch(op, dtype, plan), strict=True
        ):
            np.testing.assert_array_equal(
                _bits(actual), _bits(others), f"{parameter.name} differs from PyTorch's"
            )


def _has_the_same_bits(op: OpInfo, host: Host, case: Case) -> bool:
    """Whether a host's results are those of PyTorch bit by bit. Not those of matrix products, which
    hosts compute by themselves; those with an attribute that ONNX rounds to float32; and those on
    CUDA, where the order of a sum depends on the alignment of the tensors."""
    if op.product or attribute_rounding(op, case):
        return False
    return host.device == "cpu" and host.runtime != "torch"


@functools.lru_cache(maxsize=1)  # as _expected
def _in_torch(op: OpInfo, dtype: str, plan: Plan) -> list[np.ndarray]:
    case, _ = _expected(op, dtype, plan)
    return Torch("cpu").run(op, case)


def _bits(array: np.ndarray) -> np.ndarray:
    """The bits of the elements as integers, those of one NaN for all."""
    if array.dtype.kind not in "fV":
        return array
    bits = np.where(array != array, array.dtype.type(np.nan), array)
    return bits.view(f"u{array.dtype.itemsize}")
