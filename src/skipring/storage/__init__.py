"""What nodes and supervisors keep on disk: it may be damaged at any time, and is never believed.

``packs`` is the form of what is stored, ``database`` the SQLite file that holds it, ``promises``
what was promised to be durable, ``carving`` and ``recovery`` bring back what is intact;
``publications`` is what a node uses. ``trace`` is how publications came, ``deliveries`` its file.
``supervisor`` and ``identity`` stand for themselves.
"""
