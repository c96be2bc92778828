"""Who may speak for whom, as certificates say it.

Whoever holds the certificate called NAME may act as the node NAME and as every node
``NAME.something``; the one called ``supervisor`` is a supervisor's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skipring.core.peers import NodeId
from skipring.errors import MessageError
from skipring.wire.values import check_node


def peer_name(certificate: Mapping[str, Any] | None) -> NodeId | None:
    """The name in what ``getpeercert`` says of the other side; None if there is no clear one."""
    subject = certificate.get("subject", ()) if certificate else ()
    return name_in([text for part in subject for key, text in part if key == "commonName"])


def may_act_as(certificate_name: str, node: str) -> bool:
    """True if whoever holds the certificate of a name may speak for a node."""
    return bool(certificate_name) and (
        node == certificate_name or node.startswith(f"{certificate_name}.")
    )


def name_in(common_names: Sequence[str]) -> NodeId | None:
    """The one name among those of a certificate's subject that a node can have; None if none."""
    if len(common_names) != 1:
        return None
    try:
        check_node(common_names[0])
    except MessageError:
        return None
    return common_names[0]
