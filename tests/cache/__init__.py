"""Tests of the cache, of builds through it, and of folders of built kernels."""
