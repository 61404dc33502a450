"""The exceptions of the pipeline package."""

from npu_plugins.errors import NpuPluginsError


class PipelineError(NpuPluginsError):
    """The pipeline cannot be built or run as asked."""


class ScheduleError(PipelineError):
    """No such schedule exists for these ranks and micro-batches, or an action list cannot be run."""


class StageError(PipelineError):
    """A stage, its data or its loss failed; raised on every rank, naming where and what."""


class PeerLostError(PipelineError):
    """A transfer with another stage failed or timed out: that rank has ended or hangs."""
