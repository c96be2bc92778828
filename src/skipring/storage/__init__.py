"""Durable storage of nodes and supervisors; every stored value is verified when it is read.

``segment`` is the format of stored publications, ``sqlite`` the file that holds them,
``durable_mark`` the high-water mark outside of it, ``page_scan`` and ``recovery`` restore intact
records, ``store`` is the interface of a node. ``delivery_log`` and ``delivery_file`` record how
publications arrived. ``segments`` stores record batches in files; no node uses it yet.
"""
