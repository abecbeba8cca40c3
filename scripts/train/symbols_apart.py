"""The drawn signs of the set apart: a source that no head was trained on.

Nothing of symbol_shapes.py or of the grounds in drawing.py is used. A sign is
a skeleton of lines; every pixel takes its distance to them, and a stroke
(hard, chalk, stitches, outline, neon, halftone, stencil) makes paint of it.
Perspective is a bent coordinate system, not a warped picture. Grounds are
wood, asphalt, checked cloth, lights out of focus, a screen and tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image

Lines = list[np.ndarray]
HEIGHT, WIDTH = 256, 320


def _bow(radius: float, start: float = 0, end: float = 360, x: float = 0, y: float = 0) -> np.ndarray:
    at = np.radians(np.linspace(start, end, max(int(abs(end - start) / 8), 3)))
    return np.stack([x + radius * np.cos(at), y + radius * np.sin(at)], axis=1)


def _path(*places: tuple[float, float]) -> np.ndarray:
    return np.array(places, dtype=float)


def _spun(line: np.ndarray, degrees: float) -> np.ndarray:
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return line @ np.array([[c, s], [-s, c]])


def _around(line: np.ndarray, times: int, start: float = 0) -> Lines:
    return [_spun(line, start + 360 * n / times) for n in range(times)]


def _dot(x: float, y: float) -> np.ndarray:
    return _path((x, y), (x + 0.01, y))


def _hooked(size: float, tilt: float, left: bool = False) -> Lines:
    arms = [_path((0, 0), (0, -size), (size, -size))]
    lines = [part for arm in arms for part in _around(arm, 4)]
    return [_spun(line * (-1 if left else 1, 1), tilt) for line in lines]


# --- skeletons: symbols ------------------------------------------------------


def tilted_in_ring(rng: np.random.Generator) -> Lines:
    return [*_hooked(0.42, 45 + rng.uniform(-6, 6), bool(rng.integers(2))), _bow(rng.uniform(0.8, 0.95))]


def tilted_on_disc(rng: np.random.Generator) -> Lines:
    return _hooked(0.38, 45 + rng.uniform(-5, 5))


def two_runes(rng: np.random.Generator) -> Lines:
    lean = rng.uniform(0.14, 0.2)
    rune = _path((lean, -0.8), (-lean, 0.12), (lean, -0.12), (-lean, 0.8))
    return [rune - (0.3, 0), rune + (0.3, 0), *([_bow(1.0)] if rng.random() < 0.4 else [])]


def sun_of_runes(rng: np.random.Generator) -> Lines:
    ray = _path((0.18, 0), (0.6, 0), (0.62, 0.19), (0.9, 0.28))
    return [*_around(ray, 12), _bow(0.95), _bow(0.18)]


def ringed_cross(rng: np.random.Generator) -> Lines:
    return [_bow(0.58), *_around(_path((0, 0), (0.92, 0)), 4)]


# --- skeletons: look-alikes --------------------------------------------------


def upright_with_dots(rng: np.random.Generator) -> Lines:
    dots = [_dot(0.33 * x, 0.33 * y) for x in (-1, 1) for y in (-1, 1)]
    return [*_hooked(0.66, rng.uniform(-4, 4)), *dots]


def upright_left_in_lotus(rng: np.random.Generator) -> Lines:
    petals = _around(_bow(0.26, -110, 110, 0.72), int(rng.integers(6, 10)))
    return [*_hooked(0.36, 0, left=True), *petals]


def tall_cross(rng: np.random.Generator) -> Lines:
    return [_path((0, -0.95), (0, 0.95)), _path((-0.55, -0.4), (0.55, -0.4))]


def three_barred_cross(rng: np.random.Generator) -> Lines:
    bars = [_path((-0.28, -0.72), (0.28, -0.72)), _path((-0.35, 0.36), (0.35, 0.6))]
    return [*tall_cross(rng), *bars]


def stone_cross(rng: np.random.Generator) -> Lines:
    foot = [_path((-0.35, 0.95), (0.35, 0.95)), _path((-0.25, 0.85), (0.25, 0.85))]
    return [*tall_cross(rng), _bow(0.36, 0, 360, 0, -0.4), *foot]


def six_points(rng: np.random.Generator) -> Lines:
    corner = _path((0, -0.9), (0.78, 0.45), (-0.78, 0.45), (0, -0.9))
    return [corner, -corner]


def peace(rng: np.random.Generator) -> Lines:
    return [_bow(0.85), _path((0, -0.85), (0, 0.85)), _path((0, 0), (0.6, 0.6)), _path((0, 0), (-0.6, 0.6))]


def crystal(rng: np.random.Generator) -> Lines:
    twig = _path((0.4, 0), (0.66, 0.24))
    return [*_around(_path((0, 0), (0.95, 0)), 6), *_around(twig, 6), *_around(twig * (1, -1), 6)]


def one_flash(rng: np.random.Generator) -> Lines:
    sign = _path((0, -1.05), (0.95, 0.6), (-0.95, 0.6), (0, -1.05))
    return [_path((0.18, -0.6), (-0.2, 0.1), (0.16, 0.0), (-0.16, 0.5)), sign]


def mill(rng: np.random.Generator) -> Lines:
    blade = _path((0, 0), (0, -0.9), (0.22, -0.9), (0.22, -0.2), (0, -0.2))
    return [*_around(blade, 4, rng.uniform(0, 90)), _path((0, 0), (-0.25, 1.05)), _path((0, 0), (0.25, 1.05))]


def sight(rng: np.random.Generator) -> Lines:
    return [_bow(0.62), *_around(_path((0.25, 0), (0.95, 0)), 4), _dot(0, 0)]


def helm(rng: np.random.Generator) -> Lines:
    return [_bow(0.62), _bow(0.2), *_around(_path((0, 0), (0.95, 0)), int(rng.choice([6, 8, 12])))]


def bright_sun(rng: np.random.Generator) -> Lines:
    return [_bow(0.42), *_around(_path((0.58, 0), (0.92, 0)), int(rng.choice([8, 12, 16])))]


def three_rays(rng: np.random.Generator) -> Lines:
    return [_bow(0.9), *_around(_path((0, 0), (0.9, 0)), 3, -90)]


def coil(rng: np.random.Generator) -> Lines:
    side, places, x, y = 0.1, [(0.0, 0.0)], 0.0, 0.0
    for n in range(14):
        x, y = x + side * (1, 0, -1, 0)[n % 4], y + side * (0, 1, 0, -1)[n % 4]
        places.append((x, y))
        side += 0.1
    return [_path(*places)]


def treads(rng: np.random.Generator) -> Lines:
    return [_path((x - 0.25, y), (x, y + 0.15), (x + 0.25, y)) for x in (-0.4, 0.4) for y in np.arange(-0.95, 0.9, 0.26)]


def loops(rng: np.random.Generator) -> Lines:
    at = np.radians(np.linspace(0, 360, 120))
    reach = 0.9 * np.abs(np.cos(at * rng.choice([1.5, 2])))
    return [np.stack([reach * np.cos(at), reach * np.sin(at)], axis=1)]


def moon_on_disc(rng: np.random.Generator) -> Lines:
    return [_bow(0.42, 40, 320), _bow(0.3, 40, 320, 0.12), _dot(0.35, 0)]


def plus_on_disc(rng: np.random.Generator) -> Lines:
    return _around(_path((0, 0), (0.42, 0)), 4, rng.choice([0, 45]))


Skeleton = Callable[[np.random.Generator], Lines]
# Skeleton, most degrees it is turned by, and whether it stands on a disc on a coloured field.
SYMBOLS: list[tuple[Skeleton, float, bool]] = [
    (tilted_in_ring, 10, False), (tilted_on_disc, 20, True), (two_runes, 25, False), (sun_of_runes, 180, False),
    (ringed_cross, 20, False),
]
ALIKES: list[tuple[Skeleton, float, bool]] = [
    (upright_with_dots, 8, False), (upright_left_in_lotus, 8, False), (tall_cross, 20, False), (moon_on_disc, 20, True),
    (three_barred_cross, 15, False), (stone_cross, 12, False), (six_points, 180, False), (peace, 20, False),
    (plus_on_disc, 20, True), (crystal, 180, False), (one_flash, 20, False), (mill, 15, False), (sight, 180, False),
    (helm, 180, False), (bright_sun, 180, False), (three_rays, 180, False), (coil, 180, False), (treads, 180, False),
    (loops, 180, False),
]
SETS = {"symbol": SYMBOLS, "alike": ALIKES}


# --- grounds -----------------------------------------------------------------


def _grain(rng: np.random.Generator, step: int) -> np.ndarray:
    """Noise in squares of `step` pixels."""
    small = rng.random((HEIGHT // step + 1, WIDTH // step + 1))
    return np.kron(small, np.ones((step, step)))[:HEIGHT, :WIDTH]


def _tone(rng: np.random.Generator, low: float = 0.1, high: float = 0.95) -> np.ndarray:
    return rng.uniform(low, high, 3)


def wood(rng: np.random.Generator) -> np.ndarray:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    rings = np.sin((y + 12 * np.sin(x / rng.uniform(30, 90))) / rng.uniform(2, 7)) * 0.12
    planks = np.where(y % int(rng.integers(50, 100)) < 3, 0.5, 1.0)
    return np.array([0.68, 0.47, 0.29])[None, None] * rng.uniform(0.5, 1.3) * ((1 + rings) * planks)[..., None]


def asphalt(rng: np.random.Generator) -> np.ndarray:
    speck = 0.5 * _grain(rng, 1) + 0.3 * _grain(rng, 2) + 0.2 * _grain(rng, 8)
    return np.repeat((rng.uniform(0.15, 0.5) + 0.25 * speck)[..., None], 3, axis=2)


def checked(rng: np.random.Generator) -> np.ndarray:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    pitch = int(rng.integers(12, 50))
    over = (x // pitch % 2)[..., None] * 0.5 * _tone(rng) + (y // pitch % 2)[..., None] * 0.5 * _tone(rng)
    return 0.5 * _tone(rng) + 0.6 * over


def lights(rng: np.random.Generator) -> np.ndarray:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    ground = np.ones((HEIGHT, WIDTH, 3)) * _tone(rng, 0.02, 0.25)
    for _ in range(25):
        reach = rng.uniform(8, 40)
        spot = (x - rng.uniform(0, WIDTH)) ** 2 + (y - rng.uniform(0, HEIGHT)) ** 2 < reach**2
        ground[spot] += 0.25 * _tone(rng)
    return ground


def screen(rng: np.random.Generator) -> np.ndarray:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    ground = _tone(rng) * (1 - (x / WIDTH)[..., None]) + _tone(rng) * (x / WIDTH)[..., None]
    ground[: HEIGHT // 9] = _tone(rng, 0.6, 1.0)
    return ground * np.where(y % 3 == 0, 0.9, 1.0)[..., None]


def tiles(rng: np.random.Generator) -> np.ndarray:
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    pitch = int(rng.integers(24, 60))
    joint = (x % pitch < 2) | (y % pitch < 2)
    each = 0.85 + 0.3 * _grain(rng, pitch)
    return np.where(joint[..., None], 0.75, _tone(rng, 0.4, 0.9) * each[..., None])


GROUNDS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "wood": wood, "asphalt": asphalt, "checked": checked, "lights": lights, "screen": screen, "tiles": tiles,
}


# --- strokes -----------------------------------------------------------------


def distances(lines: Lines, u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of every place, the distance to the nearest line, and how far along its line that is."""
    near, along = np.full(u.shape, np.inf), np.zeros(u.shape)
    for line in lines:
        passed = 0.0
        for (ax, ay), (bx, by) in zip(line[:-1], line[1:]):
            length = max(math.hypot(bx - ax, by - ay), 1e-6)
            t = np.clip(((u - ax) * (bx - ax) + (v - ay) * (by - ay)) / length**2, 0, 1)
            distance = np.hypot(u - ax - t * (bx - ax), v - ay - t * (by - ay))
            closer = distance < near
            near = np.where(closer, distance, near)
            along = np.where(closer, passed + t * length, along)
            passed += length
    return near, along


