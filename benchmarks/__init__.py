"""The project's own measurements: scripts that print a table and write JSON; nothing here is part of the package.

What measures kernels is `mlagen/bench`, behind `mlagen bench`. `python -m benchmarks.prefill` runs it on a committed
spec and checks the goals; `.host_overhead` and `.build_time` each measure one thing more. `report` verifies and times
every kernel of a spec on whatever GPU there is; `device_run` runs all of them and the GPU tests in one go; `publish`
writes a run into the documents. `timeline` measures nothing: it draws what the cycle model predicts.
"""
