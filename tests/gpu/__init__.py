"""Tests that launch kernels, and what they are made of: options, inputs, guarded outputs, checks.

Everything here needs a GPU; `tests/verify` runs the inputs against the reference on the CPU.
"""
