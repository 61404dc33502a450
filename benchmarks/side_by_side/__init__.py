"""What the benchmarks that compare us with others over several ranks share: starting ranks, taking turns."""
