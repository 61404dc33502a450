"""The `PipelineModule` that a Hugging Face decoder becomes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from deepspeed.runtime.pipe.module import LayerSpec, TiedLayerSpec
from torch import nn

from npu_plugins.pipeline import batches
from npu_plugins.pipeline.errors import PipelineError
from npu_plugins.pipeline.hf.agreement import check_same_source, failing_together
from npu_plugins.pipeline.hf.families import Family
from npu_plugins.pipeline.hf.layers import (
    SHARED,
    DecoderLayer,
    FinalNorm,
    Head,
    PositionEmbedding,
    TokenEmbedding,
    tied_head,
)
from npu_plugins.pipeline.hf.loss import CausalLoss
from npu_plugins.pipeline.hf.preparation import Preparation
from npu_plugins.pipeline.hf.trial import TrialLayer
from npu_plugins.pipeline.hf.weights import Source, fill
from npu_plugins.pipeline.module import PipelineModule

INPUTS = ("input_ids", "attention_mask", "position_ids")
TIED = "embedding"


class SplitModel(PipelineModule):
    """A Hugging Face decoder in stages; `split_model` makes it.

    Its micro-batches are the dicts of a Hugging Face collator, or pairs (input_ids or such a dict, labels).
    `hf_names` maps its parameters to those of the model.
    """

    def __init__(self, skeleton: Any, family: Family, source: Source, **options: Any) -> None:
        """Build this rank's stages.

        Args:
            skeleton: the whole model with its parameters on the meta device (divided over ``tp``, if at all).
            family: of the model.
            source: of its weights.
            **options: for `PipelineModule`.
        """
        self.config = skeleton.config
        self.model_class = type(skeleton)
        self._source = source
        specs = layer_specs(skeleton, family)
        self._skeleton = [skeleton]  # in a list, so that it is no part of this module
        super().__init__(specs, loss_fn=CausalLoss(skeleton.loss_function, self.config), **options)
        del self._source

    @property
    def hf_model(self) -> Any:
        """The whole model: this rank's modules, and the others' on the meta device."""
        return self._skeleton[0]

    def _build(self) -> None:
        if self.seed_layers:
            raise PipelineError(
                "seed_layers is true, but the weights of a split model are taken or drawn as the whole "
                "model's; leave it out, and call torch.manual_seed before split_model"
            )
        skeleton = self.hf_model
        own = [spec for stage in self.own_stages for spec in self._layer_specs[slice(*self._bounds(stage))]]
        source, mesh = self._source, self.mesh
        check_same_source(source.identity(), source.mend, mesh, self.control)
        with failing_together("filling its stages", self.control):
            fill(skeleton, [spec.build() for spec in own], source, mesh.device, mesh.group("tp"))
        super()._build()
        self.preparations: dict[int, Preparation] = {}
        for stage in self.own_stages:
            for layer in self.stage_funcs[stage]:
                if isinstance(layer, DecoderLayer) and stage not in self.preparations:
                    # Of its own: rotary tables of the dynamic kinds remember the lengths they have seen.
                    self.preparations[stage] = copy.deepcopy(layer.preparation).to(self.mesh.device)

    def micro_batch(self, batch: Any, count: int) -> batches.MicroBatch:
        """Divide a batch into what the first layer and what the loss takes.

        Args:
            batch: a dict with input_ids `[batch, seq]` and what a collator adds: attention_mask,
                position_ids, labels, num_items_in_batch; or a pair (input_ids or such a dict, labels).
            count: micro-batches of the step.

        Raises:
            PipelineError: there are no input_ids, or something that the decoder does not take.
        """
        if not isinstance(batch, Mapping):
            inputs, labels = super().micro_batch(batch, count)
            batch = {**(inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}), "labels": labels}
        told = CausalLoss.told(batch, count * self.mesh.size("dp"))
        inputs = {key: each for key, each in batch.items() if key not in told and each is not None}
        unknown = [key for key in inputs if key not in INPUTS]
        if unknown or not isinstance(inputs.get("input_ids"), torch.Tensor):
            found = f"has {unknown[0]}" if unknown else f"has no tensor input_ids, but {', '.join(batch)}"
            raise PipelineError(
                f"a batch {found}; a split {self.model_class.__name__} takes {', '.join(INPUTS)}, and for "
                f"its loss {', '.join(CausalLoss.KEYS)}: drop other columns in the collator"
            )
        mask = inputs.get("attention_mask")
        if mask is not None and mask.dim() == 2:
            inputs["attention_mask"] = mask.bool()  # as the model would; a byte per token travels
        return batches.MicroBatch(inputs, told)

    def run_stage(self, stage: int, value: Any) -> Any:
        """Run a stage, whose decoder layers share masks and rotary tables made here once."""
        if stage in self.preparations:
            value = {**value, SHARED: self.preparations[stage](value, self._dtype(value))}
        value = super().run_stage(stage, value)
        if isinstance(value, dict):
            value.pop(SHARED, None)
        return value

    def _dtype(self, value: Mapping[str, Any]) -> torch.dtype:
        if "hidden_states" in value:
            return value["hidden_states"].dtype
        return next(self.parameters()).dtype  # the embedding's, which makes the hidden states

    def _trial_layers(self) -> list[Any]:
        tp = self.mesh.size("tp")
        if tp > 1:
            raise PipelineError(
                f"partition time runs layers on one rank alone, which layers divided over {tp} cannot do; "
                "measure with tp 1, and give the layers of each stage as a list"
            )
        return [TrialLayer(spec) for spec in self._layer_specs]

    def _is_checkpointable(self, funcs: list[Any]) -> bool:
        """Recompute decoder layers only: the others' activations are few, and the head's product is long."""
        return any(isinstance(layer, DecoderLayer) for layer in funcs)


def layer_specs(skeleton: Any, family: Family) -> list[LayerSpec]:
    """Cut the model into layers: embedding, learned positions, each decoder layer, norm, head."""
    base = getattr(skeleton, family.base)
    embedding, head = getattr(base, family.embedding), getattr(skeleton, family.head)

    def of_base(name: str) -> tuple[str, nn.Module]:
        return f"{family.base}.{name}", getattr(base, name)

    tied = head.weight is embedding.weight
    if tied:
        parts = {"embedding": of_base(family.embedding), "head": (family.head, head)}
        weight = "embedding.weight"
        first = TiedLayerSpec(TIED, TokenEmbedding, tied_weight_attr=weight, **parts)
        last = TiedLayerSpec(TIED, TokenEmbedding, forward_fn=tied_head, tied_weight_attr=weight, **parts)
    else:
        first = LayerSpec(TokenEmbedding, embedding=of_base(family.embedding))
        last = LayerSpec(Head, head=(family.head, head))
    specs = [first]
    if family.positions is not None and family.dropout is not None:
        specs.append(
            LayerSpec(PositionEmbedding, positions=of_base(family.positions), dropout=of_base(family.dropout))
        )
    rotary = None if family.rotary is None else getattr(base, family.rotary)
    preparation = Preparation(skeleton.config, family, rotary)
    count = skeleton.config.num_hidden_layers
    for index, (kind, layer) in enumerate(zip(preparation.kinds, getattr(base, family.layers), strict=True)):
        path = f"{family.base}.{family.layers}.{index}"
        specs.append(LayerSpec(DecoderLayer, path, layer, preparation, kind, index == count - 1))
    return [*specs, LayerSpec(FinalNorm, norm=of_base(family.norm)), last]
