"""From tensors to a launched kernel: check the arguments, choose the variant, encode tensor maps, launch.

Belongs here: everything that happens in `load` and `run`, and the only calls of the CUDA driver
(`driver.py`).
Does not belong here: text of kernels, their compilation, numerics.
"""
