"""The installed DeepSpeed, transformers and accelerate, asked what they do with a configuration."""

from tests.ds_configs.oracle.client import Oracle

__all__ = ["Oracle"]
