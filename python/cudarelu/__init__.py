"""CUDA operators written once and served everywhere.

Each op of ``cudarelu.ops()`` is a function of this module and of ``torch.ops.cudarelu``::

    cudarelu.relu(x)                            # a torch.Tensor, or an array
    cudarelu.leaky_relu(x, negative_slope=0.1)  # attributes are given by name

A function takes torch tensors on one device, with any strides, and returns tensors on that device,
with gradients. A DTensor stays sharded if the op works on the shards alone.

It also takes arrays: NumPy arrays, including float16 and ml_dtypes' bfloat16, and the arrays of
CuPy, JAX, TensorFlow (on the CPU) and any other library with DLPack, all on one device. It returns
new arrays of that library, without a copy, and the host does not wait for the GPU. It runs in
programs of JAX (jit, grad, vmap) and TensorFlow (tf.function, Keras) too: see ``cudarelu.jax`` and
``cudarelu.tensorflow``. Shapes and dtypes are those of the op's signature: see
``help(cudarelu.relu)`` and ``OpInfo``.

``load_library`` loads the ops of another library, which are served as those of this one are::

    my = cudarelu.load_library("libmy_ops.so")
    my.swish(x, beta=2.0)                       # also torch.ops.my.swish(x, beta=2.0)

``load`` builds such a library from C++ sources; ``define`` and ``triton_op`` define ops in Python,
which ``Library`` collects.

Errors: ``TypeError`` for an argument of another kind and for an attribute with an unknown name or
another type; ``ValueError`` for a str that is not a label of the attribute. With arrays,
``ValueError`` for a shape, ``TypeError`` for a dtype, and for a value ``ValueError`` with NumPy and
``RuntimeError`` with other libraries. With tensors, as in torch, ``RuntimeError`` for a shape, a
value or a device and its subclass ``NotImplementedError`` for a dtype.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

# While Python looks for the module of its option -m, argv[0] is "-m", and orig_argv has the name of
# the module before the arguments: cudarelu, -mcudarelu or, with other options, -Imcudarelu.
if sys.argv[:2] in (["-m", "doctor"], ["-m", "cmake-dir"]) and re.fullmatch(
    "(-[^m]*m)?cudarelu", sys.orig_argv[-len(sys.argv) :][0]
):
    # `python -m cudarelu doctor` runs here: it explains why the imports below fail. So does
    # `cmake-dir`, since builds need no PyTorch.
    from cudarelu.__main__ import main

    sys.exit(main())

import torch

from cudarelu import _build_info, _readers

if (_folder := _readers.folder_for(torch.__version__)).is_dir():
    __path__.insert(0, str(_folder))  # for `cudarelu._C`, which the modules below import
elif _versions := _readers.versions():
    raise ImportError(
        f"cudarelu was built for PyTorch {', '.join(_versions)}, but this is {torch.__version__}: "
        f"build it again in this environment, or pip install 'torch=={_versions[-1]}.*'"
    )

from cudarelu._build import load, load_inline
from cudarelu._modules import OpModule, load_library, modules
from cudarelu._pytorch.functions import FUNCTIONS
from cudarelu._table import Attribute, OnnxName, OpInfo, Parameter, ops
from cudarelu.defining import DefinedOp, Library, define, triton_op

__version__ = _build_info.VERSION
_functions = {op.name: FUNCTIONS[op.qualified_name] for op in ops()}
globals().update(_functions)
__all__ = [
    "Attribute",
    "DefinedOp",
    "Library",
    "OnnxName",
    "OpInfo",
    "OpModule",
    "Parameter",
    "define",
    "load",
    "load_inline",
    "load_library",
    "modules",
    "ops",
    "triton_op",
    *_functions,
]

if TYPE_CHECKING:  # type checkers do not see these: the build writes their types
    from cudarelu._functions import *  # noqa: F403
