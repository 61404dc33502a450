"""How fast collectives are, and whether they are right: nccl-tests for any backend of torch.distributed."""
