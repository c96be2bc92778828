"""Metrics, logs and clocks of a process."""
