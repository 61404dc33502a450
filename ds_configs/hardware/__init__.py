"""Hardware presets: what a card, its links and its node can do, each figure with its public source."""

from ds_configs.hardware.chip import Figure, Hardware
from ds_configs.hardware.presets import hardware_figures, hardware_names, load_hardware

__all__ = ["Figure", "Hardware", "hardware_figures", "hardware_names", "load_hardware"]
