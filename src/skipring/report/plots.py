"""Style of figures: lines with ranges, dots with ranges, steps.

The page sets the colours of background, text and grid. Series differ in colour, symbol and dash, so
they remain distinguishable without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, log2
from typing import Any, Final

import plotly.graph_objects as go
from msgspec import Struct
from plotly.subplots import make_subplots

# Paul Tol's "bright" scheme: distinct for the colour-blind, readable on white and on black.
COLOURS: Final = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377")
SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
DASHES: Final = ("solid", "dash", "dot", "dashdot")
FONT: Final = "system-ui, sans-serif"
HEIGHT: Final = 430
_MARGIN: Final = {"l": 64, "r": 16, "t": 24, "b": 68}
_JITTER: Final = 0.16  # Guess: the share of the distance to the next n that shifted ranges use.
_LEGEND_BELOW_MAX: Final = 4  # Guess: more names need a column


class Point(Struct, frozen=True):
    """Value with its observed range and its hover text."""

    x: float
    y: float
    low: float
    high: float
    text: str


class Series(Struct, frozen=True):
    """Points of one series; a theoretical line has no markers."""

    name: str
    points: tuple[Point, ...]
    is_theory: bool = False


class Axis(Struct, frozen=True):
    """Title with unit, and scale of an axis."""

    title: str
    is_log: bool = False
    starts_at_zero: bool = True


class Panel(Struct, frozen=True):
    """Plot in a row of several."""

    title: str
    series: tuple[Series, ...]
    x: Axis
    y: Axis


def line_figure(series: Sequence[Series], x: Axis, y: Axis) -> go.Figure:
    """Return lines through points, each with its range."""
    return panel_figure([Panel("", tuple(series), x, y)])


def panel_figure(panels: Sequence[Panel]) -> go.Figure:
    """Return line plots side by side; a series has one style and one legend entry in all."""
    figure = make_subplots(
        cols=len(panels),
        subplot_titles=[panel.title for panel in panels] if len(panels) > 1 else None,
        horizontal_spacing=0.09,
    )
    names = list(dict.fromkeys(series.name for panel in panels for series in panel.series))
    shown: set[str] = set()
    for column, panel in enumerate(panels, 1):
        for series in panel.series:
            look = names.index(series.name)
            trace = _line(series, look, _shift(look, len(names), panel.x))
            figure.add_trace(trace.update(showlegend=series.name not in shown), 1, column)
            shown.add(series.name)
        figure.update_xaxes(_axis(panel.x, _xs(panel)), col=column)
        figure.update_yaxes(_axis(panel.y, _ys(panel)), col=column)
    return _laid_out(figure, HEIGHT, len(names))


def _line(series: Series, look: int, shift: float) -> go.Scatter:
    points = [point for point in series.points if isfinite(point.y)]
    colour = COLOURS[look % len(COLOURS)]
    if series.is_theory:
        line = {"color": "#888888", "dash": DASHES[1 + look % 3], "width": 1.5}
        marks: dict[str, Any] = {"mode": "lines", "line": line}
    else:
        dash = DASHES[look // len(COLOURS) % len(DASHES)]
        marks = {
            "mode": "lines+markers",
            "line": {"color": colour, "width": 2, "dash": dash},
            "marker": {"symbol": SYMBOLS[look % len(SYMBOLS)], "size": 8},
            "error_y": _range(points, colour),
        }
    return go.Scatter(
        x=[point.x * shift for point in points],
        y=[point.y for point in points],
        text=[point.text for point in points],
        hovertemplate="%{text}<extra></extra>",
        name=series.name,
        legendgroup=series.name,
        **marks,
    )


def _range(points: Sequence[Point], colour: str) -> dict[str, Any]:
    """Return error bars from the lowest to the highest value; an infinite bound has no bar."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [point.high - point.y if isfinite(point.high) else 0 for point in points],
        "arrayminus": [point.y - point.low if isfinite(point.low) else 0 for point in points],
        "thickness": 1,
        "width": 3,
        "color": colour,
    }


def _shift(look: int, looks: int, x: Axis) -> float:
    """Return a factor that separates the ranges of several series on a logarithmic axis."""
    if not x.is_log or looks == 1:
        return 1.0
    return float(2 ** (_JITTER * (look / (looks - 1) - 0.5)))


