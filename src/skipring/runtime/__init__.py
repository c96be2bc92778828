"""Sockets, disk and clock: the host that drives the machines of the core for real."""
