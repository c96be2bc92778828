"""Pipelines as projects of files: topics as a lake of typed tables and the user's SQL tables."""
