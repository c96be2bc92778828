"""Measurements and demonstrations; no product code imports this package."""
