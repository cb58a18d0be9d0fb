"""Measures the ops and their rivals: `python -m cudarelu bench`.

A case (`cases`) is an op with a dtype, shapes and attributes, all read off the op table. Contenders
(`contenders`) are ways to compute it, ours among them, and a regime (`regimes`) is a way to time
them, in turns and in one process. A suite (`suites`) lists such points and what is aimed at.
`records` keeps the file, `report` compares two files and prints the table, `plots` draws.
"""
