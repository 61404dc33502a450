"""Tests of `ds-config explain`."""
