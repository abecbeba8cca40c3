"""The signs of the drawn set, as tiles: hate symbols, and what looks like them.

`SYMBOLS` are the few that are unmistakable. `ALIKES` are peaceful or plain
signs that share their strokes: crosses of many churches, swastikas as Hindus,
Buddhists and Jains use them (upright, with dots, on petals, on a map), flags
with a disc, wheels, blades, bolts. Each entry says how far it may be turned;
signs whose meaning lies in standing upright or tilted are turned little.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from drawing import Colour, Point, Points, Tile, any_colour, circle, polar, regular, shade, turned

BLACK, WHITE, RED = (18, 18, 20), (240, 240, 238), (200, 16, 30)
YELLOW, GOLD, ORANGE, GREEN, BLUE = (245, 205, 40), (205, 160, 60), (240, 130, 30), (40, 130, 70), (35, 80, 170)
GREY, BROWN = (130, 130, 130), (110, 75, 50)
Draw = Callable[[Tile, np.random.Generator, Colour], None]

# Name → how it is drawn, and the most degrees that it is turned by.
SYMBOLS: dict[str, tuple[Draw, float]] = {}
ALIKES: dict[str, tuple[Draw, float]] = {}


def _sign(where: dict[str, tuple[Draw, float]], turn: float) -> Callable[[Draw], Draw]:
    def enter(draw: Draw) -> Draw:
        where[draw.__name__] = (draw, turn)
        return draw

    return enter


def bars(length: float, width: float) -> list[Points]:
    """A cross of equal arms, as two rectangles."""
    a, b = length, width / 2
    upright = [(-b, -a), (b, -a), (b, a), (-b, a)]
    return [upright, [(y, x) for x, y in upright]]


def hooks(length: float, width: float, left: bool = False) -> list[Points]:
    """A hooked cross standing upright, as rectangles; hooks to the right unless told."""
    a, w = length, width
    hook = [(-w / 2, -a), (a, -a), (a, -a + w), (-w / 2, -a + w)]
    parts = [*bars(a, w), *(turned(hook, 90 * n) for n in range(4))]
    return [[(-x, y) for x, y in part] for part in parts] if left else parts


def lay_parts(tile: Tile, parts: list[Points], fill: Colour, degrees: float = 0, scale: float = 1,
              centre: Point = (0, 0)) -> None:
    for part in parts:
        tile.polygon(turned(part, degrees, scale, centre), fill)


def bolt(lean: float = 0.22) -> Points:
    """One angular S."""
    path = [(lean, -1.0), (-lean, 0.15), (lean, -0.15), (-lean, 1.0)]
    wide = 0.17
    return [(x - wide, y) for x, y in path] + [(x + wide, y) for x, y in reversed(path)]


def latin(tile: Tile, fill: Colour, width: float, low: float = 1.0) -> None:
    tile.rectangle(-width / 2, -1, width / 2, low, fill)
    tile.rectangle(-0.6, -0.45 - width / 2, 0.6, -0.45 + width / 2, fill)


def star(points: int, radius: float, inner: float, centre: Point = (0, 0)) -> Points:
    return [
        polar(radius if n % 2 == 0 else inner, -90 + 180 * n / points, centre) for n in range(2 * points)
    ]


def banner(tile: Tile, fill: Colour) -> None:
    tile.rectangle(-1.5, -1, 1.5, 1, fill)


def crescent(tile: Tile, fill: Colour, back: Colour, radius: float = 0.5) -> None:
    tile.disc(radius, fill)
    tile.disc(radius * 0.8, back, (radius * 0.26, 0))
    tile.polygon(star(5, radius * 0.4, radius * 0.16, (radius * 0.5, 0)), fill)


# --- hate symbols ------------------------------------------------------------


@_sign(SYMBOLS, 25)
def hooked_flag(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    banner(tile, shade(RED, rng))
    tile.disc(rng.uniform(0.62, 0.75), shade(WHITE, rng, 12))
    lay_parts(tile, hooks(0.4, rng.uniform(0.13, 0.17)), shade(BLACK, rng, 15), 45 + rng.uniform(-4, 4))


@_sign(SYMBOLS, 20)
def hooked_roundel(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    edge = shade((RED, BLACK, ink)[rng.integers(3)], rng)
    tile.disc(1, edge)
    tile.disc(rng.uniform(0.78, 0.9), shade(WHITE, rng, 14))
    lay_parts(tile, hooks(0.5, rng.uniform(0.15, 0.2)), shade(BLACK, rng, 15), 45 + rng.uniform(-5, 5))


@_sign(SYMBOLS, 12)
def hooked_ring(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    width = rng.uniform(0.06, 0.14)
    tile.ring(0.92, width, ink)
    lay_parts(tile, hooks(0.53, rng.uniform(0.13, 0.19), bool(rng.integers(2))), ink, 45 + rng.uniform(-5, 5))


@_sign(SYMBOLS, 8)
def hooked_sprayed(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    """Drawn by hand, tilted."""
    width, side = rng.uniform(0.09, 0.17), 1 if rng.random() < 0.7 else -1
    for n in range(2):
        path = [(side * 0.68, -0.68), (0, -0.68), (0, 0.68), (-side * 0.68, 0.68)]
        shaky = [(x + rng.normal(0, 0.03), y + rng.normal(0, 0.03)) for x, y in path]
        tile.line(turned(shaky, 45 + 90 * n), width, ink)


@_sign(SYMBOLS, 30)
def lightning_runes(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    back = rng.integers(3)
    if back == 0:
        banner(tile, shade(BLACK, rng))
        ink = shade((225, 225, 225), rng)
    elif back == 1:
        tile.ring(1, 0.1, ink)
    for side in (-1, 1):
        tile.polygon(turned(bolt(rng.uniform(0.2, 0.24)), 0, 0.72, (side * 0.3, 0)), ink)


@_sign(SYMBOLS, 180)
def black_sun(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    width, bend = rng.uniform(0.07, 0.1), rng.uniform(13, 18)
    tile.ring(0.95, width * 1.2, ink)
    if rng.random() < 0.7:
        tile.ring(0.48, width * 0.8, ink)
    tile.disc(0.16, ink)
    for n in range(12):
        at = 30 * n
        tile.line([polar(0.1, at), polar(0.6, at), polar(0.66, at + bend), polar(0.93, at + bend)], width, ink)


@_sign(SYMBOLS, 8)
def burning_cross(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    """A cross in flames, by night."""
    banner(tile, shade((22, 20, 30), rng, 10))
    wood = shade(BROWN, rng)
    tile.rectangle(-0.07, -0.55, 0.07, 0.95, wood)
    tile.rectangle(-0.5, -0.2, 0.5, -0.06, wood)
    stems = [(0.0, y) for y in np.linspace(-0.5, 0.9, 14)] + [(x, -0.12) for x in np.linspace(-0.5, 0.5, 11)]
    for colour, size in ((shade(RED, rng), 0.22), (shade(ORANGE, rng), 0.16), (shade(YELLOW, rng), 0.1)):
        for x, y in stems:
            tip = (x + rng.normal(0, 0.05), y - size * rng.uniform(0.9, 2))
            tile.polygon([(x - size * 0.45, y), tip, (x + size * 0.45, y), (x, y + size * 0.35)], colour)


@_sign(SYMBOLS, 25)
def blood_drop_cross(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    red, white = shade(RED, rng), shade(WHITE, rng, 12)
    tile.disc(1, red)
    arm = [(-0.14, 0), (-0.26, -0.93), (0.26, -0.93), (0.14, 0)]
    lay_parts(tile, [turned(arm, 90 * n) for n in range(4)], white)
    tile.ring(0.97, 0.07, BLACK)
    tile.polygon(turned([(-0.2, -0.2), (0.2, -0.2), (0.2, 0.2), (-0.2, 0.2)], 45, 1.25), BLACK)
    tile.polygon(turned([(-0.2, -0.2), (0.2, -0.2), (0.2, 0.2), (-0.2, 0.2)], 45, 1.05), white)
    tile.disc(0.1, red, (0, 0.04))
    tile.polygon([(-0.085, 0), (0.06, -0.17), (0.095, 0.02)], red)


@_sign(SYMBOLS, 20)
def crossed_circle(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    """The round white-power cross: equal arms that stand out of a ring."""
    if rng.random() < 0.3:
        banner(tile, shade((RED, BLACK, WHITE)[rng.integers(3)], rng))
        ink = shade(WHITE if rng.random() < 0.6 else BLACK, rng)
    width = rng.uniform(0.17, 0.26)
    tile.ring(0.58, width * rng.uniform(0.8, 1), ink)
    lay_parts(tile, bars(rng.uniform(0.86, 0.98), width), ink)


# --- swastikas in peaceful use -----------------------------------------------


def _dots(tile: Tile, fill: Colour, at: float) -> None:
    for n in range(4):
        tile.disc(0.09, fill, polar(at, 45 + 90 * n))


@_sign(ALIKES, 10)
def hindu_sign(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    red = shade((RED, (190, 60, 20), (230, 120, 20))[rng.integers(3)], rng)
    if rng.random() < 0.5:
        tile.disc(1.02, shade(YELLOW, rng))
    lay_parts(tile, hooks(0.62, rng.uniform(0.12, 0.18)), red)
    _dots(tile, red, 0.43)


@_sign(ALIKES, 10)
def rangoli(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    petals = int(rng.integers(6, 13))
    for n in range(petals):
        place = polar(0.74, 360 * n / petals)
        tile.disc(0.3, shade((RED, ORANGE, YELLOW, GREEN)[n % 4], rng), place)
    tile.disc(0.72, shade((250, 225, 150), rng))
    colour = shade(RED, rng)
    lay_parts(tile, hooks(0.42, 0.11), colour)
    _dots(tile, colour, 0.3)


@_sign(ALIKES, 8)
def jain_sign(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    colour = shade((GOLD, RED, BLUE)[rng.integers(3)], rng)
    lay_parts(tile, hooks(0.42, 0.12), colour, 0, 1, (0, 0.4))
    for n in (-1, 0, 1):
        tile.disc(0.075, colour, (n * 0.26, -0.2))
    lower = [polar(0.42, at, (0, -0.62)) for at in range(10, 171, 8)]
    upper = [polar(0.42, at, (0, -0.78)) for at in range(164, 15, -8)]
    tile.polygon(lower + upper, colour)
    tile.disc(0.075, colour, (0, -0.78))


@_sign(ALIKES, 8)
def manji(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    """On a temple's roof or lantern: gold, hooks to the left."""
    if rng.random() < 0.5:
        tile.polygon([(-1.4, -0.2), (-1.0, -0.45), (0, -1.05), (1.0, -0.45), (1.4, -0.2)], shade((70, 60, 60), rng))
        tile.rectangle(-0.9, -0.2, 0.9, 1.0, shade((165, 60, 45), rng))
        lay_parts(tile, hooks(0.4, 0.12, left=True), shade(GOLD, rng), 0, 1, (0, 0.35))
    else:
        tile.disc(0.95, shade((90, 30, 25), rng))
        tile.ring(0.95, 0.08, shade(GOLD, rng))
        lay_parts(tile, hooks(0.5, 0.14, left=True), shade(GOLD, rng))


