"""Tests of the command line, run in this process as a user would run it."""
