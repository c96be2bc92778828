"""Fault matrix of real processes, judged by acknowledged publications (``make faults``).

No product code imports this package.
"""
