"""The state of a topic as a value: where it comes from, how it is written, whether it is right."""
