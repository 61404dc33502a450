"""Layers, loss and collectives that divide each matrix of a model over a tensor-parallel group.

Sources: Megatron-LM (arXiv 1909.08053 §3); sequence parallelism: Korthikanti et al. (arXiv 2205.05198 §4.2).
"""

from npu_plugins.tensor_parallel.collectives import (
    copy_to_region,
    gather_from_region,
    gather_sequence,
    reduce_from_region,
    reduce_scatter_sequence,
    scatter_to_region,
    sum_gradients,
)
from npu_plugins.tensor_parallel.deferred import WeightGradients
from npu_plugins.tensor_parallel.embedding import VocabParallelEmbedding
from npu_plugins.tensor_parallel.errors import TensorParallelError
from npu_plugins.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from npu_plugins.tensor_parallel.loss import vocab_parallel_cross_entropy
from npu_plugins.tensor_parallel.merged import MergedColumnParallelLinear, SharedColumnParallelLinear
from npu_plugins.tensor_parallel.mlp import GatedParallelMLP, ParallelMLP
from npu_plugins.tensor_parallel.qkv import QKVParallelLinear
from npu_plugins.tensor_parallel.random import RandomStreams, ShardedDropout
from npu_plugins.tensor_parallel.shard import Shard, gather_full, shard_of
from npu_plugins.tensor_parallel.sharding import shard_model

__all__ = [
    "ColumnParallelLinear",
    "GatedParallelMLP",
    "MergedColumnParallelLinear",
    "ParallelMLP",
    "QKVParallelLinear",
    "RandomStreams",
    "RowParallelLinear",
    "Shard",
    "ShardedDropout",
    "SharedColumnParallelLinear",
    "TensorParallelError",
    "VocabParallelEmbedding",
    "WeightGradients",
    "copy_to_region",
    "gather_from_region",
    "gather_full",
    "gather_sequence",
    "reduce_from_region",
    "reduce_scatter_sequence",
    "scatter_to_region",
    "shard_model",
    "shard_of",
    "sum_gradients",
    "vocab_parallel_cross_entropy",
]
