"""Tests of ds_configs.generate."""
