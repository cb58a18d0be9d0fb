"""Libraries of ops that are defined in Python."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import hashlib
import os
import runpy
import shutil
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, overload

from cudarelu import _C

from .. import _build
from .._modules import OpModule, load_library
from .._table import FLOATING, OpInfo

if TYPE_CHECKING:
    from .ops import Draft


class Sources(Protocol):
    """Ops that are declared in one header."""

    @property
    def ops(self) -> list[OpInfo]:
        """The ops; the header has the name of the first one."""

    def header(self, namespace: str) -> str:
        """The header."""

    def identity(self) -> str:
        """A text that changes with the sources, but for what the header says."""

    def files(self, namespace: str, architectures: Sequence[str]) -> dict[str, str]:
        """All sources by name, for these architectures of CUDA."""


_CURRENT: contextvars.ContextVar[Library | None] = contextvars.ContextVar("library", default=None)


class Library:
    """Ops with a namespace, which are compiled together, as one op module.

    ::

        with cudarelu.Library("my") as library:
            swish = cudarelu.define("swish(x: T[*]) -> y: T[*]", "s = Sigmoid(x)   y = Mul(x, s)")
            library.add_sources("top_k.h", "top_k.cpp", "top_k.cu")

        swish(x)                          # the first call builds and loads the module
        library.build("libmy_ops.so")     # the module as a file, to be served

    Args:
        name: the namespace of the ops, in PyTorch and in ONNX.

    Raises:
        ValueError: if no module can have the name.
    """

    def __init__(self, name: str) -> None:
        _C.check_new_name(name)
        self._name: str | None = name
        self._start()

    def _start(self) -> None:
        self._sources: list[Sources] = []
        self._files: list[Path] = []
        self._module: OpModule | None = None
        self._lock = threading.Lock()
        self._tokens: list[contextvars.Token[Library | None]] = []

    @classmethod
    def of(cls, drafts: Sequence[Draft] = ()) -> Library:
        """A library named after its first op and a digest of the source."""
        from .ops import Functors

        library = cls.__new__(cls)
        library._name = None
        library._start()
        count = 4  # of headers: fewer read less, more compile in parallel
        library._sources = [Functors(group) for i in range(count) if (group := drafts[i::count])]
        return library

    def __enter__(self) -> Library:
        self._tokens.append(_CURRENT.set(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _CURRENT.reset(self._tokens.pop())

    @property
    def name(self) -> str:
        """The namespace of the ops."""
        if self._name is None:
            first = self._sources[0].ops[0].name
            text = "".join(each.header("namespace") + each.identity() for each in self._sources)
            self._name = f"{first}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        return self._name

    @property
    def namespace(self) -> str:
        """The name while ops are added: a library without a name is named after its ops."""
        return self._name or "cudarelu_defined"

    def headers(self) -> dict[str, str]:
        """The C++ headers of the ops that are defined in Python, by the names of the ops."""
        return {each.ops[0].name: each.header(self.name) for each in self._sources}

    def add_sources(self, *paths: str | os.PathLike[str]) -> None:
        """Adds headers with declarations of ops, and .cpp and .cu files with their kernels.

        Raises:
            FileNotFoundError: if a file is missing.
            RuntimeError: if the library has been loaded.
        """
        self._check_open()
        for path in map(Path, paths):
            if not path.is_file():
                raise FileNotFoundError(f"{self.name}: there is no source {path}")
            self._files.append(path.resolve())

    def load(self, *, cuda: bool | None = None, verbose: bool = False) -> OpModule:
        """Builds the module, unless the cache has it, and loads it; see `cudarelu.load`."""
        with self._lock:
            if self._module is None:
                self._module = load_library(self._built(cuda, verbose, None))
            return self._module

    def build(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        architectures: Sequence[str] | None = None,
        cuda: bool | None = None,
        verbose: bool = False,
    ) -> Path:
        """Builds the module as a file, which is served without Python; returns its path.

        Args:
            path: the library, such as "libmy_ops.so"; by default it stays in the cache.
            architectures: compute capabilities such as "8.0"; by default those of `cudarelu.load`.
            cuda: whether to build for CUDA; by default if there is an nvcc.
            verbose: whether to print the commands to stderr.

        Raises:
            RuntimeError: if a source does not compile.
            OSError: if the file or the cache cannot be written.
        """
        if path is not None and not Path(path).parent.is_dir():
            raise FileNotFoundError(f"there is no folder {Path(path).parent}")
        library = self._built(cuda, verbose, architectures)
        if path is None:
            return library
        path = Path(path)
        # Replaced at once: a process that has loaded the old file keeps it.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as scratch:
            os.replace(shutil.copy(library, scratch), path)
        return path

    def save(
        self, folder: str | os.PathLike[str], *, architectures: Sequence[str] | None = None
    ) -> list[Path]:
        """Writes the sources as a project, to go on in C++, as `python -m cudarelu new` does.

        Args:
            folder: must not exist; the library and the Python package have its name.
            architectures: of the kernels in Triton, which are saved as machine code; as in `build`.

        Returns:
            The files, relative to the folder.

        Raises:
            ValueError: if no module can have the folder's name, and for two sources with one name.
            FileExistsError: if the folder exists.
        """
        from .._scaffold import create

        chosen = _build.chosen_architectures(self.name, architectures)
        sources: dict[str, str] = {}
        for each in self._sources:
            sources |= each.files(self.name, chosen)
        for file in self._files:
            if file.name in sources:
                raise ValueError(
                    f"the library {self.name} has two sources with the name {file.name}"
                )
            sources[file.name] = file.read_text(encoding="utf-8")
        return create(Path(folder), self.name, sources)

    def _built(self, cuda: bool | None, verbose: bool, architectures: Sequence[str] | None) -> Path:
        if not self._sources and not self._files:
            raise ValueError(f"the library {self._name} has no ops")
        chosen = _build.chosen_architectures(self.name, architectures, cuda)
        files: list[Path] = []
        for each in self._sources:
            name = each.ops[0].name
            identity = repr((each.header(self.name), each.identity(), chosen, _generator()))
            write = functools.partial(each.files, self.name, chosen)
            files += _build.kept_sources(name, identity, write)
        files += self._files
        return _build.build(
            self.name, files, cuda=cuda, verbose=verbose, architectures=architectures
        )

    def _check_open(self) -> None:
        if self._module is not None:
            raise RuntimeError(f"the library {self.name} is loaded: it takes no more ops")

    @staticmethod
    def current() -> Library:
        """The library of the with statement around, or a new one without a name."""
        return _CURRENT.get() or Library.of()

    def add(self, sources: Sources) -> None:
        """Adds ops; `cudarelu.define` and `cudarelu.triton_op` call it.

        Raises:
            RuntimeError: if the library has been loaded.
            ValueError: if it has an op of the same name.
        """
        self._check_open()
        known = {op.onnx.op_type: op.name for each in self._sources for op in each.ops}
        for op in sources.ops:
            if (other := known.get(op.onnx.op_type)) == op.name:
                raise ValueError(f"the library {self._name} has an op {op.name} already")
            if other is not None:
                raise ValueError(
                    f"the library {self._name} has an op {other}, which is {op.onnx.op_type} in "
                    f"ONNX, as {op.name} is"
                )
            known[op.onnx.op_type] = op.name
        self._sources.append(sources)

    def __repr__(self) -> str:
        return f"<library {self.name}: {', '.join(each.ops[0].name for each in self._sources)}>"


@functools.cache
def _generator() -> str:
    """Changes with the code that generates sources."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _with_line(path: str, error: Exception) -> str:
    """The message of an exception of a Python file, after its last line in this file."""
    lines = [
        each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == path
    ]
    line, message = lines[-1] if lines else None, str(error)
    if isinstance(error, SyntaxError) and error.filename == path:  # not of a module that it imports
        line, message = error.lineno, error.msg
    if message.startswith(f"{path}:"):
        return message
    position = path if line is None else f"{path}:{line}"
    return f"{position}: {type(error).__name__}: {message}".removesuffix(": ")


