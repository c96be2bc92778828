"""Demo of healing: a ring of real processes is damaged and recovers, step by step."""
