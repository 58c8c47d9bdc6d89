"""Tests of `mlagen.render` and of `templates/`."""
