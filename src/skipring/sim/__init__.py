"""Simulator: a seeded world that drives the machines of ``core`` one step at a time."""
