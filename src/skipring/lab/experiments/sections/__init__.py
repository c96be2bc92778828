"""Sections of the report about the results of a lab."""
