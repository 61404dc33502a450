"""Causal-LM training with the HF Trainer on Ascend NPUs; ``hf_integration/train.py`` is the program."""
