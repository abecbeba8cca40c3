"""Measuring what the running server answers: texts with known labels in,
figures, plots and a report out.

`metrics` is plain arithmetic and serves the training too; `texts` reads and
cuts, `asking` speaks HTTP, `figures` counts and writes Markdown, `plots` draws,
`card` puts the result into a model's card. `pages` draws pictures with text and
`ocr` measures how they are read. No module lets a text of a data file
into what it prints, raises or writes.
"""


class MeasureError(Exception):
    """A failure whose text is complete: what went wrong and where, never a measured text."""
