"""Model shapes: a model's sizes, read from a Hugging Face config.json or derived from a parameter count."""

from ds_configs.models.find import find_model, find_or_size
from ds_configs.models.shape import MlaShape, ModelShape, MoeShape

__all__ = ["MlaShape", "ModelShape", "MoeShape", "find_model", "find_or_size"]
