"""Benchmarks by scenario, alone or against the genuine Java store; see bench/README.md."""
