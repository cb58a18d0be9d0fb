"""Small models with our ops, as bytes, and options for sessions that run them."""

from __future__ import annotations

import onnxruntime as ort
from onnx import TensorProto, helper

import cudarelu.ort

from .ort_infer import BUILD, tensor


def node(op_type: str, inputs: list[str], outputs: list[str], domain="cudarelu", **attributes):
    return helper.make_node(op_type, inputs, outputs, domain=domain, **attributes)


def make_model(nodes, inputs, outputs, functions=(), value_info=()) -> bytes:
    domains = {"": 18, "cudarelu": 1, "custom": 1, "custom_domain": 1, "probe": 1}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, value_info=value_info)
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=functions)
    return model.SerializeToString()


def one_node(op_type: str, x_shape=("N", 4), dtype=TensorProto.FLOAT, **attributes) -> bytes:
    nodes = [node(op_type, ["x"], ["y"], **attributes)]
    return make_model(nodes, [tensor("x", x_shape, dtype)], [tensor("y", None, dtype)])


def make_options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # tests check the errors that are raised
    return cudarelu.ort.register(options)


OTHER = str(BUILD / "libcudarelu_ort_other.so")  # its custom_domain::CustomRelu is -x


def both_libraries() -> bytes:
    """A model with one of our ops and one of the other library's."""
    nodes = [node("Relu", ["x"], ["y"]), node("CustomRelu", ["x"], ["z"], "custom_domain")]
    return make_model(nodes, [tensor("x", ["N", 4])], [tensor("y", None), tensor("z", None)])
