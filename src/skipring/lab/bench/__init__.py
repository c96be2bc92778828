"""Measuring: each figure comes from a command that anybody can run again."""
