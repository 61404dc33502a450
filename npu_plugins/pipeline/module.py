"""A model as a sequence of layers, of which each rank builds those of its stages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.activation_checkpointing import checkpointing
from deepspeed.runtime.pipe.module import LayerSpec, TiedLayerSpec
from deepspeed.runtime.pipe.module import PipelineModule as DeepSpeedPipelineModule
from deepspeed.runtime.utils import set_random_seed
from torch import nn
from torch.utils.checkpoint import checkpoint

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import ProcessMesh
from npu_plugins.pipeline import batches
from npu_plugins.pipeline.checkpoints.modules import functions_to_save
from npu_plugins.pipeline.config import PipelineConfig
from npu_plugins.pipeline.control import Control
from npu_plugins.pipeline.errors import PipelineError
from npu_plugins.pipeline.grid import MeshGrid, degrees_of
from npu_plugins.pipeline.partition import cut, measure_layers
from npu_plugins.pipeline.schedules.registry import build_schedule
from npu_plugins.pipeline.schedules.schedule import Placement
from npu_plugins.pipeline.tied import TiedModule, make_tied


class PipelineModule(DeepSpeedPipelineModule):
    """DeepSpeed's `PipelineModule` with any number of stages on a rank.

    Its arguments are DeepSpeed's, and what `ds_config["pipeline"]` says may be given as `config` instead. The
    base class's constructor is not run (it knows one stage a rank); what DeepSpeed reads is set here.

    Args:
        layers: LayerSpecs, TiedLayerSpecs, modules or functions, each called with the output of the one
        before. num_stages: ranks of the pipeline; or give `topology`, `mesh`, or `stages` in the
        configuration. topology: DeepSpeed's, with the axes pipe, data and model.
        loss_fn: ``loss_fn(output, labels)`` → a scalar, or a dict of scalars with the key ``"loss"``, whose
            others are averaged and reported. None: the last layer returns that.
        seed_layers, seed_fn, base_seed: whether each layer is built, and run, under a seed of its own.
        partition_method: uniform, parameters, type:REGEX, time, or a list with the layers of each stage.
        activation_checkpoint_interval: how many layers are recomputed together; 0: none.
        activation_checkpoint_func: called with a function and its inputs; by default torch's non-reentrant
            checkpoint, under which dropout is repeated exactly.
        checkpointable_layers: class names of the layers that are recomputed; None: all with parameters.
        dynamic_shape: whether the activations' shapes depend on more than the shapes of the micro-batch.
        schedule: decides how many stages a rank has and which; by default the configuration's.
        virtual_stages: stages on each rank, where the schedule leaves a choice.
        mesh: the job's, where tensor parallelism needs it too; by default one is made.
        config: a DeepSpeed configuration or its path.
        sample_input: the first layer's input, for partition time.

    Raises:
        PipelineError: more stages than layers, arguments and configuration disagree, or a value is refused.
    """

    def __init__(
        self,
        layers: Any,
        num_stages: int | None = None,
        topology: Any = None,
        loss_fn: Callable[..., Any] | None = None,
        seed_layers: bool = False,
        seed_fn: Callable[[int], Any] | None = None,
        base_seed: int = 1234,
        partition_method: str | Sequence[int] = "parameters",
        activation_checkpoint_interval: int = 0,
        activation_checkpoint_func: Callable[..., Any] | None = None,
        checkpointable_layers: list[str] | None = None,
        dynamic_shape: bool = False,
        *,
        schedule: str | None = None,
        virtual_stages: int | None = None,
        mesh: ProcessMesh | None = None,
        config: Mapping[str, Any] | str | Path | None = None,
        sample_input: Any = None,
    ) -> None:
        nn.Module.__init__(self)
        settings = PipelineConfig.from_ds_config(config)
        given = settings.given
        self.schedule_name = schedule or settings.schedule
        self.virtual_stages = virtual_stages if virtual_stages is not None else settings.virtual_stages
        if activation_checkpoint_func is checkpointing.checkpoint:
            raise PipelineError(
                "activation_checkpoint_func is DeepSpeed's reentrant checkpoint, which loses the "
                "gradients of "
                "layers whose inputs are integers; leave it out, or give non_reentrant_checkpoint"
            )
        self.loss_fn, self.checkpointable_layers = loss_fn, checkpointable_layers
        self.seed_layers = settings.seed_layers if "seed_layers" in given else seed_layers
        self.seed_fn, self.base_seed = seed_fn, base_seed
        self.dynamic_shape = settings.dynamic_shape if "dynamic_shape" in given else dynamic_shape
        interval = settings.recomputed_layers if "recomputation" in given else activation_checkpoint_interval
        self.activation_checkpoint_interval = interval
        self.activation_checkpoint_func = activation_checkpoint_func or _checkpoint
        self.micro_offset = 0
        self._set_ranks(same_stages(num_stages, settings.stages), topology, mesh)
        method = settings.partition if "partition" in given else partition_method
        if not isinstance(layers, Iterable):
            raise PipelineError(
                f"layers is a {type(layers).__name__}, which is no list; give the model's layers in order, "
                "or a Hugging Face model to split_model"
            )
        self._layer_specs = list(layers)
        self._num_layers = len(self._layer_specs)
        self._cut(method, sample_input)
        self._build()
        self.to(self.mesh.device)
        self.tied = self._tie()
        self.tied_comms = {
            key: {
                "ranks": list(tied.ranks),
                "group": tied.group,
                "module": tied.module,
                "weight_attr": tied.attributes,
            }
            for key, tied in self.tied.items()
        }

    def _set_ranks(self, stages: int | None, topology: Any, mesh: ProcessMesh | None) -> None:
        """Find this rank's place."""
        if not dist.is_initialized():
            deepspeed.init_distributed()
        self.world_size, self.global_rank = dist.get_world_size(), dist.get_rank()
        if mesh is None:
            mesh = make_mesh(stages, topology)
        if stages not in (None, mesh.size("pp")):
            raise PipelineError(
                f"stages is {stages}, but the mesh has {mesh.size('pp')} pipeline ranks; give one of them"
            )
        self.mesh = mesh
        self._grid = MeshGrid(mesh, topology)
        self._topo = self._grid._topo
        self.num_stages, self.stage_id = mesh.size("pp"), mesh.rank("pp")
        self.control = Control(mesh)

    def _cut(self, method: str | Sequence[int], sample: Any) -> None:
        """Cut the layers into the schedule's stages."""
        # Any number of micro-batches that every schedule takes: only the placement is wanted.
        self.placement: Placement = build_schedule(
            self.schedule_name, self.num_stages, 2 * self.num_stages, self.virtual_stages
        ).placement
        measure = None if sample is None else partial(self._measure, sample)
        self.parts = list(cut(self._layer_specs, self.placement.stages, method, measure))
        self.own_stages = self.placement.stages_of(self.stage_id)
        self._set_bounds(*self._bounds(self.own_stages[0]))

    def _set_bounds(self, start: int | None = None, stop: int | None = None) -> None:
        """Say which layers DeepSpeed's code shall take for this rank's."""
        self._local_start, self._local_stop = start, stop

    def _bounds(self, stage: int) -> tuple[int, int]:
        return self.parts[stage], self.parts[stage + 1]

    def _trial_layers(self) -> list[Any]:
        """Return the layers as they are built to be measured."""
        return self._layer_specs

    def _measure(self, sample: Any) -> list[float]:
        """Time the layers on the first rank, and take its word everywhere."""
        words = ""
        if self.global_rank == 0:
            words = json.dumps(measure_layers(self._trial_layers(), sample, self.mesh.device))
        return json.loads(self.control.texts(words)[0])

    def _build(self) -> None:
        """Build the layers of this rank's stages, under the names DeepSpeed gives them."""
        self.tied_modules = nn.ModuleDict()
        self.tied_weight_attrs: dict[str, list[str]] = {}
        self.fwd_map: dict[str, int] = {}
        self.stage_funcs: dict[int, list[Any]] = {}
        self.forward_funcs: list[Any] = []
        self._calls: Counter[int] = Counter()
        for stage in self.own_stages:
            funcs = [self._build_layer(index) for index in range(*self._bounds(stage))]
            self.stage_funcs[stage] = funcs
            self.forward_funcs += funcs
        for parameter in self.parameters():
            parameter.ds_pipe_replicated = False

    def _build_layer(self, index: int) -> Any:
        layer = self._layer_specs[index]
        if self.seed_layers:
            (self.seed_fn or set_random_seed)(self.base_seed + index)
        if isinstance(layer, TiedLayerSpec):
            if layer.key not in self.tied_modules:
                self.tied_modules[layer.key] = layer.build()
                self.tied_weight_attrs[layer.key] = layer.tied_weight_attr
            module = self.tied_modules[layer.key]
            return module if layer.forward_fn is None else partial(layer.forward_fn, module)
        if isinstance(layer, LayerSpec):
            layer = layer.build()
        if isinstance(layer, nn.Module):
            self.fwd_map[str(index)] = len(self.fwd_map)
            self.add_module(str(index), layer)
        return layer

    def _tie(self) -> dict[str, TiedModule]:
        holders: dict[str, set[int]] = {}
        for index, spec in enumerate(self._layer_specs):
            if isinstance(spec, TiedLayerSpec):
                holders.setdefault(spec.key, set()).add(self.stage_owner(index))
        return make_tied(
            {key: tuple(sorted(places)) for key, places in holders.items()},
            dict(self.tied_modules.items()),
            {key: tuple(names) for key, names in self.tied_weight_attrs.items()},
            self.mesh,
        )

    def micro_batch(self, batch: Any, count: int) -> batches.MicroBatch:
        """Divide a batch of the data iterator into what the first layer and what the loss takes.

        Args:
            batch: a pair (inputs, labels), or a dict whose ``"labels"`` go to the loss.
            count: micro-batches of the step.

        Raises:
            PipelineError: it is neither.
        """
        return batches.micro_batch(batch)

    def run_stage(self, stage: int, value: Any) -> Any:
        """Run the layers of one of this rank's stages; recompute later as the settings say."""
        funcs, first = self.stage_funcs[stage], self.parts[stage]
        self._calls[stage] += 1
        interval = self.activation_checkpoint_interval if torch.is_grad_enabled() else 0
        if interval == 0:
            return self._runner(funcs, first, self._calls[stage])(value)
        for start in range(0, len(funcs), interval):
            block = funcs[start : start + interval]
            run = self._runner(block, first + start, self._calls[stage])
            if not self._is_checkpointable(block):
                value = run(value)
            elif isinstance(value, tuple):
                value = self.activation_checkpoint_func(lambda *values, run=run: run(values), *value)
            else:
                value = self.activation_checkpoint_func(run, value)
        return value

    def _runner(self, funcs: list[Any], first: int, calls: int) -> Callable[[Any], Any]:
        """Return a function that runs the layers under the same seeds whenever it is called."""

        def run(value: Any) -> Any:
            for index, layer in enumerate(funcs, first):
                if self.seed_layers:
                    (self.seed_fn or set_random_seed)(self.base_seed * (calls + 1) + index)
                value = layer(value)
            return value

        return run

    def forward(self, value: Any) -> Any:
        """Run all layers, where one rank holds all of them; a pipeline's engine runs single stages."""
        if self.num_stages > 1:
            raise PipelineError(
                f"this rank holds stages {list(self.own_stages)} of {self.placement.stages} only; use the "
                "engine's train_batch or eval_batch"
            )
        for stage in self.own_stages:
            value = self.run_stage(stage, value)
        return value

    def stage_owner(self, layer_idx: int) -> int:
        """Return the pipeline rank that holds a layer."""
        for stage, rank in enumerate(self.placement.rank_of):
            if self.parts[stage] <= layer_idx < self.parts[stage + 1]:
                return rank
        raise PipelineError(f"layer {layer_idx} is none of the {self._num_layers} layers; give 0 or more")

    def set_checkpoint_interval(self, interval: int) -> None:
        """Recompute `interval` layers together from now on; 0: none."""
        if interval < 0:
            raise PipelineError(f"the interval is {interval}; give a number of layers, 0 for none")
        self.activation_checkpoint_interval = interval

    def _precompute_checkpointable_values(self) -> None:
        """Nothing: `run_stage` asks when it runs (DeepSpeed's engine calls this)."""

    @contextmanager
    def _at(self, stage: int) -> Iterator[None]:
        """Let DeepSpeed's code for checkpoint files, which knows one stage a rank, see this one."""
        kept = self.forward_funcs, self._local_start, self._local_stop
        self.forward_funcs = functions_to_save(self, stage)
        self._set_bounds(*self._bounds(stage))
        try:
            yield
        finally:
            self.forward_funcs, self._local_start, self._local_stop = kept

    @property
    def calls(self) -> int:
        """How often each stage has run: what `seed_layers` counts its seeds by."""
        return max(self._calls.values(), default=0)

    @calls.setter
    def calls(self, number: int) -> None:
        self._calls = Counter(dict.fromkeys(self.own_stages, number))

    def save_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Write a file for each layer of this rank, as DeepSpeed does."""
        for stage in self.own_stages:
            with self._at(stage):
                super().save_state_dict(*args, **kwargs)

    def load_state_dir(self, *args: Any, **kwargs: Any) -> None:
        """Read the files of this rank's layers."""
        for stage in self.own_stages:
            with self._at(stage):
                super().load_state_dir(*args, **kwargs)


def make_mesh(stages: int | None, topology: Any = None) -> ProcessMesh:
    """Return a new mesh of the whole world with so many stages, or of one of DeepSpeed's topologies.

    Raises:
        PipelineError: nothing says how many stages there are.
    """
    if not dist.is_initialized():
        deepspeed.init_distributed()
    if topology is not None:
        degrees = degrees_of(topology, dist.get_world_size())
    elif stages is not None:
        degrees = ParallelConfig.of_world(dist.get_world_size(), pp=stages)
    else:
        raise PipelineError(
            "nothing says how many stages there are; give num_stages, a topology, a mesh, or "
            '"pipeline": {"stages": …} in config'
        )
    return ProcessMesh.create(degrees)


def _checkpoint(function: Callable[..., Any], *inputs: Any) -> Any:
    return checkpoint(function, *inputs, use_reentrant=False)


def same_stages(argument: int | None, configured: int | None) -> int | None:
    """Return the number of stages of the call or of the configuration, whichever says it.

    Raises:
        PipelineError: they disagree.
    """
    if None not in (argument, configured) and argument != configured:
        raise PipelineError(
            f"stages is {argument} in the call, but {configured} in the configuration's pipeline; give one "
            "of them"
        )
    return configured if argument is None else argument
