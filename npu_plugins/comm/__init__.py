"""Process groups of a job: which ranks divide what, and the groups they talk in."""

from npu_plugins.comm.devices import check_group_device
from npu_plugins.comm.errors import CommError
from npu_plugins.comm.mesh import ProcessMesh
from npu_plugins.comm.topology import Coordinate, Topology

__all__ = ["CommError", "Coordinate", "ProcessMesh", "Topology", "check_group_device"]