def library_of(path: str | os.PathLike[str]) -> Library:
    """Runs a Python file and returns the library that is one of its global names.

    Raises:
        ValueError: if there is none, if there are several, for a folder or a file of C++, and for
            an exception of the file, with its line.
        OSError: if the file cannot be read.
    """
    if Path(path).is_dir() or Path(path).suffix in (".h", ".cpp", ".cu", ".cuh"):
        raise ValueError(
            f"{path} is not a Python file: ops in C++ are built by cmake, as in the folder that "
            "`python -m cudarelu new NAME` creates"
        )
    Path(path).read_bytes()
    sys.path.insert(0, str(Path(path).resolve().parent))  # as Python does for a program
    try:
        values = runpy.run_path(os.fspath(path)).values()
    except Exception as error:
        raise ValueError(_with_line(os.fspath(path), error)) from error
    finally:
        del sys.path[0]
    found = {id(each): each for each in values if isinstance(each, Library)}
    if len(found) != 1:
        names = ", ".join(each.name for each in found.values()) or "none"
        raise ValueError(f"{path} must have one cudarelu.Library: it has {names}")
    return next(iter(found.values()))


class DefinedOp:
    """An op that is defined in Python: a function like those of `cudarelu`.

    The first call builds the module of the op and loads it. Pickles hold the path of the module.

    Attributes:
        library: the library of the op.
        signature: its signature.
        definition: what it computes, in ONNX.
    """

    def __init__(self, library: Library, op: OpInfo, definition: Callable[..., Any] | None) -> None:
        self.library = library
        self.signature = op.signature
        self.definition = op.definition
        self.__name__ = op.name
        self.__doc__ = op.summary
        self.__wrapped__ = definition
        self.__signature__ = op.call_signature
        self._function: Any = None

    def __call__(self, *inputs: Any, **attributes: Any) -> Any:
        self._load()
        return self._function(*inputs, **attributes)

    def function(self) -> Callable[..., Any]:
        """The function itself, an attribute of the loaded module."""
        self._load()
        return self._function

    def _load(self) -> None:
        if self._function is None:
            self._function = getattr(self.library.load(), self.__name__)

    # Dynamo runs it while it traces, and does not look into it.
    _load._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def __copy__(self) -> DefinedOp:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> DefinedOp:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.library.load(), self.__name__)

    def __repr__(self) -> str:
        return f"<op {self.signature}>"


