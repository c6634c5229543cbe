"""What the kernel is asked to do, asked of a real kernel: a mechanism a file.

What a test runs in a cell is in `inside`. A claim about a wall is preceded by the proof
that the same thing works without it.
"""
