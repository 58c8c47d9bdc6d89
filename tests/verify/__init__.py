"""Tests of `mlagen/verify`, and of what the GPU tests rest on."""
