"""Measures the ops and their rivals: `python -m cudarelu bench`.

A case (`cases`) is an op with a dtype, shapes and attributes, derived from the op table. Contenders
(`contenders`) are ways to compute it, ours included. A regime (`regimes`) is a way to time them, in
turns and in one process; `launches` finds our kernels. A suite (`suites`) lists such points and
their targets. `records` keeps the file, `report` compares two files and prints the table, `plots`
draws.
"""
