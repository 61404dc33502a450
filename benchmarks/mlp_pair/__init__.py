"""The parts of tensor_parallel.py: the case, the contenders, what a rank measures, table and plot."""
