"""The demo: a story of damage and healing, told with real processes.

``story`` has the scenes as values, ``page`` turns them into text and ``stage`` shows them;
``telling`` does what is told, to the processes of ``ring``; ``show`` is the whole of it.
"""
