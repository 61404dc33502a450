"""DeepSpeed and Hugging Face training on Ascend NPUs, with a simulated NPU for machines without a card."""

__version__ = "0.1.0"


def initialize(*args, **kwargs):  # type: ignore[no-untyped-def]  # imported at every start: no typing here
    """Call `deepspeed.initialize`, which returns our engine for our `npu_plugins.pipeline.module`."""
    from npu_plugins.pipeline.hook import initialize as call

    return call(*args, **kwargs)
