"""TCP and TLS transport between the processes of a cluster."""
