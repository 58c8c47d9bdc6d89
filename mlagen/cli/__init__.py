"""The command line: one file a verb, each a thin layer over the library.

Here belong arguments, tables, progress and exit statuses. No verb computes anything a Python caller
could want: that is in the package, where it can be called and tested without a terminal.
"""
