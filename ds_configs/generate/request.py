"""What is asked of the generator, in one dataclass that checks itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from ds_configs.errors import DsConfigError
from ds_configs.generate.options import (
    AUTO,
    known,
    pipeline_options,
    recipes,
    refused_optimizers,
    section,
    show,
)
from ds_configs.generate.rules import check_rules
from ds_configs.parallel import ParallelConfig

TARGETS = ("deepspeed", "hf")
PRECISIONS = (AUTO, "fp32", "bf16", "fp16")
DEVICES = ("none", "cpu", "nvme")
STAGES = (0, 1, 2, 3)
TP_BY = ("autotp", "mpu")
SECTIONS = ("zero", "fp16", "bf16", "pipeline", "tensor_parallel", "aio")


@dataclass(frozen=True)
class ConfigRequest:
    """A DeepSpeed configuration in the user's terms.

    ``"auto"`` means: HF fills it (``target="hf"``), or it is computed here (``target="deepspeed"``). ``None``
    means: the key is left out and DeepSpeed's own default holds. The same goes for the values of the
    mappings, whose keys are DeepSpeed's; those left unsaid have the defaults of ``tables.json``.

    Raises:
        DsConfigError: a field has a wrong value, or the combination is impossible; the message says why and
            what to do.
    """

    target: str
    """Who reads the file: ``hf`` (Trainer, accelerate) or ``deepspeed`` (a program that calls it)."""
    stage: int
    """ZeRO stage: 0 shards nothing, 1 optimizer state, 2 gradients too, 3 parameters too."""
    precision: str = AUTO
    """fp32, bf16, fp16; auto is HF's flags, or bf16 for plain DeepSpeed."""
    train_batch: int | str | None = AUTO
    """Sequences an optimizer step sees over all ranks."""
    micro_batch: int | str | None = AUTO
    """Sequences a rank takes at once."""
    accumulation: int | str | None = AUTO
    """Micro-batches an optimizer step; with ``pp`` > 1 those that fill the pipeline."""
    world_size: int | None = None
    """Ranks of the whole job, where known."""
    tp: int = 1
    """Ranks that share each layer's matrices."""
    tp_by: str = "autotp"
    """Who divides them: DeepSpeed's AutoTP, or the program through the ``mpu`` it hands to DeepSpeed."""
    pp: int = 1
    """Pipeline stages, the ``num_stages`` of the program's PipelineModule."""
    hidden: int | None = None
    """Width of the model, which stage 3's prefetching and persistence follow."""
    clipping: float | str | None = AUTO
    """Largest gradient norm; 1.0 where auto is computed here."""
    optimizer: str | None = "AdamW"
    """None: the program brings its own (HF: the Trainer's)."""
    optimizer_params: Mapping[str, Any] = field(default_factory=dict)
    scheduler: str | None = None
    scheduler_params: Mapping[str, Any] = field(default_factory=dict)
    offload_optimizer: str = "none"
    """Where optimizer state lives: none (on the NPU), cpu, nvme."""
    offload_optimizer_params: Mapping[str, Any] = field(default_factory=dict)
    offload_param: str = "none"
    offload_param_params: Mapping[str, Any] = field(default_factory=dict)
    nvme_path: str | None = None
    """Folder on the NVMe drive of each machine."""
    zero: Mapping[str, Any] = field(default_factory=dict)
    fp16: Mapping[str, Any] = field(default_factory=dict)
    """Loss scaling."""
    bf16: Mapping[str, Any] = field(default_factory=dict)
    activation_checkpointing: Mapping[str, Any] | None = None
    pipeline: Mapping[str, Any] = field(default_factory=dict)
    tensor_parallel: Mapping[str, Any] = field(default_factory=dict)
    aio: Mapping[str, Any] = field(default_factory=dict)
    grad_accum_dtype: str | None = None
    """Type in which gradients accumulate; None: the precision's own."""
    steps_per_print: int | None = None

    parallel: ParallelConfig | None = field(init=False, repr=False, compare=False, default=None)
    """The degrees, where the world size is known."""

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_numbers()
        self._check_recipes()
        self._check_sections()
        if self.world_size is not None:
            divided = ParallelConfig.of_world(self.world_size, tp=self.tp, pp=self.pp)
            object.__setattr__(self, "parallel", divided)
        check_rules(self)

    @property
    def dtype(self) -> str:
        """The precision trained in; auto only where HF decides it."""
        return "bf16" if self.precision == AUTO and self.target == "deepspeed" else self.precision

    @property
    def autotp(self) -> bool:
        """Whether DeepSpeed's AutoTP divides the matrices."""
        return self.tp > 1 and self.tp_by == "autotp"

    @property
    def uses_nvme(self) -> bool:
        """Whether anything is offloaded to files."""
        return "nvme" in (self.offload_optimizer, self.offload_param)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ConfigRequest:
        """Return the request that ``values``, field by field, spell.

        Raises:
            DsConfigError: a field is unknown or missing, or refused.
        """
        names = {each.name: each for each in fields(cls) if each.init}
        for name in values:
            if name not in names:
                raise DsConfigError(
                    f"a request has no field {name!r}; it has "
                    f"{known('field', names, name) if name.lower() in names else ', '.join(names)}"
                )
        for name in ("target", "stage"):
            if name not in values:
                raise DsConfigError(f"a request without {name!r} is open; {_ask(name)}")
        return cls(**values)

    def _check_choices(self) -> None:
        for name, choices in (
            ("target", TARGETS),
            ("precision", PRECISIONS),
            ("tp_by", TP_BY),
            ("offload_optimizer", DEVICES),
            ("offload_param", DEVICES),
            ("grad_accum_dtype", (None, "fp32", "bf16", "fp16")),
        ):
            value = getattr(self, name)
            if value not in choices:
                offered = ", ".join(str(choice) for choice in choices if choice is not None)
                raise DsConfigError(f"{name} is {show(value)}; choose one of {offered}")
        if not isinstance(self.stage, int) or isinstance(self.stage, bool) or self.stage not in STAGES:
            raise DsConfigError(f"stage is {show(self.stage)}; {_ask('stage')}")

    def _check_numbers(self) -> None:
        for name in ("train_batch", "micro_batch", "accumulation"):
            self._check_whole(name, AUTO, None)
        for name in ("world_size", "hidden", "steps_per_print"):
            self._check_whole(name, None)
        for name in ("tp", "pp"):
            self._check_whole(name)
        clipping = self.clipping
        if clipping in (AUTO, None):
            return
        if (
            isinstance(clipping, bool)
            or not isinstance(clipping, (int, float))
            or not 0 <= clipping < float("inf")
        ):
            raise DsConfigError(
                f"clipping is {show(clipping)}; give the largest gradient norm, or 0 for none"
            )

    def _check_whole(self, name: str, *others: str | None) -> None:
        value = getattr(self, name)
        if value in others:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DsConfigError(f"{name} is {show(value)}; give a whole number, 1 or more")

    def _check_recipes(self) -> None:
        for kind in ("optimizer", "scheduler"):
            name, params = getattr(self, kind), getattr(self, f"{kind}_params")
            if name is None:
                if params:
                    raise DsConfigError(
                        f"{kind} parameters {', '.join(params)} are given, but no {kind}; name it too"
                    )
                continue
            if not isinstance(name, str):
                raise DsConfigError(
                    f"{kind} is {show(name)}; give a name such as {next(iter(recipes(kind + 's')))}"
                )
            refused = {each.lower(): why for each, why in refused_optimizers().items()}
            if kind == "optimizer" and name.lower() in refused:
                raise DsConfigError(
                    f"optimizer {name} is refused, because {refused[name.lower()]}; use AdamW"
                )
            spelt = known(kind, recipes(f"{kind}s"), name)
            object.__setattr__(self, kind, spelt)
            self._check_values(f"{kind} {spelt}:", f"{kind}_params", recipes(f"{kind}s")[spelt].params)

    def _check_sections(self) -> None:
        tables = {"zero": section("zero_optimization"), "pipeline": pipeline_options()}
        for name in SECTIONS:
            self._check_values(name, name, tables[name] if name in tables else section(name))
        for name in ("offload_optimizer", "offload_param"):
            self._check_values(name, f"{name}_params", section(name))
        if self.activation_checkpointing is not None:
            name = "activation_checkpointing"
            self._check_values(name, name, section(name))

    def _check_values(self, where: str, attribute: str, options: Mapping[str, Any]) -> None:
        """Check the mapping ``attribute`` and freeze it."""
        given = getattr(self, attribute)
        if not isinstance(given, Mapping):
            raise DsConfigError(f"{attribute} is {show(given)}; give keys with values")
        values = {}
        for key, value in given.items():
            option = options[known(where, options, key)]
            if value == AUTO and option.type != "str":
                if self.target == "hf" and not option.hf:
                    raise DsConfigError(f'{where} {key} is "auto", which HF does not fill; give a value')
                continue
            values[key] = value if value is None else option.checked(f"{where} {key}", value)
        object.__setattr__(self, attribute, MappingProxyType(values))


def _ask(name: str) -> str:
    if name == "stage":
        return "choose 0 (shards nothing), 1 (optimizer state), 2 (gradients too) or 3 (parameters too)"
    return "say who reads the file: hf (Trainer, accelerate) or deepspeed (your own program)"
