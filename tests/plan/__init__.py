"""Tests of `mlagen.plan`."""
