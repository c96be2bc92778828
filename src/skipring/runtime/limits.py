"""What the system lets a process have: sockets are files, and there is a limit on those."""

from __future__ import annotations


def allow_files(wanted: int) -> int:
    """Let this process open so many files, or as many as it may; return how many that is."""
    try:
        import resource  # noqa: PLC0415  (not on every system)
    except ImportError:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
