"""Watching a topic: what is seen of it as values, and their pictures on a terminal."""
