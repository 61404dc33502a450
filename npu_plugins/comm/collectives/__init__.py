"""torch.distributed's collectives for every dtype and op, also those that HCCL refuses; see `dtypes`."""

from npu_plugins.comm.collectives.coalesced import (
    all_gather_coalesced,
    all_reduce_coalesced,
    reduce_scatter_coalesced,
)
from npu_plugins.comm.collectives.copies import (
    all_gather,
    all_gather_into_tensor,
    all_to_all,
    all_to_all_single,
    batch_isend_irecv,
    broadcast,
    gather,
    irecv,
    isend,
    recv,
    scatter,
    send,
)
from npu_plugins.comm.collectives.reductions import (
    all_reduce,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
)

__all__ = [
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "batch_isend_irecv",
    "broadcast",
    "gather",
    "irecv",
    "isend",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_coalesced",
    "reduce_scatter_tensor",
    "scatter",
    "send",
]
