"""Demo of healing: the steps damage a ring of real processes, and the ring recovers."""
