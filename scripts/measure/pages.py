"""Owns the pictures that a text reader is measured on: words that are known,
drawn in the ways that people post them, the same for the same seed and fonts.

No picture is kept in the repository: they are drawn anew for each run.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFilter, ImageFont

KINDS = ("plain", "light on dark", "two columns", "turned", "meme", "screen", "large screen", "chinese", "japanese")
# A meme's letters are large by custom; the others also come small.
SIZES = (12, 14, 16, 18, 20, 24, 28, 32, 40, 48)
# Small letters in pictures that the detector sees reduced: a page of the other kinds is as large as its letters ask for.
SCREENS = {"screen": (1920, 1080), "large screen": (2560, 1440)}
SCREEN_SIZES = (12, 14, 16, 18, 20)
MEME_SIZES = (24, 28, 32, 36, 40, 48)
LATIN_FONTS = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSerif.ttf", "DejaVuSansMono.ttf", "DejaVuSansCondensed.ttf")
MEME_FONTS = ("Impact.ttf", "Anton-Regular.ttf", "DejaVuSans-Bold.ttf", "DejaVuSansCondensed-Bold.ttf")
# Fonts that hold both Chinese and Japanese, where a system has one.
CJK_FONTS = (
    "NotoSansCJK-Regular.ttc",
    "NotoSansCJKjp-Regular.otf",
    "NotoSerifCJK-Regular.ttc",
    "SourceHanSans-Regular.ttc",
    "wqy-zenhei.ttc",
    "wqy-microhei.ttc",
)

HARMLESS = (
    "The ferry to the island leaves at seven and comes back before dark.",
    "Please bring the signed form to room 204 on Thursday morning.",
    "Our neighbours painted the fence green, and the dog is green now too.",
    "Two tickets for row F, seats 14 and 15, are waiting at the door.",
    "She learned to swim at sixty and crossed the lake last summer.",
    "The recipe wants 250 g of flour, three eggs and a pinch of salt.",
    "Turn left at the old mill, then follow the river for a mile.",
    "I killed an hour in the bookshop and came out with four novels.",
    "The printer on the second floor is out of paper again.",
    "Winter tyres are 20 % off until the end of October.",
    "My grandmother keeps bees, and her honey won a prize in May.",
    "The concert was so loud that the windows of the bakery shook.",
    "Mind the step. The handrail is being repaired this week.",
    "He burned the rice, but the curry turned out fine.",
    "Lost: one grey cat with a white paw. She answers to Pepper.",
    "The museum is free for students on the first Sunday of the month.",
    "Can you send me the photos from the picnic when you have time?",
    "The train was late, so we played cards until midnight.",
    "This cake is to die for, and the queue proves it.",
    "Water the tomatoes in the evening, not in the midday heat.",
)
HARMFUL = (
    "I will find you tonight and stab you in front of your children.",
    "All immigrants are vermin and should be driven out of our country.",
    "I want to kill myself tonight, I have the pills ready.",
    "Nobody would miss you. Go and hang yourself already.",
    "We are going to burn down that mosque with everyone inside.",
    "I want to lick your naked body and fuck you all night long.",
    "Karen Whitlock at the clinic steals drugs from patients and sells them.",
    "Those people are subhuman filth and do not deserve to breathe.",
)
CHINESE = (
    "今天下午三点在图书馆门口见面。",
    "请把签好的表格带到二楼办公室。",
    "这家面馆的牛肉面又便宜又好吃。",
    "周末我们打算去爬山，你来不来？",
    "火车晚点了，大家只好在站台上等。",
)
CHINESE_HARMFUL = (
    "今晚我会找到你，当着你孩子的面捅死你。",
    "这些移民都是害虫，应该全部赶出我们的国家。",
    "我今晚就想自杀，药片已经准备好了。",
)
JAPANESE = (
    "明日の会議は午後二時から始まります。",
    "駅前の新しいパン屋はとても人気です。",
    "傘を忘れないでください。夕方から雨です。",
    "週末は家族と海へ行く予定です。",
    "この本はカフェで読むのにちょうどいい。",
)
JAPANESE_HARMFUL = (
    "今夜お前を見つけて、子供の前で刺し殺してやる。",
    "移民はみんな害虫だ。この国から追い出すべきだ。",
    "今夜死ぬつもりです。薬はもう用意してあります。",
)


@dataclass(frozen=True)
class Drawn:
    """A picture with what is written on it, in reading order."""

    kind: str
    size: int
    text: str = field(repr=False)
    png: bytes = field(repr=False)

    @property
    def is_clean(self) -> bool:
        """Whether the error rate of clean pictures is asked of it."""
        return self.kind != "meme" and self.size >= 16


def font(names: tuple[str, ...], size: int, choose: random.Random) -> Any:
    """One of the fonts that are installed; Pillow's own where none is."""
    found = []
    for name in names:
        try:
            found.append(ImageFont.truetype(name, size))
        except OSError:
            continue
    return choose.choice(found) if found else ImageFont.load_default(size)


