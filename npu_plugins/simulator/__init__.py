"""A simulated CANN: the host libraries that let the real torch_npu run on a machine without an Ascend card."""
