"""Whether transcripts are compared or, by ``make golden``, written anew."""

import os

import pytest


@pytest.fixture
def is_rewriting() -> bool:
    """True if what is said now is to replace what the transcripts say."""
    return os.environ.get("SKIPRING_GOLDEN") == "rewrite"