def paint(stroke: str, near: np.ndarray, along: np.ndarray, wide: float, soft: float, rng: np.random.Generator) -> np.ndarray:
    """How much paint lies on each pixel, 0 to 1."""
    hard = np.clip((wide - near) / soft + 0.5, 0, 1)
    if stroke == "chalk":
        return hard * np.clip(1.7 * _grain(rng, 1) * _grain(rng, 3) + 0.35, 0, 1)
    if stroke == "stitches":
        return hard * (along % 0.16 < 0.11)
    if stroke == "outline":
        return np.clip((wide * 0.3 - np.abs(near - wide * 0.8)) / soft + 0.5, 0, 1)
    if stroke == "neon":
        return np.clip(hard + 0.8 * np.exp(-((near / (2.2 * wide)) ** 2)), 0, 1)
    if stroke == "halftone":
        y, x = np.mgrid[0 : near.shape[0], 0 : near.shape[1]]
        return hard * ((x % 4 - 1.5) ** 2 + (y % 4 - 1.5) ** 2 < 3.2)
    if stroke == "stencil":
        return hard * (along % 0.9 > 0.06)
    return hard


STROKES = ("hard", "chalk", "stitches", "outline", "neon", "halftone", "stencil")


def draw(label: str, ground: str, n: int, seed: int, photograph: np.ndarray | None = None) -> Image.Image:
    """The n-th picture of a label on a ground; the n-th symbol and look-alike share all but the sign."""
    place = [*GROUNDS, "photograph"].index(ground)
    kinds = SETS[label]
    skeleton, turn, disc = kinds[(n + 3 * place) % len(kinds)]
    scene = np.random.default_rng([seed, 77, place, n])
    if photograph is None:
        picture = GROUNDS[ground](scene)
    else:
        picture = np.asarray(Image.fromarray(photograph).resize((WIDTH, HEIGHT))) / 255
    picture = np.clip(picture, 0, 1)
    lines = skeleton(np.random.default_rng([seed, 78, place, n]))

    radius = scene.uniform(0.24, 0.46) * HEIGHT
    angle = math.radians(scene.uniform(-turn, turn))
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    x = (x - WIDTH * scene.uniform(0.4, 0.6)) / radius
    y = (y - HEIGHT * scene.uniform(0.42, 0.58)) / radius
    lean = 1 + scene.uniform(-0.25, 0.25) * x + scene.uniform(-0.25, 0.25) * y
    x, y = x / lean + scene.uniform(-0.15, 0.15) * y, y / lean
    u, v = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    v = v + scene.uniform(0, 0.05) * np.sin(5 * u)

    near, along = distances(lines, u, v)
    stroke = STROKES[int(scene.integers(len(STROKES)))]
    ink = _tone(scene, 0.75, 1.0) if picture.mean() < 0.5 else _tone(scene, 0.0, 0.3)
    fielded = bool(scene.random() < 0.5)
    if disc:
        # A flag: field, disc, sign.
        field = np.array([0.78, 0.07, 0.12]) if scene.random() < 0.7 else _tone(scene)
        inside = (np.abs(u) < 1.5) & (np.abs(v) < 1)
        picture = np.where(inside[..., None], field, picture)
        picture = np.where((np.hypot(u, v) < 0.68)[..., None], 0.95, picture)
        ink, stroke = np.full(3, 0.08), "hard"
    elif fielded and stroke in ("hard", "outline", "stencil"):
        picture = np.where((np.hypot(u, v) < 1.15)[..., None], 1 - ink, picture)
    wide = scene.uniform(0.05, 0.1)
    alpha = paint(stroke, near, along, wide, 1.2 / radius, scene)[..., None] * scene.uniform(0.8, 1.0)
    picture = picture * (1 - alpha) + ink * alpha
    if scene.random() < 0.35:
        low, high = sorted(scene.uniform(0.1, 0.9, 2))
        high = min(high, low + 0.14)
        picture[:, int(low * WIDTH) : int(high * WIDTH)] = _tone(scene)
    picture = picture * scene.uniform(0.7, 1.15) + scene.normal(0, scene.uniform(0, 0.05), picture.shape)
    return Image.fromarray((np.clip(picture, 0, 1) * 255).astype(np.uint8))


def pictures(each: int, seed: int, grounds: list[np.ndarray]) -> Iterator[tuple[str, Image.Image]]:
    """`each` symbols and as many look-alikes on every ground."""
    for ground in [*GROUNDS, *(["photograph"] if grounds else [])]:
        for n in range(each):
            under = grounds[(n * 7919) % len(grounds)] if ground == "photograph" else None
            for label in SETS:
                yield f"{label}-apart-{ground}/{n:04d}", draw(label, ground, n, seed, under)
