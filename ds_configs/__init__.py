"""DeepSpeed configurations as data: ready presets and the ``ds-config`` command.

This package imports neither torch nor DeepSpeed, so it runs on a laptop that has neither.
"""