@overload
def define(
    signature: str,
    definition: str,
    *,
    functor: str | None = None,
    gradient: str | None = None,
    orders: int = 1,
    dtypes: Sequence[str] = FLOATING,
    summary: str | None = None,
) -> DefinedOp: ...


@overload
def define(
    signature: str,
    definition: None = None,
    *,
    functor: str | None = None,
    gradient: str | None = None,
    orders: int = 1,
    dtypes: Sequence[str] = FLOATING,
    summary: str | None = None,
) -> Callable[[Callable[..., Any]], DefinedOp]: ...


def define(
    signature: str,
    definition: str | None = None,
    *,
    functor: str | None = None,
    gradient: str | None = None,
    orders: int = 1,
    dtypes: Sequence[str] = FLOATING,
    summary: str | None = None,
) -> DefinedOp | Callable[[Callable[..., Any]], DefinedOp]:
    """Defines an elementwise op; its kernels and its gradient follow from the definition.

    By the operators of ONNX, whose constants take the dtype of the op::

        swish = cudarelu.define(
            "swish(x: T[*], *, beta: float = 1.0) -> y: T[*]",
            \"\"\"b = Constant<value_float: float = @beta>()
               scaled = Mul(x, b)
               s = Sigmoid(scaled)
               y = Mul(x, s)\"\"\",
        )
        swish(x, beta=2.0)

    By a Python function, whose parameters are the inputs and attributes, with the functions of
    `cudarelu.elementwise`::

        @cudarelu.define("swish(x: T[*], *, beta: float = 1.0) -> y: T[*]")
        def swish(x, beta):
            return x * sigmoid(beta * x)

    The op belongs to the `Library` of the with statement around, or else to one of its own. It is
    compiled when it is first called.

    Args:
        signature: as in C++. Inputs have the shape of the output, or are a row: T[c] for T[*, c],
            or T[r, c] for T[*, r, c]. All rows have the same dimensions.
        definition: the body of an ONNX function, of elementwise operators.
        functor: the body of the kernel in C++, in place of the one that follows from the
            definition: "return x / (1 + onnx::exp(-beta * x));".
        gradient: a formula such as "x = cudarelu::mul(grad_y, y)", in place of the one that
            follows from the definition; an empty text for an op without a gradient.
        orders: how many derivatives the op has; each is one or more ops to compile.
        dtypes: of "float32", "float64", "float16" and "bfloat16".
        summary: one line for readers; by default the first line of the function's docstring.

    Raises:
        ValueError: for a signature or a definition of an op that is not elementwise.
        TypeError: if the Python function branches on a value, or takes other parameters.
    """
    if not isinstance(signature, str):
        raise TypeError('define takes a signature: @cudarelu.define("f(x: T[*]) -> y: T[*]")')

    def defined(meaning: str | Callable[..., Any]) -> DefinedOp:
        from .ops import Functors, declared, defined, summary_of, with_gradients
        from .reading import read_function, read_text

        if not isinstance(orders, int) or orders < 0:
            raise ValueError(f"orders must be 0, 1, 2 or more, not {orders!r}")
        if functor is not None and "return" not in functor:
            raise ValueError("functor must be the body of a C++ function, with a return")
        library = Library.current()
        text = summary if summary is not None else summary_of(meaning)
        op = declared(library.namespace, signature, dtypes, text)
        if isinstance(meaning, str):
            y = read_text(dataclasses.replace(op, definition=meaning))
        else:
            y = read_function(op, meaning)
        draft = defined(op, y, functor)
        if gradient is not None:
            drafts = [
                dataclasses.replace(draft, op=dataclasses.replace(draft.op, gradient=gradient))
            ]
        else:
            drafts = with_gradients(draft, orders)
        library.add(Functors(drafts))
        return DefinedOp(library, drafts[0].op, None if isinstance(meaning, str) else meaning)

    return defined if definition is None else defined(definition)
