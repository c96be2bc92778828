"""Figures of the report on a lake; the page defines the colours of text and background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import plotly.graph_objects as go

from skipring.report.plots import COLOURS, DASHES, FONT

HEIGHT: Final = 340
DOTS_MAX: Final = 60  # Guess: more dots hide the line.
BAR_PX: Final = 28  # Guess: the name beside a bar is readable.
WAYS: Final = {"spread": COLOURS[0], "repair": COLOURS[1]}
_PATTERNS: Final = {"spread": "", "repair": "/"}
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


def shares_over_time(times: Times, counts: Mapping[str, Sequence[int]]) -> go.Figure:
    """Draw the share of each origin in the deliveries over time."""
    figure = go.Figure()
    for way, values in counts.items():
        figure.add_bar(
            x=list(times),
            y=list(values),
            name=way,
            marker=_bar(way),
            hovertemplate=f"%{{x|%d %b %H:%M:%S}}<br>%{{y:,}} by {way}<extra></extra>",
        )
    figure.update_layout(barmode="stack", barnorm="percent", bargap=0)
    figure.update_yaxes(title="% of deliveries", range=[0, 100])
    return _laid_out(figure, len(counts))


def distribution_figure(
    curves: Mapping[str, Sequence[float]], shares: Sequence[float]
) -> go.Figure:
    """Draw the share of deliveries up to each latency."""
    figure = go.Figure()
    for look, (way, values) in enumerate(curves.items()):
        figure.add_scatter(
            x=list(values),
            y=[100 * share for share in shares],
            name=way,
            mode="lines",
            line={"color": WAYS[way], "width": 2.5, "dash": DASHES[look]},
            hovertemplate=f"%{{y:.4~g}} % within %{{x:.3~s}} ms<extra>{way}</extra>",
        )
    figure.update_xaxes(title="latency in ms", **_LOG)
    figure.update_yaxes(title="% of deliveries", range=[0, 101])
    return _laid_out(figure, len(curves))


def hops_figure(hops: Sequence[int], counts: Sequence[int]) -> go.Figure:
    """Draw the number of deliveries by hops."""
    figure = go.Figure()
    figure.add_bar(
        x=list(hops),
        y=list(counts),
        marker=_bar("spread"),
        hovertemplate="%{y:,} deliveries over %{x} hops<extra></extra>",
    )
    figure.update_xaxes(title="hops", dtick=1)
    figure.update_yaxes(title="deliveries")
    figure.update_layout(bargap=0.3)
    return _laid_out(figure, 1)


def nodes_figure(names: Sequence[str], counts: Mapping[str, Sequence[int]]) -> go.Figure:
    """Draw the share of each origin in the deliveries of each node."""
    figure = go.Figure()
    for way, values in counts.items():
        figure.add_bar(
            y=list(names),
            x=list(values),
            name=way,
            orientation="h",
            marker=_bar(way),
            hovertemplate=f"%{{y}}: %{{x:,}} by {way}<extra></extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_xaxes(title="deliveries")
    figure.update_yaxes(autorange="reversed", type="category", automargin=True)
    return _laid_out(figure, len(counts), max(220, 120 + BAR_PX * len(names)))


def _bar(way: str) -> dict[str, Any]:
    """Return a style of bars that differs by pattern, not only by colour."""
    return {"color": WAYS[way], "pattern": {"shape": _PATTERNS[way], "solidity": 0.35}}


def _laid_out(figure: go.Figure, names: int, height: int = HEIGHT) -> go.Figure:
    figure.update_xaxes(showgrid=False, automargin=True)
    figure.update_yaxes(showgrid=True, automargin=True)
    return figure.update_layout(
        template="none",
        height=height,
        font={"family": FONT, "size": 13},
        margin={"l": 64, "r": 16, "t": 36 if names > 1 else 16, "b": 48},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        showlegend=names > 1,
        hovermode="closest",
    )
