"""Durable storage of nodes and supervisors; every stored value is verified when it is read.

``store`` is the interface of a node. A topic has a directory (``topic_directory``) of segment files
(``segment_format``, ``segment``); ``delivery_log`` records how batches arrived.
"""
