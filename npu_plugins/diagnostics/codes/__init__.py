"""Error codes of HCCL, ACL, the runtime and torch_npu: what each means and what to do."""

from npu_plugins.diagnostics.codes.explain import Explanation, explain

__all__ = ["Explanation", "explain"]
