"""The state of training that any layout can go on from: weights and optimizer under Hugging Face's names.

A checkpoint's folder ``training_state`` holds one safetensors file of each rank that has something to write,
and ``index.json`` (`index.StateIndex`), which says where each piece of each parameter is. Ranks write their
own pieces, without gathering; a rank of another layout reads the slices that it needs. Nothing is unpickled.
"""

from npu_plugins.checkpoint.state.index import (
    INDEX_FILE,
    STATE_FOLDER,
    Fragment,
    ParameterState,
    StateIndex,
    holds_state,
)
from npu_plugins.checkpoint.state.loading import load_training_state
from npu_plugins.checkpoint.state.reading import StateReader
from npu_plugins.checkpoint.state.saving import save_training_state
from npu_plugins.checkpoint.state.trained import Trained

__all__ = [
    "INDEX_FILE",
    "STATE_FOLDER",
    "Fragment",
    "ParameterState",
    "StateIndex",
    "StateReader",
    "Trained",
    "holds_state",
    "load_training_state",
    "save_training_state",
]