def cjk_font(given: Path | None) -> str | None:
    """The font for Chinese and Japanese: the one that is named, or one that is installed."""
    for name in [str(given)] if given else CJK_FONTS:
        try:
            ImageFont.truetype(name, 20)
        except OSError:
            continue
        return name
    return None


def draw(count: int, seed: int, cjk: str | None) -> list[Drawn]:
    """`count` pictures, the kinds in turn; without a font for them, Chinese and Japanese are left out."""
    kinds = [kind for kind in KINDS if cjk or kind not in ("chinese", "japanese")]
    return [_draw(kinds[number % len(kinds)], random.Random(f"{seed} {number}"), cjk) for number in range(count)]


def keep(drawn: list[Drawn], folder: Path) -> None:
    """Leaves pictures and texts in a folder, for eyes."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(drawn, 1):
        (folder / f"{number:04}.png").write_bytes(picture.png)
        (folder / f"{number:04}.txt").write_text(picture.text + "\n", encoding="utf-8")


def _draw(kind: str, choose: random.Random, cjk: str | None) -> Drawn:
    size = choose.choice(MEME_SIZES if kind == "meme" else SIZES)
    if kind in ("chinese", "japanese"):
        harmless, harmful = (CHINESE, CHINESE_HARMFUL) if kind == "chinese" else (JAPANESE, JAPANESE_HARMFUL)
        text = choose.choice(harmful) if choose.random() < 1 / 3 else "".join(choose.sample(harmless, 2))
        picture = _page([text], size, ImageFont.truetype(cjk or "", size), "black", "white", _by_letters)
        return _encoded(kind, size, text, picture)
    # One in three is harmful, so that verdicts of both kinds are compared.
    text = choose.choice(HARMFUL) if choose.random() < 1 / 3 else " ".join(choose.sample(HARMLESS, 2))
    if kind == "meme":
        return _encoded(kind, size, *_meme(text.upper(), size, choose))
    if kind in SCREENS:
        return _screen(kind, text, choose.choice(SCREEN_SIZES), choose)
    letters = font(LATIN_FONTS, size, choose)
    if kind == "light on dark":
        ink, ground = choose.choice(["white", "#ffe9a8", "#c8f0ff"]), choose.choice(["black", "#20242c", "#4a1420", "#123524"])
    else:
        ink, ground = choose.choice(["black", "#20304a", "#5a1010"]), choose.choice(["white", "#f4efe4", "#e8f0ea"])
    texts = [text]
    if kind == "two columns":
        # The second column is as long as the first, or there would be no columns.
        texts = [" ".join(choose.sample(HARMLESS, 2)), f"{text} {choose.choice(HARMLESS)}"]
    picture = _page(texts, size, letters, ink, ground, _by_words)
    if kind == "turned":
        picture = picture.rotate(choose.choice([90, 180, 270]), expand=True)
    return _encoded(kind, size, " ".join(texts), picture)


def _encoded(kind: str, size: int, text: str, picture: Image.Image) -> Drawn:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return Drawn(kind, size, text, buffer.getvalue())


# --- drawing -----------------------------------------------------------------


def _page(
    texts: list[str], size: int, letters: Any, ink: str, ground: str, wrap: Callable[[str, Any, float], list[str]]
) -> Image.Image:
    """Each text in a column of about 24 letters' width."""
    width, step, margin = size * 18, round(size * 1.4), size * 2
    columns = [wrap(text, letters, width) for text in texts]
    height = margin * 2 + step * max(len(lines) for lines in columns)
    picture = Image.new("RGB", (margin + (width + margin) * len(columns), height), ground)
    pen = ImageDraw.Draw(picture)
    for column, lines in enumerate(columns):
        for row, line in enumerate(lines):
            pen.text((margin + (width + margin) * column, margin + step * row), line, ink, font=letters)
    return picture


