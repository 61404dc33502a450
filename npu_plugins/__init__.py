"""DeepSpeed and Hugging Face training on Ascend NPUs, with a simulated NPU for machines without a card."""

__version__ = "0.1.0"
