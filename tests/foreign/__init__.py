"""Kernels that other compilers made, run in the simulator: the nearest thing to independent evidence about sm_100a."""
