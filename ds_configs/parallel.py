"""How a job's ranks are divided: the degrees of tensor, pipeline, data and expert parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from ds_configs.errors import DsConfigError


@dataclass(frozen=True)
class ParallelConfig:
    """Degrees of a job's parallel axes, rank order ``tp`` fastest, then ``dp``, then ``pp``.

    The order is Megatron's and DeepSpeed's ``['pipe', 'data', 'model']``. Expert parallelism takes its ranks
    out of the data-parallel axis (DeepSpeed-MoE, arXiv 2201.05596 §4): ``ep`` divides ``dp``.

    Raises:
        DsConfigError: a degree is no positive integer, or ``ep`` does not divide ``dp``.
    """

    tp: int = 1
    """Ranks that share each matrix of a layer."""
    pp: int = 1
    """Stages that the layers are divided into."""
    dp: int = 1
    """Replicas that see different micro-batches."""
    ep: int = 1
    """Ranks that a layer's experts are divided over, within the data-parallel axis."""
    sequence_parallel: bool = False
    """Whether activations between the tensor-parallel regions are divided over ``tp`` along the sequence."""

    def __post_init__(self) -> None:
        for axis in ("tp", "pp", "dp", "ep"):
            degree = getattr(self, axis)
            if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
                raise DsConfigError(f"{axis} is {degree!r}; give a whole number of ranks, 1 or more")
        if self.dp % self.ep:
            raise DsConfigError(
                f"ep={self.ep} does not divide dp={self.dp}: experts are spread over data-parallel ranks; "
                f"choose an ep among {', '.join(str(d) for d in range(1, self.dp + 1) if self.dp % d == 0)}"
            )
        if self.sequence_parallel and self.tp == 1:
            raise DsConfigError(
                "sequence_parallel divides activations over tp ranks, but tp is 1; set tp > 1"
            )

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.tp * self.pp * self.dp

    @classmethod
    def of_world(
        cls, world_size: int, tp: int = 1, pp: int = 1, ep: int = 1, sequence_parallel: bool = False
    ) -> ParallelConfig:
        """Divide ``world_size`` ranks: what ``tp`` and ``pp`` leave becomes the data-parallel axis.

        Raises:
            DsConfigError: ``tp`` × ``pp`` does not divide ``world_size``, or a degree is refused.
        """
        for name, degree in (("tp", tp), ("pp", pp), ("the world size", world_size)):
            if degree < 1:
                raise DsConfigError(f"{name} is {degree}; give a whole number of ranks, 1 or more")
        if world_size % (tp * pp):
            raise DsConfigError(
                f"tp={tp} × pp={pp} does not divide {world_size} ranks: it needs {tp * pp} or a multiple; "
                "choose degrees whose product divides the ranks"
            )
        return cls(tp, pp, world_size // (tp * pp), ep, sequence_parallel)
