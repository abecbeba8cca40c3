"""Measuring what the running server answers: texts in, figures, plots and a
report out.

For moderation, `texts` reads and cuts texts with known labels, `figures` counts
and writes Markdown, `metrics` is plain arithmetic and serves the training too,
`plots` draws. For expressions and replies, `inputs` reads the texts,
`expressing` asks, `likeness`, `replies` and `judges` judge an answer,
`expression` counts, `expression_report` writes, `samples` makes the sheet for
readers. For pictures, `pages` draws them with text and `ocr` measures how they are
read; `pictures` finds them in tars and folders, `drawings` has those of our own,
`images` asks, counts and writes, `contact` draws the sheet. `asking` speaks HTTP
and `card` puts a report into a model's card, for all.

No module lets a text or a picture of a data file into what it prints, raises or
writes; `samples` writes our own lines, `contact` shows our own drawings.
"""


class MeasureError(Exception):
    """A failure whose text is complete: what went wrong and where, never a measured text."""
