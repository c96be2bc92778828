"""Rows of the fault matrix, by what is damaged."""
