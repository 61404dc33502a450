"""A simulated CANN: the host libraries with which the real torch_npu runs on a machine without a card."""
