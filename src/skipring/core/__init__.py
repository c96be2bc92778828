"""The protocol: machines that take one event and return effects, without IO, clock or globals."""
