"""Spark sessions with the data sources and packages of skipring."""

from __future__ import annotations

from skipring.spark.session.builder import opened, start, stop

__all__ = ["opened", "start", "stop"]
