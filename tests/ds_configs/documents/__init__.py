"""Tests of reading and editing configuration files."""
