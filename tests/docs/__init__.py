"""Tests of what people read: examples that run, pages that are current, tidy text files."""
