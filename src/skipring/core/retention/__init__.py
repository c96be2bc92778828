"""Retention: which batches of a topic a member keeps (decision 0057)."""
