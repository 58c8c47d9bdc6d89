"""Tests of `mlagen/bench`, on the CPU: float64 in place of kernels, and a fake in place of the clock."""
