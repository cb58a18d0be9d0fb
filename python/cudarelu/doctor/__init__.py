"""Reports what works, and the cause and fix of what does not: `python -m cudarelu doctor`.

The doctor does not import PyTorch, ONNX Runtime or the rest of the package, since they may be
broken. What may fail runs in other processes (`probes`). One table has the causes and fixes
(`troubles`); docs/troubleshooting.md is made from it.
"""
