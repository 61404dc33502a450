"""Process groups of a job: which ranks divide what, and what they do together besides a layer's own work."""

from npu_plugins.comm.batch import broadcast_batch, check_same_batch
from npu_plugins.comm.devices import check_group_device
from npu_plugins.comm.errors import CommError
from npu_plugins.comm.gradient_norm import clip_grad_norm_, count_once, gradient_norm
from npu_plugins.comm.groups import GroupOptions
from npu_plugins.comm.mesh import ProcessMesh
from npu_plugins.comm.topology import Coordinate, Topology

__all__ = [
    "CommError",
    "Coordinate",
    "GroupOptions",
    "ProcessMesh",
    "Topology",
    "broadcast_batch",
    "check_group_device",
    "check_same_batch",
    "clip_grad_norm_",
    "count_once",
    "gradient_norm",
]