def dot_figure(names: Sequence[str], series: Sequence[Series], x: Axis) -> go.Figure:
    """Return a dot plot with one row per name; the y of a point is an index into ``names``."""
    figure = go.Figure()
    for look, one in enumerate(series):
        offset = 0.5 * (look / max(1, len(series) - 1) - 0.5) if len(series) > 1 else 0.0
        figure.add_trace(_dots(one, look, offset))
    height = max(220, 90 + 26 * len(names))
    figure.update_xaxes(_axis(x, [p.y for one in series for p in one.points]))
    figure.update_yaxes(
        tickvals=list(range(len(names))),
        ticktext=list(names),
        range=[len(names) - 0.4, -0.6],
        showgrid=True,
        automargin=True,
    )
    return _laid_out(figure, height, len(series))


def _dots(series: Series, look: int, offset: float) -> go.Scatter:
    points = [point for point in series.points if isfinite(point.y)]
    colour = COLOURS[look % len(COLOURS)]
    return go.Scatter(
        x=[point.y for point in points],
        y=[point.x + offset for point in points],
        error_x=_range(points, colour),
        text=[point.text for point in points],
        hovertemplate="%{text}<extra></extra>",
        mode="markers",
        marker={"color": colour, "symbol": SYMBOLS[look % len(SYMBOLS)], "size": 8},
        name=series.name,
    )


def band_figure(series: Sequence[Series], x: Axis, y: Axis, *, shape: str) -> go.Figure:
    """Return lines of a shape (``hv``: steps), each with a band between its bounds."""
    figure = go.Figure()
    for look, one in enumerate(series):
        colour = COLOURS[look % len(COLOURS)]
        xs = [point.x for point in one.points]
        for bound, fill in (("low", None), ("high", "tonexty")):
            figure.add_scatter(
                x=xs,
                y=[getattr(point, bound) for point in one.points],
                mode="lines",
                line={"width": 0, "shape": shape, "color": colour},
                fill=fill,
                fillcolor=f"rgba{(*_rgb(colour), 0.18)}",
                hoverinfo="skip",
                showlegend=False,
                legendgroup=one.name,
            )
        figure.add_scatter(
            x=xs,
            y=[point.y for point in one.points],
            mode="lines",
            line={"shape": shape, "color": colour, "width": 2, "dash": DASHES[look % len(DASHES)]},
            text=[point.text for point in one.points],
            hovertemplate="%{text}<extra></extra>",
            name=one.name,
            legendgroup=one.name,
        )
    xs = [point.x for one in series for point in one.points] if shape == "linear" else []
    figure.update_xaxes(_axis(x, xs))
    figure.update_yaxes(_axis(y, ()))
    return _laid_out(figure, HEIGHT, len(series))


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


# --- axes and layout -------------------------------------------------------------------


def _xs(panel: Panel) -> list[float]:
    return [point.x for series in panel.series for point in series.points]


def _ys(panel: Panel) -> list[float]:
    return [point.y for series in panel.series for point in series.points]


def _axis(axis: Axis, values: Iterable[float]) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "title": {"text": axis.title, "standoff": 10},
        "showgrid": True,
        "automargin": True,
    }
    seen = sorted({value for value in values if isfinite(value) and value > 0})
    if axis.is_log and seen:
        return chosen | {"type": "log"} | _powers_of_two(seen[0], seen[-1])
    if axis.is_log:
        return chosen | {"type": "log"}
    return chosen | ({"rangemode": "tozero"} if axis.starts_at_zero else {})


def _powers_of_two(low: float, high: float) -> dict[str, Any]:
    """Return ticks at powers of two, few enough to read."""
    first, last = int(log2(low) // 1), int(-(-log2(high) // 1))
    step = max(1, (last - first) // 8)
    ticks = [2.0**power for power in range(first, last + 1, step)]
    return {"tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}


def _laid_out(figure: go.Figure, height: int, names: int) -> go.Figure:
    below = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    beside = {"orientation": "v", "x": 1.01, "xanchor": "left", "y": 1, "yanchor": "top"}
    titled = bool(figure.layout.annotations)
    is_short = names <= _LEGEND_BELOW_MAX
    return figure.update_layout(
        template="none",
        height=height,
        font={"family": FONT, "size": 13},
        margin={**_MARGIN, "t": 64 if is_short and titled else 44 if is_short or titled else 24},
        legend={**below, "y": 1.1} if is_short and titled else below if is_short else beside,
        showlegend=names > 1,
        hovermode="closest",
    )
