"""Micro-kernels that run on a GPU and in the simulator: what the GPU answered is kept in `fixtures/`.

A `Case` is one launch: a kernel of a module, its buffers, its parameters. Tables (`alu_rows`, `wgmma`, ...) make
modules and cases; `recorder` runs them on a GPU, `replay` in the simulator, and the tests compare.
"""
