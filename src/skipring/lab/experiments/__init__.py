"""Experiment lab: thousands of simulations as Spark tasks, compared with the paper."""
