"""Checkpoints of pipelines: DeepSpeed's files, saved whole or not at all, loaded at any layout."""
