"""Pipeline parallelism: schedules as data, and the engine that runs them.

Nothing is imported here, so that `npu_plugins.pipeline.schedules` can be had without torch.
"""
