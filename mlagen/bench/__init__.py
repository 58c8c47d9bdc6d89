"""How fast kernels are on this machine's GPU, beside other implementations of attention, as tables and pictures.

Belongs here: rows, their inputs, peers, timing, facts of the machine, and what is made of results. Every output that is
timed is checked. Does not belong here: which figures this project publishes (`benchmarks/`). Modules that need torch
import it at their top, so the command line imports them last.
"""
