"""Parts of `benchmarks/torch_npu_suite.py`: run torch_npu's own tests, judge and tabulate the outcomes."""
