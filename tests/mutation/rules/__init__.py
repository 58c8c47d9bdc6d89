"""The rules, by concept: each file names one part of a kernel's protocol and the faults that fit it."""