@_sign(ALIKES, 6)
def temple_map(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    banner(tile, shade((232, 232, 222), rng, 8))
    for _ in range(6):
        ends = [(rng.uniform(-1.5, 1.5), -1.0), (rng.uniform(-1.5, 1.5), 1.0)]
        tile.line(ends, rng.uniform(0.04, 0.12), shade(((250, 220, 130), WHITE, (170, 200, 230))[rng.integers(3)], rng))
    for _ in range(4):
        x, y = rng.uniform(-1.2, 1.2), rng.uniform(-0.8, 0.8)
        lay_parts(tile, hooks(0.2, 0.05, left=True), shade((120, 70, 40), rng), 0, 1, (x, y))
        tile.text("Temple", 0.13, shade((60, 60, 60), rng), (x, y + 0.3))


# --- crosses -----------------------------------------------------------------


@_sign(ALIKES, 25)
def latin_cross(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    latin(tile, ink, rng.uniform(0.1, 0.28))


@_sign(ALIKES, 180)
def greek_cross(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    if rng.random() < 0.4:
        tile.disc(1.05, shade(WHITE, rng))
        ink = shade((RED, GREEN)[rng.integers(2)], rng)
    lay_parts(tile, bars(rng.uniform(0.6, 0.75), rng.uniform(0.2, 0.45)), ink)


@_sign(ALIKES, 15)
def orthodox_cross(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    latin(tile, ink, 0.16)
    tile.rectangle(-0.3, -0.82, 0.3, -0.7, ink)
    tile.polygon([(-0.42, 0.32), (0.42, 0.56), (0.42, 0.7), (-0.42, 0.46)], ink)


@_sign(ALIKES, 180)
def jerusalem_cross(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    lay_parts(tile, bars(0.9, 0.14), ink)
    cap = [(-0.24, -0.9), (0.24, -0.9), (0.24, -0.76), (-0.24, -0.76)]
    lay_parts(tile, [turned(cap, 90 * n) for n in range(4)], ink)
    for n in range(4):
        lay_parts(tile, bars(0.18, 0.09), ink, 0, 1, polar(0.64, 45 + 90 * n))


@_sign(ALIKES, 180)
def maltese_cross(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    arm = [(-0.06, -0.06), (-0.42, -0.95), (0, -0.7), (0.42, -0.95), (0.06, -0.06)]
    lay_parts(tile, [turned(arm, 90 * n) for n in range(4)], ink)


@_sign(ALIKES, 10)
def high_cross(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    """An Irish stone cross: a ring about the crossing, a long foot, a base, knots."""
    stone = shade((150, 150, 140), rng)
    tile.ring(0.42, 0.13, stone, (0, -0.4))
    tile.rectangle(-0.13, -1.0, 0.13, 0.85, stone)
    tile.rectangle(-0.6, -0.53, 0.6, -0.27, stone)
    tile.polygon([(-0.4, 1.08), (-0.28, 0.8), (0.28, 0.8), (0.4, 1.08)], stone)
    dark = shade((90, 90, 85), rng)
    for y in np.arange(-0.85, 0.75, 0.2):
        tile.ring(0.07, 0.03, dark, (0, y))


@_sign(ALIKES, 20)
def church(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    tile.rectangle(-0.9, 0.1, 0.9, 1.0, shade((225, 215, 195), rng))
    tile.polygon([(-1.0, 0.1), (0, -0.4), (1.0, 0.1)], shade((130, 60, 45), rng))
    tile.rectangle(-0.04, -1.0, 0.04, -0.35, ink)
    tile.rectangle(-0.2, -0.85, 0.2, -0.77, ink)
    tile.rectangle(-0.18, 0.5, 0.18, 1.0, shade(BROWN, rng))


# --- flags and badges --------------------------------------------------------


@_sign(ALIKES, 25)
def disc_flag(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    """Red with a white disc, or the like, and something harmless in it."""
    field, disc = shade((RED, RED, GREEN, BLUE)[rng.integers(4)], rng), shade(WHITE, rng, 12)
    banner(tile, field)
    tile.disc(rng.uniform(0.6, 0.75), disc)
    inside, form = shade((BLACK, RED, BLUE)[rng.integers(3)], rng), rng.integers(7)
    if form == 0:
        crescent(tile, inside, disc)
    elif form == 1:
        tile.polygon(star(5, 0.5, 0.2), inside)
    elif form == 2:
        tile.text("ABCEFHKMNPRTXYZ"[rng.integers(15)], 0.8, inside)
    elif form == 3:
        lay_parts(tile, bars(0.45, 0.18), inside)
    elif form == 4:
        tile.polygon(regular(3, 0.5), inside)
    elif form == 5:
        lay_parts(tile, bars(0.45, 0.14), inside, 45)
    else:
        tile.polygon(star(12, 0.5, 0.26), inside)


@_sign(ALIKES, 25)
def nordic_flag(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    field, cross = ((RED, WHITE), (BLUE, YELLOW), (WHITE, BLUE), (BLUE, WHITE))[rng.integers(4)]
    banner(tile, shade(field, rng))
    tile.rectangle(-0.65, -1, -0.35, 1, shade(cross, rng))
    tile.rectangle(-1.5, -0.15, 1.5, 0.15, shade(cross, rng))


@_sign(ALIKES, 25)
def striped_flag(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    banner(tile, shade(WHITE, rng))
    first, second = shade((RED, BLUE, GREEN, BLACK)[rng.integers(4)], rng), shade((YELLOW, RED, BLUE)[rng.integers(3)], rng)
    if rng.random() < 0.5:
        tile.rectangle(-1.5, -1, 1.5, -0.33, first)
        tile.rectangle(-1.5, 0.33, 1.5, 1, second)
    else:
        tile.disc(0.6, shade(RED, rng))


@_sign(ALIKES, 180)
def badge(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    """A firm's round sign."""
    edge = shade(RED if rng.random() < 0.35 else any_colour(rng), rng)
    tile.disc(1, edge)
    tile.disc(0.85, shade(WHITE, rng))
    form, back = rng.integers(4), shade(BLACK, rng) if rng.random() < 0.4 else edge
    if form == 0:
        tile.text("ABDGKMQRSTW"[rng.integers(11)], 0.9, back)
    elif form == 1:
        for n in range(3):
            tile.line([(0, 0), polar(0.84, 120 * n - 90)], 0.1, back)
    elif form == 2:
        for n in range(3):
            tile.line([(-0.5, 0.1 + 0.25 * n), (0, -0.35 + 0.25 * n), (0.5, 0.1 + 0.25 * n)], 0.1, back)
    else:
        for n, quarter in enumerate((back, shade(WHITE, rng)) * 2):
            tile.polygon([(0, 0), *(polar(0.85, 90 * n + at) for at in range(0, 91, 6))], quarter)


# --- wheels, blades and stars ------------------------------------------------


@_sign(ALIKES, 10)
def windmill(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    tile.polygon([(-0.3, 1.05), (-0.16, -0.2), (0.16, -0.2), (0.3, 1.05)], shade((150, 110, 80), rng))
    start = rng.uniform(0, 90)
    for n in range(4):
        blade = [(-0.03, 0), (-0.03, -0.95), (0.25, -0.95), (0.25, -0.25), (0.03, -0.25), (0.03, 0)]
        tile.polygon(turned(blade, start + 90 * n, 1, (0, -0.15)), ink)


@_sign(ALIKES, 180)
def pinwheel(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    colours = [any_colour(rng), any_colour(rng)]
    for n in range(4):
        tile.polygon(turned([(0, 0), (0, -0.95), (0.62, -0.62)], 90 * n), colours[n % 2])
    tile.disc(0.1, ink)


@_sign(ALIKES, 180)
def fan(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    blades = int(rng.integers(3, 6))
    for n in range(blades):
        blade = [polar(r, at) for r, at in ((0.1, -20), (0.6, -40), (0.88, -22), (0.9, 8), (0.5, 10), (0.1, 20))]
        tile.polygon(turned(blade, 360 * n / blades), ink)
    tile.disc(0.18, ink)
    if rng.random() < 0.6:
        tile.ring(0.98, 0.05, ink)


@_sign(ALIKES, 180)
def spoked_wheel(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    """A ship's, a cart's or a dharma wheel."""
    spokes, out = int(rng.choice([6, 8, 8, 12, 16])), rng.choice([0.72, 1.0])
    tile.ring(0.72, 0.1, ink)
    tile.disc(0.15, ink)
    for n in range(spokes):
        tile.line([(0, 0), polar(out, 360 * n / spokes)], 0.06, ink)


@_sign(ALIKES, 180)
def sun(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    colour = shade((YELLOW, ORANGE, ink)[rng.integers(3)], rng)
    tile.disc(0.45, colour)
    rays = int(rng.choice([8, 12, 16]))
    for n in range(rays):
        tile.line([polar(0.58, 360 * n / rays), polar(0.95, 360 * n / rays)], 0.07, colour)


@_sign(ALIKES, 180)
def clock(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    tile.disc(0.95, shade(WHITE, rng))
    tile.ring(0.95, 0.08, ink)
    for n in range(12):
        tile.line([polar(0.75, 30 * n), polar(0.86, 30 * n)], 0.04, ink)
    for length in (0.5, 0.7):
        tile.line([(0, 0), polar(length, rng.uniform(0, 360))], 0.06, ink)


@_sign(ALIKES, 180)
def gear(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    tile.polygon([polar(0.9 if n // 2 % 2 else 0.72, 360 * n / 48) for n in range(48)], ink)
    tile.clear(circle(0.35))


@_sign(ALIKES, 180)
def snowflake(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    for n in range(6):
        tile.line([(0, 0), polar(0.95, 60 * n)], 0.07, ink)
        for at in (0.45, 0.7):
            for side in (-1, 1):
                tile.line([polar(at, 60 * n), polar(0.28, 60 * n + side * 50, polar(at, 60 * n))], 0.05, ink)


@_sign(ALIKES, 180)
def star_of_david(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    for start in (-90, 90):
        corners = regular(3, 0.9, (0, 0), start)
        tile.line([*corners, corners[0]], rng.uniform(0.08, 0.13), ink)


@_sign(ALIKES, 20)
def peace_sign(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    width = rng.uniform(0.09, 0.16)
    tile.ring(0.85, width, ink)
    for at in (-90, 90, 45, 135):
        tile.line([(0, 0), polar(0.85, at)], width, ink)


@_sign(ALIKES, 180)
def target(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    """A cross-hair or rings: thin lines, or a gap in the middle."""
    if rng.random() < 0.5:
        tile.ring(0.62, 0.04, ink)
        for n in range(4):
            tile.line([polar(0.22, 90 * n), polar(0.95, 90 * n)], 0.035, ink)
        tile.disc(0.05, ink)
    else:
        for n in range(4):
            tile.disc(0.95 - 0.24 * n, ink if n % 2 == 0 else shade(WHITE, rng))


# --- bolts, patterns, fire, letters ------------------------------------------


@_sign(ALIKES, 20)
def bolt_sign(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    """High voltage, or a storm in the forecast."""
    flash = [(0.12, -0.75), (-0.3, 0.12), (-0.02, 0.08), (-0.14, 0.72), (0.32, -0.2), (0.02, -0.14), (0.3, -0.75)]
    if rng.random() < 0.6:
        tile.polygon(regular(3, 1.1, (0, 0.1)), BLACK)
        tile.polygon(regular(3, 0.95, (0, 0.1)), shade(YELLOW, rng))
        tile.polygon(turned(flash, 0, 0.75, (0, 0.15)), BLACK)
    else:
        for x in (-0.5, 0, 0.5):
            tile.disc(0.4, shade((185, 195, 205), rng), (x, -0.5))
        for x in ((0,), (-0.35, 0.4))[rng.integers(2)]:
            tile.polygon(turned(flash, 0, 0.6, (x, 0.45)), shade(YELLOW, rng))


@_sign(ALIKES, 180)
def maze(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    cells, pitch = 9, 1.8 / 9
    for i in range(cells):
        for j in range(cells):
            x, y = -0.9 + i * pitch, -0.9 + j * pitch
            end = (x + pitch, y) if rng.random() < 0.5 else (x, y + pitch)
            tile.line([(x, y), end], 0.06, ink)


@_sign(ALIKES, 180)
def key_pattern(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    """A Greek border: hooks in a row."""
    for row in (-0.55, 0.55):
        for n in range(-2, 3):
            path = [(-0.28, 0.25), (-0.28, -0.25), (0.2, -0.25), (0.2, 0.12), (-0.05, 0.12), (-0.05, -0.05)]
            tile.line([(x + 0.6 * n, y + row) for x, y in path], 0.07, ink)


@_sign(ALIKES, 180)
def tyre_marks(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    for side in (-0.45, 0.45):
        for y in np.arange(-1.0, 1.0, 0.2):
            tile.line([(side - 0.22, y), (side, y + 0.12), (side + 0.22, y)], 0.06, ink)


@_sign(ALIKES, 8)
def campfire(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    banner(tile, shade((22, 20, 30), rng, 10))
    tile.line([(-0.6, 0.85), (0.6, 0.6)], 0.14, shade(BROWN, rng))
    tile.line([(-0.6, 0.6), (0.6, 0.85)], 0.14, shade(BROWN, rng))
    for colour, size in ((shade(RED, rng), 0.5), (shade(ORANGE, rng), 0.36), (shade(YELLOW, rng), 0.22)):
        for _ in range(7):
            x = rng.uniform(-0.4, 0.4) * size * 2
            tip = (x * 0.4 + rng.normal(0, 0.08), 0.6 - size * rng.uniform(1.2, 2.6))
            tile.polygon([(x - size * 0.4, 0.6), tip, (x + size * 0.4, 0.6)], colour)


@_sign(ALIKES, 20)
def candle_cross(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    """A cross among candles in a dark church."""
    banner(tile, shade((35, 26, 24), rng, 10))
    latin(tile, shade(GOLD, rng), 0.14, 0.6)
    for x in (-1.1, -0.75, 0.75, 1.1):
        tile.rectangle(x - 0.07, 0.2, x + 0.07, 1.0, shade((235, 225, 200), rng))
        tile.polygon([(x - 0.06, 0.16), (x, -0.1), (x + 0.06, 0.16)], shade(YELLOW, rng))


@_sign(ALIKES, 25)
def lettering(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    words = ("PASS", "KISS", "55", "SOS", "ZZ", "S", "X", "#", "+", "GLASS", "BOSS", "S S", "LTD", "NZ")
    tile.text(words[rng.integers(len(words))], rng.uniform(0.5, 0.9), ink)


@_sign(ALIKES, 180)
def knot(tile: Tile, rng: np.random.Generator, ink: Colour) -> None:
    """A triquetra, and often a ring through it."""
    for n in range(3):
        centre = polar(0.42, 120 * n - 90)
        arc = [polar(0.62, 120 * n - 90 + at, centre) for at in range(-128, 129, 8)]
        tile.line(arc, 0.09, ink)
    if rng.random() < 0.6:
        tile.ring(0.55, 0.08, ink)
