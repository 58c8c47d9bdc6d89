"""The mutation proof: one fault at every place of rendered kernels where it fits, and who notices.

Belongs here: rules that plant faults in CUDA text, the choice of kernels, the runner, and the list of mutants that
nobody can catch, with reasons. Does not belong here: tests of the simulator's parts (`tests/sim`).
"""
