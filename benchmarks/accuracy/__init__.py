"""The parts of memory_accuracy.py: cases, the models they train, and what a rank measures."""
