"""A case in ONNX Runtime with bound buffers: our node, or the op's definition in its own nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import onnx
import onnx.helper
import onnxruntime
import torch

from .._onnx.definitions import IR_VERSION
from .._table import Parameter
from ..onnx.models import lower
from ..ort.library import PROVIDERS, register
from ..testing.cases import DTYPES
from ..testing.hosts import onnx_type
from .cases import Case, Inputs


def _element_type(dtype: torch.dtype) -> int:
    return onnx_type(DTYPES[str(dtype).removeprefix("torch.")])


def _model(case: Case) -> onnx.ModelProto:
    op = case.op

    def tensors(parameters: Iterable[Parameter]) -> list[onnx.ValueInfoProto]:
        return [
            onnx.helper.make_tensor_value_info(
                each.name, _element_type(case.torch_dtype(each)), case.shape(each)
            )
            for each in parameters
        ]

    attributes: dict[str, Any] = op.onnx_attributes(case.attributes)
    names = [each.name if case.has(each) else "" for each in op.inputs]
    outputs = [each.name for each in op.outputs]
    node = onnx.helper.make_node(
        op.onnx.op_type, names, outputs, domain=op.onnx.domain, **attributes
    )
    graph = onnx.helper.make_graph([node], op.name, tensors(case.given), tensors(op.outputs))
    opsets = [
        onnx.helper.make_opsetid("", op.definition_opset),
        onnx.helper.make_opsetid(op.onnx.domain, op.onnx.version),
    ]
    return onnx.helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)


def _run_options() -> onnxruntime.RunOptions:
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    # -1 is the default, no graph; ONNX Runtime's Python takes 30 us to look for an absent entry.
    options.add_run_config_entry("gpu_graph_id", "-1")
    return options


def prepare(case: Case, ours: bool) -> Callable[[Inputs], Callable[[], list[torch.Tensor]]]:
    """Creates a session on the case's device. Its calls return without waiting for the GPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = case.threads
    options.log_severity_level = 3
    # Otherwise the threads of one session spin while the threads of the other work.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    model = _model(case)
    if ours:
        register(options)
        # Otherwise a library that was built without CUDA would be timed on the CPU.
        if case.device == "cuda":
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    else:
        model = lower(model)
    provider = PROVIDERS[case.device]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[provider])
    if session.get_providers()[0] != provider:  # ONNX Runtime only warns
        raise RuntimeError(f"ONNX Runtime could not load its {provider}")
    run_options = _run_options() if case.device == "cuda" else None

    def bind(inputs: Inputs) -> Callable[[], list[torch.Tensor]]:
        given = [each for each in inputs if each is not None]
        outputs = [
            torch.empty(case.shape(each), dtype=case.torch_dtype(each), device=case.device)
            for each in case.op.outputs
        ]
        binding = session.io_binding()
        for add, parameters, bound in (
            (binding.bind_input, case.given, given),
            (binding.bind_output, case.op.outputs, outputs),
        ):
            for parameter, tensor in zip(parameters, bound, strict=True):
                element_type = _element_type(tensor.dtype)
                add(parameter.name, case.device, 0, element_type, tensor.shape, tensor.data_ptr())

        def call() -> list[torch.Tensor]:
            session.run_with_iobinding(binding, run_options)
            return outputs

        # The binding holds addresses, so the tensors must live as long as the call.
        call.inputs = given  # type: ignore[attr-defined]
        return call

    return bind
