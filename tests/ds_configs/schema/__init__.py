"""Tests of the schema, and the program that extracts it from the DeepSpeed package."""
