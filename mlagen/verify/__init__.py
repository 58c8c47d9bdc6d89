"""Is a result right: the float64 definition of attention, and measures of the distance from it.

Belongs here: what is written from the definition of the options in `spec`. Does not belong here:
any kernel's algorithm.
"""
