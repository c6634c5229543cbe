"""bashd's tests. Names are claims; real kernels, real processes, no mocks."""
