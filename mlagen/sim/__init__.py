"""A PTX simulator: runs what NVRTC compiled on a CPU, checks its numbers and its protocol.

It knows PTX and nothing of what a kernel means: no specs, no plans, no driver, no torch. Names of barriers, regions and
roles come from outside, for messages only (`report.Names`).

    ptx ─► lower ─► machine ─► result        machine drives: memory · barrier · tma · wgmma · tcgen05
                       │                     order (happens-before) and schedule are called by all of them
"""
