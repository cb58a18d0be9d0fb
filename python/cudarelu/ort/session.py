"""A session of ONNX Runtime on arrays, whose outputs are of the same library as the inputs.

Arrays are read as PyTorch tensors, through DLPack, and bound by their address. On CUDA, a session
has one stream. It waits for the caller's stream, and the caller's stream waits for it; the host
waits for neither. ONNX Runtime sets the stream when it creates a session, and does not accept
PyTorch's default stream; a session for each stream would duplicate the weights. Outputs are in
PyTorch's memory, which belongs to the caller's stream. ONNX Runtime's own memory would be reused by
the next run as soon as the host releases it.
"""

from __future__ import annotations

import os
import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.dlpack import DLDeviceType

from cudarelu import _arrays
from cudarelu._modules import load_library, modules
from cudarelu.doctor import cuda_provider
from cudarelu.ort.library import register

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    import onnx
    import onnxruntime
    from onnxruntime import SessionOptions

    Options: TypeAlias = SessionOptions | Callable[[], SessionOptions] | None

Tensors = dict[str, torch.Tensor]
Shape = tuple[int, ...]

# For each type of ONNX Runtime: PyTorch's dtype, and the element type for a binding.
_DTYPES: dict[str, tuple[torch.dtype, Any]] = {
    "tensor(float)": (torch.float32, np.float32),
    "tensor(double)": (torch.float64, np.float64),
    "tensor(float16)": (torch.float16, np.float16),
    "tensor(bfloat16)": (torch.bfloat16, 16),  # TensorProto.BFLOAT16
    "tensor(int8)": (torch.int8, np.int8),
    "tensor(int16)": (torch.int16, np.int16),
    "tensor(int32)": (torch.int32, np.int32),
    "tensor(int64)": (torch.int64, np.int64),
    "tensor(uint8)": (torch.uint8, np.uint8),
    "tensor(uint16)": (torch.uint16, np.uint16),
    "tensor(uint32)": (torch.uint32, np.uint32),
    "tensor(uint64)": (torch.uint64, np.uint64),
    "tensor(bool)": (torch.bool, np.bool_),
}
_OLDEST = (1, 24)  # the first that reports the provider of each node and supports DLPack
_VECTOR = 16  # bytes that a CUDA kernel loads at once


@dataclass
class _Graph:
    """A captured CUDA graph, and the tensors that it reads and writes."""

    binding: onnxruntime.IOBinding
    options: onnxruntime.RunOptions
    inputs: Tensors
    outputs: Tensors


