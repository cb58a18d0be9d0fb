"""The ops as `torch.nn` modules.

`ReLU`, `LeakyReLU`, `Tanh`, `GELU`, `Softmax`, `Linear`, `LayerNorm`, `MultiheadAttention`,
`TransformerEncoderLayer` and `Sequential` are subclasses of torch's modules of the same names and
have the same arguments, attributes and representation. `LinearReLU` and `LinearGELU` are subclasses
of torch's `Linear`. `replace` converts the modules of a model to these classes::

    import cudarelu.nn

    print(cudarelu.nn.replace(model))

`Op` makes a module of any other op, also of an op of a loaded module::

    my = cudarelu.load_library("libmy_ops.so")
    cudarelu.nn.Op(my.swish, beta=2.0)

Inputs are tensors of the ops' dtypes, on the CPU or CUDA. If an op has no kernel for the tensors of
a call, such as quantised, sparse or nested tensors, a module that has the same name as its base
class in torch runs the `forward` of that class.

`attention` has our op for code that calls torch's `scaled_dot_product_attention`, and for models of
Hugging Face.
"""

from cudarelu.nn import attention
from cudarelu.nn.modules import (
    GELU,
    BiasReLU,
    LayerNorm,
    LeakyReLU,
    Linear,
    LinearGELU,
    LinearReLU,
    Op,
    ReLU,
    Sequential,
    Softmax,
    Tanh,
)
from cudarelu.nn.replacement import Replacement, replace
from cudarelu.nn.transformer import MultiheadAttention, TransformerEncoderLayer

__all__ = [
    "GELU",
    "BiasReLU",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LinearGELU",
    "LinearReLU",
    "MultiheadAttention",
    "Op",
    "ReLU",
    "Replacement",
    "Sequential",
    "Softmax",
    "Tanh",
    "TransformerEncoderLayer",
    "attention",
    "replace",
]
