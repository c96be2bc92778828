"""State of a topic as a value: snapshot, world file, adversaries, legitimacy."""
