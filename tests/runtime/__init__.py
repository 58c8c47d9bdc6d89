"""Tests of `mlagen/runtime`, on a fake driver: no GPU is needed and none is used."""
