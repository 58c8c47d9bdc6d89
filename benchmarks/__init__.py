"""Measurements: scripts that print a table and write JSON; nothing here is part of the package.

`python -m benchmarks.prefill`, `.host_overhead` and `.build_time` each measure one thing;
`report` verifies and times every kernel of a spec on whatever GPU there is;
`device_run.py` runs all of them and the GPU tests in one go. How the peers are timed: `timing.py`.
`timeline` measures nothing: it draws what the cycle model predicts.
"""
