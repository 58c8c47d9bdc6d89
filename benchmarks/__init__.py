"""Measurements: scripts that print a table and write JSON; nothing here is part of the package.

`python -m benchmarks.prefill`, `.host_overhead` and `.build_time` each measure one thing;
`device_run.py` runs them and the GPU tests in one go. How the peers are timed: `timing.py`.
"""
