"""CUDA text to a checked cubin, with no driver, GPU or toolkit.

Belongs here: NVRTC, what ptxas reports, what the SASS shows. Not here: what a kernel is for, where
its bytes are kept.
"""
