"""Faults of real processes, one row each, judged by what was acknowledged (``make faults``).

No product code imports this package.
"""
