"""How the heads of an attention module are divided, and what the module must be told about it."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from npu_plugins.tensor_parallel.errors import TensorParallelError

KEY_VALUE_NAMES = ("k_proj", "v_proj", "key_proj", "value_proj", "key", "value")


class Heads(NamedTuple):
    """The heads of one attention module, over all ranks."""

    query: int
    key_value: int
    head_dim: int
    ranks: int

    @classmethod
    def of(cls, module: nn.Module | None, config: Any, ranks: int) -> Heads | None:
        """Return the heads of a module; None if it is no attention module (it has no `head_dim`)."""
        head_dim = getattr(module, "head_dim", None) or getattr(module, "head_size", None)
        config = getattr(module, "config", config)
        query = getattr(config, "num_attention_heads", None)
        if not isinstance(head_dim, int) or not isinstance(query, int):
            return None
        key_value = getattr(config, "num_key_value_heads", None) or query
        return cls(query, key_value, head_dim, ranks)

    def check(self, name: str, module: nn.Module) -> None:
        """Refuse heads that cannot be divided: of the attention module `module`, whose projection is `name`.

        Raises:
            TensorParallelError: naming the module and the numbers.
        """
        fitting = [n for n in range(1, self.query + 1) if self.query % n == 0 and self._key_value_fit(n)]
        mend = f"choose a tp among {', '.join(map(str, fitting))}"
        if self.query % self.ranks:
            raise TensorParallelError(
                f"{name}: {self.query} attention heads cannot be divided over {self.ranks} tensor-parallel "
                f"ranks; {mend}"
            )
        if not self._key_value_fit(self.ranks):
            raise TensorParallelError(
                f"{name}: {self.key_value} key-value heads and {self.ranks} tensor-parallel ranks: one must "
                f"divide the other; {mend}"
            )

        if self.shares_key_values and not hasattr(module, "num_key_value_groups"):
            raise TensorParallelError(
                f"{name}: {self.key_value} key-value heads cannot be shared by {self.ranks} tensor-parallel "
                f"ranks, for {type(module).__name__} has no num_key_value_groups to tell it so; choose a tp "
                f"that divides {self.key_value}"
            )

    def _key_value_fit(self, ranks: int) -> bool:
        return self.key_value % ranks == 0 or ranks % self.key_value == 0

    @property
    def shares_key_values(self) -> bool:
        """Whether there are fewer key-value heads than ranks, so that several ranks use the same one."""
        return self.key_value < self.ranks

    def shared_units(self, name: str, out_features: int) -> int | None:
        """Return the number of key-value heads if module `name` makes them and ranks must share them."""
        makes_them = name.rpartition(".")[2] in KEY_VALUE_NAMES
        if self.shares_key_values and makes_them and out_features == self.key_value * self.head_dim:
            return self.key_value
        return None

    def merged_parts(self, name: str) -> list[int]:
        """Return the output features of query, key and value in one merged matrix.

        Raises:
            TensorParallelError: ranks would have to share key-value heads.
        """
        if self.shares_key_values:
            raise TensorParallelError(
                f"{name}: {self.key_value} key-value heads, merged in one matrix with the query, cannot be "
                f"shared by {self.ranks} tensor-parallel ranks; choose a tp that divides {self.key_value}"
            )
        key_value = self.key_value * self.head_dim
        return [self.query * self.head_dim, key_value, key_value]

    def local(self, kind: str, value: int) -> int:
        """Return this rank's share of a number of heads (kind "heads") or key-value heads ("kv_heads")."""
        if kind == "kv_heads":
            return value // min(self.ranks, self.key_value)
        return value // self.ranks

    def tell(self, module: nn.Module) -> None:
        """Tell an attention module how many query heads share a key-value head on this rank."""
        if self.shares_key_values and hasattr(module, "num_key_value_groups"):
            module.num_key_value_groups = self.query // self.ranks
