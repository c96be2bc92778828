"""Asynchronous client library: connections, subscriptions, readers."""
