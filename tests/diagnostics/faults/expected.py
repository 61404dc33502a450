"""What must be told of each fault: rank 1 and the cause."""

from __future__ import annotations

from types import MappingProxyType

HANGS = MappingProxyType(
    {  # fault: what the report must call its cause, and words of its sentence, on NPUs and with gloo
        "sleeps": ("not entered", "read_slow_disk", "read_slow_disk"),
        "never_enters": ("left", "as if all was done", "as if all was done"),
        "wrong_shape": ("shape", "AllReduce of 3 float32", "all_reduce of Float [3]"),
        "wrong_order": ("op", "called Broadcast", "called broadcast"),
        "wrong_dtype": ("dtype", "AllReduce of 2 int32", "all_reduce of Int [2]"),
        "killed": ("killed", "SIGKILL", "SIGKILL"),
        "out_of_memory": ("out of memory", "in hoard", "in hoard"),
    }
)
CHECKED = MappingProxyType(
    {  # fault: what the check of the program must say
        "bit_flipped": ["layers.1.up.weight", "rank 1 differs from ranks 0, 2", "[5, 7]", "bit 20 alone"],
        "nan_in_layer": ["step 3", "came up on rank 1 in the forward of layers.1.up", "1 nan"],
        "other_config": ["optimizer.params.lr is 0.001 on rank 1", "but 0.01 on ranks 0, 2"],
        "other_seed": ["the state of torch's generator is", "on rank 1", "on ranks 0, 2"],
        "slow_link": ["the link of ranks 1, 2", "is slow"],
    }
)