class Session:
    """Runs a model on arrays of PyTorch, NumPy, CuPy, JAX or another library with DLPack.

    ``session(a, b)`` passes the model's inputs in order, ``session(a, other=b)`` passes some by
    name. A call returns the output, or a tuple of several outputs, as new arrays of the library of
    the inputs. Inputs must have the shapes of the model; a symbolic dimension accepts any size. A
    Session needs ONNX Runtime 1.24 or later.

    On CUDA, work is ordered by the caller's current stream, of PyTorch or CuPy. The host waits for
    the device only if NumPy arrays are copied to it and back, or if nodes run on the CPU. On the
    device, an input is copied if it is not contiguous or not aligned to 16 bytes. An output is
    copied if the model does not contain its shape. Threads may share a session: on CUDA, their
    calls run one after another on one stream.

    A session can be pickled and copied, so it can be sent to other processes: each opens a session
    of its own, from the same path or bytes, and loads the libraries of the model's ops.

    Attributes: ``provider`` is "cpu" or "cuda"; ``why_cpu`` is the reason if "auto" chose the CPU,
    else None; ``inference_session`` is ONNX Runtime's own session.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | bytes | onnx.ModelProto,
        provider: str = "auto",
        cuda_graph: bool = False,
        *,
        device: int = 0,
        session_options: Options = None,
    ) -> None:
        """Loads a model from a file, from bytes or from an `onnx.ModelProto`.

        ``provider`` is "cpu", "cuda" or "auto". "auto" is "cuda" if ONNX Runtime's CUDA provider
        loads and there is a device, else "cpu", with a warning if there is a device. ``device`` is
        the number of the CUDA device. Nodes that the CUDA provider does not support run on the CPU,
        unless "session.disable_cpu_ep_fallback" is "1" in ``session_options``. The session
        registers the ops with these options. They are options of ONNX Runtime or, for a session
        that is to be pickled, a function that makes them, since options cannot be pickled.

        ``cuda_graph=True`` requires CUDA. The first call with inputs of new shapes captures a
        graph, and the session keeps it. No other thread may use the device during the capture.
        Later calls copy the inputs to the graph's memory, replay the graph and copy the outputs
        from it. In ONNX Runtime, the host waits for a replay.

        Raises RuntimeError if CUDA is required but not available, with the name of the missing
        library and the package that contains it, and if ONNX Runtime is too old; ValueError for a
        provider or a device that does not exist; TypeError for an input or output that is not a
        tensor; and ONNX Runtime's own errors.
        """
        if provider not in ("auto", "cpu", "cuda"):
            raise ValueError(f"provider must be 'auto', 'cpu' or 'cuda', not {provider!r}")
        if cuda_graph and provider == "cpu":
            raise ValueError("cuda_graph=True needs provider='cuda'")
        if not isinstance(path, str | os.PathLike | bytes) and hasattr(path, "SerializeToString"):
            path = path.SerializeToString()
        self._name = "the model" if isinstance(path, bytes) else os.path.basename(path)
        model = path if isinstance(path, bytes) else os.path.abspath(path)
        self._arguments = (model, provider, cuda_graph, device, session_options)
        self._cuda_graph = cuda_graph
        self._lock = threading.Lock()
        self._graphs: dict[tuple[Shape, ...], _Graph] = {}

        self.why_cpu = cuda_provider.missing() if provider != "cpu" else None
        if self.why_cpu is None and provider != "cpu":
            self._load_on_cuda(path, device, session_options)
        if self.why_cpu is not None:
            if provider == "cuda" or cuda_graph:
                raise RuntimeError(f"{self._name} cannot run on CUDA: {self.why_cpu}")
            if torch.cuda.is_available():
                warnings.warn(f"{self._name} runs on the CPU: {self.why_cpu}", stacklevel=2)
        if provider == "cpu" or self.why_cpu is not None:
            self.provider = "cpu"
            self._device = torch.device("cpu")
            self._stream: Any = None  # torch.cuda.stream(None) does nothing
            self.inference_session = _load(path, session_options, "CPUExecutionProvider", {})

        self._inputs = self.inference_session.get_inputs()
        self._outputs = self.inference_session.get_outputs()
        for each in (*self._inputs, *self._outputs):
            if each.type not in _DTYPES:
                raise TypeError(f"{self._name}: {each.name} has unsupported type {each.type}")

    def __reduce__(self) -> tuple[Any, ...]:
        *_, session_options = self._arguments
        if session_options is not None and not callable(session_options):
            raise TypeError(
                f"the session of {self._name} cannot be pickled, since its session_options cannot: "
                "pass a function that makes them"
            )
        nodes = self.inference_session.get_provider_graph_assignment_info()
        domains = {node.domain for each in nodes for node in each.get_nodes()}
        libraries = [
            module.path
            for module in modules()
            if any(domains & {op.onnx.domain, *(op.onnx.alias or ())[:1]} for op in module.ops())
        ]
        return _open, (libraries, *self._arguments)

    def _load_on_cuda(
        self, path: str | os.PathLike[str] | bytes, device: int, session_options: Options
    ) -> None:
        count = torch.cuda.device_count()
        if not 0 <= device < count:
            raise ValueError(f"there is no CUDA device {device}: PyTorch sees {count}")
        self.provider = "cuda"
        self._device = torch.device("cuda", device)
        self._stream = torch.cuda.Stream(self._device)
        options = {
            "device_id": str(device),
            "user_compute_stream": str(self._stream.cuda_stream),
            "enable_cuda_graph": str(int(self._cuda_graph)),
            "use_tf32": "0",  # full float32 precision, as in PyTorch
        }
        with torch.cuda.device(self._device):  # ONNX Runtime changes the current device
            self.inference_session = _load(path, session_options, "CUDAExecutionProvider", options)
        if "CUDAExecutionProvider" not in self.inference_session.get_providers():
            self.why_cpu = "ONNX Runtime could not create its CUDA provider; see its log"
        self._stays_on_cuda = _stays_on_cuda(self.inference_session)

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Runs the model on arrays of one library.

        Raises TypeError for an unsupported kind of array, a wrong dtype, and a wrong number or name
        of inputs; ValueError for a wrong device, rank or size, and for a tensor that requires a
        gradient, which a session does not compute; RuntimeError for an error in an op.
        """
        given = self._by_name(arrays, named)
        library = _arrays.common_library(self._name, given) if given else np
        example = next(iter(given.values()), None)
        kind = DLDeviceType.kDLCUDA if self.provider == "cuda" else DLDeviceType.kDLCPU
        with _arrays.stream_of(library, (kind, self._device.index)) as may_reuse_inputs:
            tensors = {each.name: self._tensor(each, given[each.name]) for each in self._inputs}
            cuda = self.provider == "cuda"
            results = self._run_on_stream(tensors) if cuda else self._run(tensors)
            if may_reuse_inputs:
                _arrays.release_when_read(list(tensors.values()))
            if library is np:
                results = [y.cpu() for y in results]
            results = [_arrays.array_of(library, y, example) for y in results]
        return results[0] if len(results) == 1 else tuple(results)

    def _by_name(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        names = [each.name for each in self._inputs]
        takes = f"{self._name} takes {', '.join(names) or 'no inputs'}"
        if len(arrays) > len(names):
            raise TypeError(f"{takes}; {len(arrays)} are given")
        given = dict(zip(names, arrays, strict=False))
        for name, array in named.items():
            if name not in names:
                raise TypeError(f"{takes}; there is no {name}")
            if name in given:
                raise TypeError(f"{takes}; {name} is given twice")
            given[name] = array
        for name in names:
            if name not in given:
                raise TypeError(f"{takes}; {name} is missing")
        return given

    def _tensor(self, info: onnxruntime.NodeArg, x: Any) -> torch.Tensor:
        """Checks an input against the model, and returns it as a contiguous tensor on the session's
        device."""
        where = f"{self._name}: {info.name}"
        if isinstance(x, torch.Tensor):
            if not _is_plain(x):
                raise TypeError(
                    f"{where} must be a plain dense tensor with its own memory, not a "
                    f"{type(x).__name__} of layout {x.layout}"
                )
            if x.requires_grad and torch.is_grad_enabled():
                raise ValueError(
                    f"{where} requires a gradient, which a session does not compute: call detach()"
                )
        tensor = _arrays.tensor_of(self._name, info.name, x)
        if isinstance(x, np.ndarray):
            tensor = tensor.to(self._device)
        if tensor.device != self._device:
            raise ValueError(f"{where} is on {tensor.device}, but the session on {self._device}")
        dtype, _ = _DTYPES[info.type]
        if tensor.dtype != dtype:
            name, wanted = (str(each).removeprefix("torch.") for each in (tensor.dtype, dtype))
            raise TypeError(f"{where} is {name}; the model takes {wanted}")
        shape = tuple(tensor.shape)
        # An empty list means a scalar or an unknown shape.
        if info.shape and not _fits(shape, info.shape):
            dims = ", ".join("?" if dim is None else str(dim) for dim in info.shape)
            raise ValueError(f"{where} has shape {list(shape)}; the model takes [{dims}]")
        tensor = tensor.resolve_neg().contiguous()
        if self.provider == "cuda" and tensor.data_ptr() % _VECTOR:
            return tensor.clone()
        return tensor

    def _run_on_stream(self, tensors: Tensors) -> list[torch.Tensor]:
        """Runs the model on the session's stream; the current stream may read the outputs."""
        caller = torch.cuda.current_stream()
        with self._lock:
            if not self._stays_on_cuda:
                caller.synchronize()  # a binding copies to the CPU on another stream
            try:
                if self._cuda_graph and all(x.numel() for x in tensors.values()):
                    return self._replay(tensors)
                return self._run(tensors)
            finally:
                caller.wait_stream(self._stream)  # after an error too: kernels may be running

    def _wait_for_caller(self) -> None:
        if self.provider == "cuda":
            self._stream.wait_stream(torch.cuda.current_stream())

    def _run_options(self, graph: int = -1) -> onnxruntime.RunOptions:
        """Options that capture or replay the graph of this number; -1 means no graph."""
        import onnxruntime

        options = onnxruntime.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(graph))
        if self.provider == "cuda" and self._stays_on_cuda:
            options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        return options

    def _run(self, tensors: Tensors) -> list[torch.Tensor]:
        sizes = self._sizes(tensors)
        outputs: dict[str, Any] = {}
        for info in self._outputs:
            shape = _known_shape(info.shape, sizes)
            if shape is not None:
                dtype, _ = _DTYPES[info.type]
                outputs[info.name] = torch.empty(shape, dtype=dtype, device=self._device)
        binding = self._bind(tensors, outputs)
        self._wait_for_caller()  # after the allocation: it may still use the outputs' memory
        self.inference_session.run_with_iobinding(binding, self._run_options())
        results: list[Any] = []
        for info, value in zip(self._outputs, binding.get_outputs(), strict=True):
            y = outputs.get(info.name)
            # ONNX Runtime ignores the binding of an output that is an input or a weight.
            here = y is not None and value.data_ptr() == y.data_ptr()
            results.append(y if here else self._copied(info, value))
        return results

    def _sizes(self, tensors: Tensors) -> dict[str, int | None]:
        """The sizes of the symbolic dimensions of the inputs; None if a symbol has several."""
        sizes: dict[str, int | None] = {}
        for info in self._inputs:
            for dim, size in zip(info.shape, tensors[info.name].shape, strict=False):
                if isinstance(dim, str):
                    sizes[dim] = size if sizes.get(dim, size) == size else None
        return sizes

    def _bind(self, inputs: Tensors, outputs: Tensors) -> onnxruntime.IOBinding:
        """A binding to these tensors; ONNX Runtime allocates outputs that are not among them."""
        binding = self.inference_session.io_binding()
        device = (self._device.type, self._device.index or 0)
        for info in self._inputs:
            x = inputs[info.name]
            _, element = _DTYPES[info.type]
            binding.bind_input(info.name, *device, element, tuple(x.shape), x.data_ptr())
        for info in self._outputs:
            y = outputs.get(info.name)
            if y is None or not y.numel():  # ONNX Runtime rejects a null address
                binding.bind_output(info.name, *device)
            else:
                _, element = _DTYPES[info.type]
                binding.bind_output(info.name, *device, element, tuple(y.shape), y.data_ptr())
        return binding

    def _copied(self, info: onnxruntime.NodeArg, value: onnxruntime.OrtValue) -> torch.Tensor:
        """A copy of an output in PyTorch's memory, which the caller may keep."""
        dtype, _ = _DTYPES[info.type]
        y = torch.empty(value.shape(), dtype=dtype, device=self._device)
        # OrtValue itself supports DLPack only since 1.25. DLPack passes bool as uint8.
        return self._copy(y, torch.from_dlpack(value._ortvalue.to_dlpack()).view(dtype))

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        self._wait_for_caller()
        with torch.cuda.stream(self._stream):
            return target.copy_(source)

    def _replay(self, tensors: Tensors) -> list[torch.Tensor]:
        shapes = tuple(tuple(x.shape) for x in tensors.values())
        if shapes not in self._graphs:
            self._graphs[shapes] = self._graph(tensors)
        graph = self._graphs[shapes]
        for name, x in tensors.items():
            self._copy(graph.inputs[name], x)
        self.inference_session.run_with_iobinding(graph.binding, graph.options)
        values = graph.binding.get_outputs()
        return [self._copied(*each) for each in zip(self._outputs, values, strict=True)]

    def _graph(self, tensors: Tensors) -> _Graph:
        """Prepares a graph, which the first run of its binding captures."""
        results = self._run(tensors)  # without a graph, for the shapes of the outputs
        with torch.cuda.stream(self._stream):
            inputs = {name: torch.empty_like(x) for name, x in tensors.items()}
            outputs = {
                info.name: torch.empty_like(y)
                for info, y in zip(self._outputs, results, strict=True)
            }
        _arrays.finish_releases()  # no thread may query an event during a capture
        options = self._run_options(len(self._graphs))
        return _Graph(self._bind(inputs, outputs), options, inputs, outputs)


