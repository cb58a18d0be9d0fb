"""Kernels in Triton, compiled ahead: machine code for architectures, dtypes and alignments."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .triton_trace import POINTERS, Launch, Symbol, Tensor

_TRIES = 5
_MAX_SIZES = 3  # whose alignments are combined with one another

# Bytes of shared memory that a block can have, by architecture, from the CUDA programming guide.
_SHARED_BYTES = {
    **dict.fromkeys((75,), 64 << 10),
    **dict.fromkeys((80, 87), 163 << 10),
    **dict.fromkeys((86, 89, 120, 121), 99 << 10),
    **dict.fromkeys((90, 100, 103, 110), 227 << 10),
}


@dataclasses.dataclass(frozen=True)
class Cubin:
    """The machine code of a kernel for an architecture, with what a launch must know."""

    architecture: int  # 90 for compute capability 9.0
    name: str
    threads: int
    shared_bytes: int
    scratch_bytes: int
    scratch_align: int
    code: bytes


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument that is passed when the kernel is launched."""

    value: Tensor | Symbol
    type: str  # of the parameter, as Triton writes it: "*fp32", "i32", "fp32"
    specialised: bool  # whether the kernel has code of its own for multiples of 16


def arguments_of(launch: Launch, dtype: str) -> dict[str, Argument]:
    """The arguments by parameter, without constants.

    Args:
        launch: the launch.
        dtype: of the op's type variable: numbers are float64 if it is, and float32 if not.
    """
    found = {}
    for parameter in launch.kernel.params:
        value = launch.arguments[parameter.name]
        if isinstance(value, Tensor):
            kind = f"*{POINTERS[value.dtype]}"
        elif not isinstance(value, Symbol):
            continue
        elif value.kind == "int":
            kind = "i64" if parameter.annotation_type == "i64" else "i32"
        else:
            kind = parameter.annotation_type or ("fp64" if dtype == "float64" else "fp32")
        is_free = parameter.do_not_specialize or parameter.do_not_specialize_on_alignment
        found[parameter.name] = Argument(value, kind, kind not in ("fp32", "fp64") and not is_free)
    return found


def aligned_sizes(arguments: Mapping[str, Argument]) -> list[list[str]]:
    """The parameters whose alignment has code of its own, in groups.

    The code of a launch has an index: 0 if an address is not a multiple of 16, else 1 plus a bit
    for each group whose sizes are multiples of 16. Equal sizes are one group; if there are many,
    all are.
    """
    groups: dict[str, list[str]] = {}
    for name, argument in arguments.items():
        if argument.specialised and isinstance(argument.value, Symbol):
            groups.setdefault(argument.value.text, []).append(name)
    if len(groups) > _MAX_SIZES:
        return [list(itertools.chain(*groups.values()))]
    return list(groups.values())


def _aligned(arguments: Mapping[str, Argument]) -> Iterator[set[str]]:
    """The parameters that are multiples of 16, for each index."""
    pointers = {
        name
        for name, argument in arguments.items()
        if argument.specialised and isinstance(argument.value, Tensor)
    }
    yield set()
    groups = aligned_sizes(arguments)
    for bits in range(1 << len(groups)):
        chosen = [group for i, group in enumerate(groups) if bits >> i & 1]
        yield pointers.union(*chosen)


class Compiler:
    """Compiles kernels of an op in several threads. Equal requests are compiled once."""

    def __init__(self, op: str, architectures: Sequence[str]) -> None:
        self._op = op
        self._architectures = sorted({int(re.sub(r"\D", "", each)) for each in architectures})
        self._pool = ThreadPoolExecutor(os.cpu_count())
        self._requests: dict[str, Future[Cubin]] = {}
        self._settings = contextlib.ExitStack()

    def __enter__(self) -> Compiler:
        import triton

        self._settings.enter_context(triton.knobs.compilation.scope())
        triton.knobs.compilation.disable_line_info = True  # most of the size
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._settings.close()

    def compiled(self, launch: Launch, dtype: str) -> list[list[Future[Cubin]]]:
        """The code for each index of `aligned_sizes`, for each architecture.

        The results raise RuntimeError if the kernel does not compile, or needs too much shared
        memory.
        """
        arguments = arguments_of(launch, dtype)
        return [
            [self._cubin(launch, arguments, aligned, each) for each in self._architectures]
            for aligned in _aligned(arguments)
        ]

    def _cubin(
        self,
        launch: Launch,
        arguments: Mapping[str, Argument],
        aligned: set[str],
        architecture: int,
    ) -> Future[Cubin]:
        constants = {
            name: getattr(value, "value", value)  # of a tl.constexpr
            for name, value in launch.arguments.items()
            if name not in arguments
        }
        types = {name: each.type for name, each in arguments.items()}
        keys = launch.cache_keys
        key = repr((keys, constants, types, sorted(aligned), launch.options, architecture))
        if key not in self._requests:
            self._requests[key] = self._pool.submit(
                self._compile, launch, constants, types, aligned, architecture
            )
        return self._requests[key]

    def _compile(
        self,
        launch: Launch,
        constants: Mapping[str, Any],
        types: Mapping[str, str],
        aligned: set[str],
        architecture: int,
    ) -> Cubin:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        kernel = launch.kernel
        names = kernel.arg_names
        source = ASTSource(
            kernel,
            {name: types.get(name, "constexpr") for name in names},
            {(names.index(name),): value for name, value in constants.items()},
            {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
        )
        what = f"{self._op}: the kernel {kernel.__name__}"
        try:
            done = _compiled(source, GPUTarget("cuda", architecture, 32), dict(launch.options))
        except Exception as error:  # Triton's own, of many kinds
            raise RuntimeError(f"{what} does not compile: {error}") from error
        made = done.metadata
        max_shared = _SHARED_BYTES.get(architecture)
        if max_shared is not None and made.shared > max_shared:
            chosen = ", ".join(f"{name} = {value}" for name, value in constants.items())
            raise RuntimeError(
                f"{what} needs {made.shared} bytes of shared memory, but compute capability "
                f"{architecture / 10} has {max_shared}" + (f" ({chosen})" if chosen else "")
            )
        return Cubin(
            architecture,
            made.name,
            32 * made.num_warps,
            made.shared,
            made.global_scratch_size,
            max(made.global_scratch_align, 1),
            done.asm["cubin"],
        )


def _compiled(source: Any, target: Any, options: dict[str, Any]) -> Any:
    """What `triton.compile` returns. CPython may count the depth of ast.parse for all threads
    together, so that two at once raise SystemError (gh-106905): it is tried again."""
    import triton

    for _ in range(_TRIES - 1):
        with contextlib.suppress(SystemError):
            return triton.compile(source, target=target, options=options)
    return triton.compile(source, target=target, options=options)
