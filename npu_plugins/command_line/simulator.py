"""`npu-plugins simulator`: the simulated NPUs."""

from __future__ import annotations

import argparse


def add(commands: argparse._SubParsersAction) -> None:
    """Add the family to the parser."""
    simulator = commands.add_parser("simulator", help="the simulated NPUs that NPU_SIM=<number> turns on")
    actions = simulator.add_subparsers(required=True, metavar="ACTION")
    build = actions.add_parser(
        "build", help="compile the simulated CANN into the cache, if that is not done yet"
    )
    build.set_defaults(run=_build)
    info = actions.add_parser(
        "info", help="show what NPU_SIM and its companions ask for, and where the build is"
    )
    info.set_defaults(run=_info)
    clean = actions.add_parser("clean", help="delete everything the simulator has built")
    clean.set_defaults(run=_clean)


def _build(options: argparse.Namespace) -> int:
    from npu_plugins.simulator.build import ensure_built

    print(ensure_built())
    return 0


def _info(options: argparse.Namespace) -> int:
    from npu_plugins.simulator.build import find_built
    from npu_plugins.simulator.settings import cache_root, format_bytes, settings_from, simulator_requested
    from npu_plugins.simulator.toolchain import find_toolchain

    if simulator_requested():
        settings = settings_from()
        print(f"simulated NPUs: {settings.npus}, of which {settings.visible_npus} visible here")
        print(f"memory of each: {format_bytes(settings.hbm_bytes)}")
        for link in settings.slow_links:
            print(f"slow link:      NPU {link.npus[0]} to NPU {link.npus[1]}, {link.megabytes:g} MB/s")
    else:
        print("simulated NPUs: none (NPU_SIM is not set)")
    toolchain = find_toolchain()
    print(f"compiler:       {toolchain.compiler_version()}")
    print(f"cache:          {cache_root()}")
    print(f"build:          {find_built() or 'not built yet'}")
    return 0


def _clean(options: argparse.Namespace) -> int:
    from npu_plugins.simulator.build import clean
    from npu_plugins.simulator.settings import cache_root, format_bytes

    print(f"{format_bytes(clean())} freed in {cache_root()}")
    return 0
