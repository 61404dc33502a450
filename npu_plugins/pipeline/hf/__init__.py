"""Hugging Face decoders as layers of a pipeline."""

from npu_plugins.pipeline.hf.module import SplitModel
from npu_plugins.pipeline.hf.names import hf_names
from npu_plugins.pipeline.hf.split import split_model

__all__ = ["SplitModel", "hf_names", "split_model"]
