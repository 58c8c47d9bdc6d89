"""Tests of the spec stage: models, expansion, errors, identity, schema, shipped specs, Hugging Face configurations."""
