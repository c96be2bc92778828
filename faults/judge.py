"""Judge of a run: compares acknowledged publications with those of survivors and readers.

Every publication of a run has its own payload, so the judge compares payloads. A publication is

- lost if it was acknowledged, and a survivor does not hold it or a reader did not get it;
- duplicated if a survivor holds it, or a reader got it, more than once;
- invented if a survivor holds it, or a reader got it, and no publisher sent it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from msgspec import Struct

from skipring.core.limits import listed

SHOWN_MAX = 3  # payloads named in one sentence


class Ledger:
    """Payloads that were published, and those of them that were acknowledged."""

    def __init__(self) -> None:
        self.tried: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.foreign: set[bytes] = set()  # from strangers, which may publish a payload twice

    def attempt(self, payload: bytes) -> None:
        """Record an attempt, before the request is sent."""
        self.tried.add(payload)

    def tolerate(self, payload: bytes) -> None:
        """Record a payload from a stranger: it may occur any number of times."""
        self.tried.add(payload)
        self.foreign.add(payload)

    def acknowledge(self, payload: bytes) -> None:
        """Record an acknowledgement."""
        self.tried.add(payload)
        self.acknowledged.add(payload)

    def acknowledge_all(self, payloads: Iterable[bytes]) -> None:
        """Record acknowledgements."""
        for payload in payloads:
            self.acknowledge(payload)


class Judgement(Struct, frozen=True):
    """Numbers of payloads, and the findings in words."""

    lost: int = 0
    duplicated: int = 0
    invented: int = 0
    reasons: tuple[str, ...] = ()

    def __add__(self, other: Self) -> Judgement:
        return Judgement(
            self.lost + other.lost,
            self.duplicated + other.duplicated,
            self.invented + other.invented,
            self.reasons + other.reasons,
        )


def judge(ledger: Ledger, holders: Mapping[str, Sequence[bytes]]) -> Judgement:
    """Compare the ledger with the payloads of each survivor and reader.

    A payload that several of them lack, hold twice or invent counts once.
    """
    lost: set[bytes] = set()
    duplicated: set[bytes] = set()
    invented: set[bytes] = set()
    reasons: list[str] = []
    for name, held in sorted(holders.items()):
        counts = Counter(held)
        found = {
            "lacks": ledger.acknowledged - counts.keys(),
            "has more than once": {
                payload
                for payload, count in counts.items()
                if count > 1 and payload not in ledger.foreign
            },
            "has, although no one published it,": counts.keys() - ledger.tried,
        }
        for total, (what, payloads) in zip(
            (lost, duplicated, invented), found.items(), strict=True
        ):
            total.update(payloads)
            if payloads:
                reasons.append(f"{name} {what} {_shown(payloads)}")
    return Judgement(len(lost), len(duplicated), len(invented), tuple(reasons))


def _shown(payloads: set[bytes]) -> str:
    return listed([repr(payload[:24])[1:] for payload in sorted(payloads)], SHOWN_MAX)
