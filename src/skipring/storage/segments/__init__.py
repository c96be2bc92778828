"""Segment log: the record batches of each topic in append-only files.

``format`` is the layout of a file, ``segment`` a file with its index in memory, ``chunk`` the
entries of one read, ``tail`` the entries of one commit. ``topic_directory`` holds the files of
one topic, ``recovery`` restores what is intact, ``log`` is the log of one topic, ``store`` the
interface of a node. No node uses it yet (decision 53).
"""
