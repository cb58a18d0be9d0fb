"""Functions of the ops, and rules of the ops for PyTorch's transforms."""
