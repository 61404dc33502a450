"""What adapters would be trained, told before a run starts."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from hf_integration.lora.adapters import wrap


def describe(model: PreTrainedModel, config: Any) -> str:
    """Return a line on the adapters of a model.

    Args:
        model: on the meta device; it is of no use afterwards.
        config: peft's.

    Raises:
        TrainingInputError: peft refuses the configuration.
    """
    wrapped = wrap(model, config, seed=0)
    trained, everything = wrapped.get_nb_trainable_parameters()
    return (
        f"adapters      rank {config.r}: {trained} of {everything} parameters are trained; the memory below "
        "is that of training all of the model"
    )
