"""Plan: how a `KernelSpec` becomes a kernel on one architecture.

Here: resolved tiles, memory maps, barriers, roles, tensor maps, arguments, cost. Not here: CUDA text (`render`),
compilers, tensors.
"""
