"""Benchmarks: one command for each published figure."""
