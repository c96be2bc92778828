"""Faults, each a small value that decides one message's fate (GUIDE: composed in a scenario)."""
from __future__ import annotations
from random import Random
from typing import Protocol
from skipring.world.snapshot import Parcel
class Fate(Protocol):
    def decide(self, parcel: Parcel, delays: list[int], rng: Random) -> list[int]: ...
