"""The parts of pipeline.py: the model, the contenders, what a rank measures, table and plot."""