def _screen(kind: str, text: str, size: int, choose: random.Random) -> Drawn:
    """One text somewhere on a screen of panels and rules, with nothing else written on it."""
    width, height = SCREENS[kind]
    light = choose.random() < 0.5
    picture = Image.new("RGB", (width, height), "#f3f4f6" if light else "#16181d")
    pen = ImageDraw.Draw(picture)
    for _ in range(8):
        x, y = choose.randrange(width), choose.randrange(height)
        box = [x, y, x + choose.randrange(80, width // 3), y + choose.randrange(30, height // 3)]
        pen.rectangle(box, choose.choice(["#ffffff", "#e3e8ef", "#d8e2f5"] if light else ["#20242c", "#2b303b", "#1d2a3a"]))
        pen.line([0, y, width, y], "#c9ced6" if light else "#3a404d")
    letters = font(LATIN_FONTS, size, choose)
    lines = _by_words(text, letters, size * 28)
    left = choose.randrange(size, width - size * 30)
    top = choose.randrange(size, height - round(size * 1.5) * (len(lines) + 1))
    panel = [left - size, top - size // 2, left + size * 29, top + round(size * 1.5) * len(lines) + size // 2]
    pen.rectangle(panel, "white" if light else "#0f1116")
    for row, line in enumerate(lines):
        pen.text((left, top + round(size * 1.5) * row), line, "#1c1f26" if light else "#e8eaee", font=letters)
    return _encoded(kind, size, text, picture)


def _by_words(text: str, letters: Any, width: float) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and letters.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _by_letters(text: str, letters: Any, width: float) -> list[str]:
    lines: list[str] = [""]
    for letter in text:
        if lines[-1] and letters.getlength(lines[-1] + letter) > width:
            lines.append("")
        lines[-1] += letter
    return lines


def _meme(text: str, size: int, choose: random.Random) -> tuple[str, Image.Image]:
    """White letters with a dark rim over a busy picture: the first half above, the rest below."""
    letters = font(MEME_FONTS, size, choose)
    words = text.split()
    halves = [" ".join(words[: (len(words) + 1) // 2]), " ".join(words[(len(words) + 1) // 2 :])]
    width = size * 18
    upper, lower = (_by_words(half, letters, width - size) for half in halves)
    step = round(size * 1.25)
    height = max(round(width * 0.75), step * (len(upper) + len(lower)) + size * 5)
    picture = _busy(width, height, choose)
    pen = ImageDraw.Draw(picture)
    rim = max(2, size // 12)
    for lines, top in ((upper, size // 2), (lower, height - size // 2 - step * len(lower))):
        for row, line in enumerate(lines):
            place = ((width - letters.getlength(line)) / 2, top + step * row)
            pen.text(place, line, "white", font=letters, stroke_width=rim, stroke_fill="black")
    return text, picture


def _busy(width: int, height: int, choose: random.Random) -> Image.Image:
    """Overlapping shapes of many colours, blurred a little, with grain: what a photograph is to a detector."""
    picture = Image.new("RGB", (width, height), _colour(choose))
    pen = ImageDraw.Draw(picture)
    for _ in range(120):
        x, y = choose.randrange(width), choose.randrange(height)
        reach = choose.randrange(8, max(9, width // 4))
        box = [x - reach, y - choose.randrange(4, reach + 5), x + reach, y + choose.randrange(4, reach + 5)]
        shape = choose.choice([pen.ellipse, pen.rectangle])
        shape(box, _colour(choose))
        pen.line([x, y, x + choose.randint(-reach, reach) * 2, y + reach], _colour(choose), choose.randrange(1, 6))
    picture = picture.filter(ImageFilter.GaussianBlur(choose.uniform(0.5, 2.0)))
    # Pillow's own noise takes no seed.
    grain = Image.frombytes("L", (width, height), choose.randbytes(width * height)).convert("RGB")
    return Image.blend(picture, grain, choose.uniform(0.02, 0.1))


def _colour(choose: random.Random) -> tuple[int, int, int]:
    return choose.randrange(256), choose.randrange(256), choose.randrange(256)
