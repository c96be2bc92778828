"""Figure of the report on a lake; the page defines the colours of text and background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import plotly.graph_objects as go

from skipring.report.plots import COLOURS, DASHES, FONT

HEIGHT: Final = 340
DOTS_MAX: Final = 60  # Guess: more dots hide the line.
_LOG: Final = {"type": "log", "dtick": "D2", "minorloglabels": "complete"}  # 1, 2, 5, 10, 20 ...

Times = Sequence[datetime]


def times_figure(
    lines: Mapping[str, tuple[Times, Sequence[float]]], unit: str, *, is_log: bool = False
) -> go.Figure:
    """Draw lines over time, each with its own colour and dash."""
    figure = go.Figure()
    for look, (name, (times, values)) in enumerate(lines.items()):
        figure.add_scatter(
            x=list(times),
            y=list(values),
            name=name,
            mode="lines+markers" if len(times) <= DOTS_MAX else "lines",
            line={"color": COLOURS[look % len(COLOURS)], "dash": DASHES[look % len(DASHES)]},
            hovertemplate=f"%{{x|%d %b %H:%M:%S}}<br>%{{y:.3~s}} {unit}<extra>{name}</extra>",
        )
    figure.update_yaxes(_LOG if is_log else {"rangemode": "tozero"})
    figure.update_yaxes(title=unit)
    return _laid_out(figure, len(lines))


def _laid_out(figure: go.Figure, names: int) -> go.Figure:
    figure.update_xaxes(showgrid=False, automargin=True)
    figure.update_yaxes(showgrid=True, automargin=True)
    return figure.update_layout(
        template="none",
        height=HEIGHT,
        font={"family": FONT, "size": 13},
        margin={"l": 64, "r": 16, "t": 36 if names > 1 else 16, "b": 48},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        showlegend=names > 1,
        hovermode="closest",
    )