def _open(libraries: list[str], *arguments: Any) -> Session:
    """A copy of a session that was pickled."""
    loaded = {module.path for module in modules()}
    for path in libraries:
        if path not in loaded:
            load_library(path)
    model, provider, cuda_graph, device, session_options = arguments
    return Session(model, provider, cuda_graph, device=device, session_options=session_options)


def _load(
    path: str | os.PathLike[str] | bytes,
    session_options: Options,
    provider: str,
    provider_options: dict[str, str],
) -> onnxruntime.InferenceSession:
    import onnxruntime

    version = onnxruntime.__version__
    if tuple(map(int, version.split(".")[:2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise RuntimeError(f"a Session needs ONNX Runtime {oldest} or later; this is {version}")
    made = session_options() if callable(session_options) else session_options
    options = register(made or onnxruntime.SessionOptions())
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return onnxruntime.InferenceSession(
        path, options, providers=[(provider, provider_options)], enable_fallback=0
    )


def _stays_on_cuda(session: onnxruntime.InferenceSession) -> bool:
    """Whether all nodes, inputs and outputs are on the device.

    If not, the host has to wait: memory that ONNX Runtime copies from the CPU must not change
    before the copy, and the next run would overwrite it.
    """
    nodes = session.get_provider_graph_assignment_info()
    memories = [*session.get_input_memory_infos(), *session.get_output_memory_infos()]
    return all(each.ep_name == "CUDAExecutionProvider" for each in nodes) and not any(
        memory.name in ("Cpu", "CudaPinned") for memory in memories
    )


def _is_plain(x: torch.Tensor) -> bool:
    """Whether the elements are at the tensor's address, unlike a DTensor's or under torch.func."""
    return (
        x.layout == torch.strided
        and type(x).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def _fits(shape: Shape, declared: list[int | str | None]) -> bool:
    return len(shape) == len(declared) and all(
        not isinstance(dim, int) or dim == size for dim, size in zip(declared, shape, strict=True)
    )


def _known_shape(
    declared: list[int | str | None], sizes: dict[str, int | None]
) -> tuple[int, ...] | None:
    """The shape of an output; None if it is unknown. An empty list means a scalar or unknown."""
    shape: list[Any] = [sizes.get(dim) if isinstance(dim, str) else dim for dim in declared]
    if not shape or any(size is None for size in shape):
        return None
    return tuple(shape)
