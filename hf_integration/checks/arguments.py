"""The flags of the checks."""

from __future__ import annotations

from dataclasses import dataclass, field

from hf_integration.errors import TrainingInputError


@dataclass
class CheckArguments:
    """Which checks run within a training."""

    check_gradients: int | None = field(
        default=None,
        metadata={
            "help": "Every so many steps, compare gradients and parameters of all ranks that must hold the "
            "same, bit by bit; the run ends where they differ."
        },
    )
    check_memory: int | None = field(
        default=None,
        metadata={
            "help": "Every so many steps, print each rank's memory, and which ranks take more and why."
        },
    )
    find_nonfinite: bool = field(
        default=False,
        metadata={
            "help": "Look at all values of each step; the run ends at the first nan or infinity, named."
        },
    )

    def check_the_checks(self, world_size: int) -> None:
        """Refuse what cannot be checked.

        Raises:
            TrainingInputError: a number of steps is below 1, or there is nothing to compare.
        """
        for name in ("check_gradients", "check_memory"):
            every = getattr(self, name)
            if every is not None and every < 1:
                raise TrainingInputError(f"--{name} is {every}; give a number of steps of 1 or more")
        if self.check_gradients is not None and world_size == 1:
            raise TrainingInputError(
                "--check_gradients compares ranks, but this run has one; leave it out, or start more"
            )
