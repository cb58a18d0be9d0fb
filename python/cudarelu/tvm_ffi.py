"""The ops in tvm-ffi, whose functions take arrays of any library, from Python, C++ and Rust.

::

    import cudarelu.tvm_ffi, tvm_ffi

    ops = tvm_ffi.load_module(cudarelu.tvm_ffi.library_path())
    y = ops.relu(x)

The libraries of other modules, ``path``, are loaded in the same way. A library needs neither this
package nor Python.
"""

from cudarelu._modules import modules


def library_path() -> str:
    """The path of the library with the ops of this package."""
    return modules()[0].path


__all__ = ["library_path"]
