"""Spec: what a user may write, as frozen Pydantic models, and the way from YAML text to them.

Here: fields, unions, cross-field rules, positions of errors, canonical form and identity. Not here: derived values,
CUDA, torch, files other than the spec itself.
"""
