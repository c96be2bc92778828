"""Hosts of the protocol: the processes of nodes and supervisors."""
