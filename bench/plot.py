"""The growth curves as one SVG: a panel for each, sizes on a logarithmic scale, cost from zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bench.measures import Curve

WIDTH, HEIGHT = 360, 240
LEFT, RIGHT, TOP, BOTTOM = 54, 20, 40, 44
COLUMNS = 2
INK, FAINT, LINE, FLOOR = "#333", "#ddd", "#1f6feb", "#888"


def draw(curves: Sequence[Curve]) -> str:
    """Draw all curves."""
    rows = math.ceil(len(curves) / COLUMNS) or 1
    panels = [
        f'<g transform="translate({n % COLUMNS * WIDTH} {n // COLUMNS * HEIGHT})">{_panel(curve)}</g>'
        for n, curve in enumerate(curves)
    ]
    width, height = WIDTH * COLUMNS, HEIGHT * rows
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="{INK}">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(panels) + "\n</svg>\n"
    )


class _Scale:
    """Where a point of a curve lies in its panel."""

    def __init__(self, curve: Curve) -> None:
        sizes = [size for size, _ in curve.points + curve.floor]
        self.least, self.most = math.log10(max(1, min(sizes))), math.log10(max(1, *sizes))
        self.top = _round_up(max(cost for _, cost in curve.points + curve.floor) * 1.1)

    def x(self, size: int) -> float:
        span = self.most - self.least
        part = (math.log10(max(1, size)) - self.least) / span if span else 0.5
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(self, cost: float) -> float:
        return HEIGHT - BOTTOM - cost / self.top * (HEIGHT - TOP - BOTTOM)


def _panel(curve: Curve) -> str:
    scale = _Scale(curve)
    parts = [f'<text x="{LEFT}" y="20" font-size="13" font-weight="600">{escape(curve.name)}</text>']
    for step in range(5):
        cost = scale.top * step / 4
        y = scale.y(cost)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{cost:.3g}</text>')
    ticks = [curve.points[0], curve.points[-1]] if len(curve.points) > 3 else curve.points
    for size, _ in ticks:
        parts.append(f'<text x="{scale.x(size):.1f}" y="{HEIGHT - 28}" text-anchor="middle">{size:,}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">{escape(curve.size_is)}</text>')
    parts.append(f'<text x="{LEFT - 6}" y="{TOP - 8}" text-anchor="end">{escape(curve.unit)}</text>')
    if curve.floor:
        parts.append(_line(scale, curve.floor, FLOOR, 'stroke-dasharray="4 3"'))
    parts.append(_line(scale, curve.points, LINE, 'stroke-width="2"'))
    parts += [f'<circle cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="3" fill="{LINE}"/>' for x, y in curve.points]
    return "".join(parts)


def _line(scale: _Scale, points: Sequence[tuple[int, float]], colour: str, style: str) -> str:
    path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" {style}/>'


def _round_up(value: float) -> float:
    """Go up to the next number that reads well."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * step for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if unit * step >= value)
