"""Tests of ds_configs.resolve."""
