"""Tables of the metrics in the documentation."""

from __future__ import annotations

import re

from skipring.observability.metrics import METRICS
from tools.metrics_table import metrics_page


def test_metrics_page_has_a_row_for_each_metric() -> None:
    rows = re.findall(r"^\| `(\w+)` \|(?:[^|]*\|){3}$", metrics_page(), re.MULTILINE)
    assert rows == list(METRICS)
