"""Every op, in every dtype and at edge cases, against its definition in float64."""

import numpy as np
import onnx
import pytest
import torch

import cudarelu.ort
import my_ops
from cudarelu.testing import DTYPES, assert_close, cases, reference

CALLS = [(op, dtype) for op in my_ops.MODULE.ops() for dtype in op.dtypes]


def in_numpy(op, case):
    return getattr(my_ops, op.name)(*case.inputs.values(), **case.attributes)


def in_pytorch(op, case):
    # NumPy's bfloat16 is unknown to PyTorch, but a value of 16 bits is exact in float32.
    tensors = [
        torch.from_numpy(x.astype("float32") if x.itemsize == 2 else np.array(x)).to(
            getattr(torch, str(x.dtype))
        )
        for x in case.inputs.values()
    ]
    y = getattr(torch.ops.my, op.name)(*tensors, **case.attributes)
    return y.float().numpy().astype(str(y.dtype)[6:]) if y.itemsize == 2 else y.numpy()


def in_onnx_runtime(op, case):
    def value(name, dtype):
        return onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(dtype), None
        )

    (output,) = op.outputs
    (dtype, *_) = {x.dtype for x in case.inputs.values()}
    node = onnx.helper.make_node(
        op.onnx.op_type,
        list(case.inputs),
        [output.name],
        domain=op.onnx.domain,
        **op.onnx_attributes(case.attributes),
    )
    inputs = [value(name, x.dtype) for name, x in case.inputs.items()]
    outputs = [value(output.name, dtype if output.dtype == "T" else np.dtype(output.dtype))]
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(op.onnx.domain, 1)]
    graph = onnx.helper.make_graph([node], op.name, inputs, outputs)
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=opsets)
    return cudarelu.ort.Session(model.SerializeToString(), "cpu")(*case.inputs.values())


@pytest.mark.parametrize("run", [in_numpy, in_pytorch, in_onnx_runtime])
@pytest.mark.parametrize(("op", "dtype"), CALLS, ids=[f"{op.name}-{dtype}" for op, dtype in CALLS])
def test_op(op, dtype, run):
    for case in cases(op, DTYPES[dtype]):
        (expected,) = reference(op, case)
        result = DTYPES[dtype] if op.outputs[0].dtype == "T" else expected.dtype
        assert_close(op, case, run(op, case), expected, result)


def test_gradient():
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: my_ops.swish(x, beta=2.0), x)
