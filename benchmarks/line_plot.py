"""Lines over a logarithmic grid as an SVG, without a library."""

from __future__ import annotations

import math
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 620, 20, 300


@dataclass(frozen=True)
class Line:
    """One line and what it is called; both values of each point are above zero."""

    title: str
    color: str
    points: list[tuple[float, float]]


def draw(lines: list[Line], x_title: str, y_title: str) -> str:
    """Draw all lines in one picture, both axes logarithmic."""
    xs, ys = (_decades([point[axis] for line in lines for point in line.points]) for axis in (0, 1))

    def at(point: tuple[float, float]) -> tuple[float, float]:
        x = LEFT + (RIGHT - LEFT) * (math.log10(point[0]) - xs[0]) / (xs[-1] - xs[0])
        y = BOTTOM - (BOTTOM - TOP) * (math.log10(point[1]) - ys[0]) / (ys[-1] - ys[0])
        return round(x, 1), round(y, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for exponent in xs:
        x, _ = at((10.0**exponent, 10.0 ** ys[0]))
        parts.append(f'<path d="M{x} {TOP}V{BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{x}" y="{BOTTOM + 16}" text-anchor="middle">{_power(exponent)}</text>')
    for exponent in ys:
        _, y = at((10.0 ** xs[0], 10.0**exponent))
        parts.append(f'<path d="M{LEFT} {y}H{RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{_power(exponent)}</text>')
    parts.append(f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="black"/>')
    parts.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 34}" text-anchor="middle">{x_title}</text>')
    middle = (TOP + BOTTOM) / 2
    parts.append(f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">{y_title}</text>')
    for number, line in enumerate(lines):
        places = [at(point) for point in sorted(line.points)]
        path = "L".join(f"{x} {y}" for x, y in places)
        parts.append(f'<path d="M{path}" fill="none" stroke="{line.color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{line.color}"/>' for x, y in places]
        x, y = LEFT, BOTTOM + 62 + number * 20
        parts.append(f'<rect x="{x}" y="{y - 9}" width="14" height="4" fill="{line.color}"/>')
        parts.append(f'<text x="{x + 20}" y="{y}">{line.title}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _decades(values: list[float]) -> list[int]:
    """The powers of ten around all values, at least two."""
    low = math.floor(math.log10(min(values)))
    return list(range(low, max(low + 1, math.ceil(math.log10(max(values)))) + 1))


def _power(exponent: int) -> str:
    return (
        f"{10**exponent:g}"
        if 0 <= exponent <= 3
        else f"10{str(exponent).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
    )
