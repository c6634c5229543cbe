"""The rules of bashd as plain values: no I/O, no clocks, no processes.

Everything that decides (widening, narrowing, what counts as a denial, which bytes
of an output are kept) lives here and is a function from values to values.
"""
