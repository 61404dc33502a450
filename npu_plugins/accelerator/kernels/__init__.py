"""Optimizer kernels that DeepSpeed's optimizers call through the op builders."""
