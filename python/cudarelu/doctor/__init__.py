"""What works here, and for what does not, the cause and its mend: `python -m cudarelu doctor`.

Nothing here imports PyTorch, ONNX Runtime or the rest of the package: they may be what is broken.
Whatever may fail is asked of other processes (`probes`). Causes and mends are in one table
(`troubles`), which is docs/troubleshooting.md too.
"""
