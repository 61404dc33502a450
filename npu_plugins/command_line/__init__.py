"""The commands of `npu-plugins`, a module for each family; a command imports what it needs when it runs."""
