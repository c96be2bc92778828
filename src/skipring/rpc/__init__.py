"""Clients for processes that are not members of a ring."""
