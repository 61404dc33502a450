"""Tests of lint: each fault on a small input of its own, and random mutations against the real loaders."""
