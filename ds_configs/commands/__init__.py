"""The commands of ``ds-config``, a module each.

A module offers ``HELP`` (one line), ``add_arguments(parser)`` and ``run(args) -> exit status``. Importing it
must be cheap, because ``ds-config --help`` imports them all: what is heavy is imported inside ``run``.
"""
