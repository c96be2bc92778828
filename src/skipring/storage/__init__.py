"""Durable storage of nodes and supervisors; every stored value is verified when it is read.

``store`` is the interface of a node, ``topic_log`` the log of one topic. ``segment_format`` is the
layout of its files, ``segment`` one file with its index, ``topic_directory`` their directory,
``recovery`` restores what is intact. ``delivery_log`` records how batches arrived.
"""
