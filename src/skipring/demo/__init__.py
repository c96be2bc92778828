"""The demo: a story of damage and healing, told in the terminal.

``story`` makes the scenes as values, ``picture`` and ``page`` turn them into text, ``stage``
shows them at a pace a person can follow.
"""
