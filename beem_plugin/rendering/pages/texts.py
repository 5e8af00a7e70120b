"""Texts exit by exit as one HTML page, for a file's predictions or for a server: what fills `texts.html`."""

from collections.abc import Sequence
from typing import Any

from beem_plugin.rendering.pages import render_page


def texts_page(data: dict[str, Any], texts: Sequence[dict[str, Any]], is_served: bool = False) -> str:
    """
    `data` is `TextPage.data`; `texts` have each `texts` by column, `gold` (`None` if unknown), and the entries of
    `exit_readings`. A page that `is_served` asks its server about texts that are typed in.
    """
    current = next(number for number, point in enumerate(data["points"]) if point["is_current"])
    rows = sorted(enumerate(texts), key=lambda pair: pair[1]["leaves"][current])
    return render_page(
        "texts.html",
        data=data,
        texts=texts,
        rows=rows,
        current=current,
        depth=data["exit_layers"][-1],
        is_served=is_served,
        shown=lambda answer: shown(answer, data["labels"]),
        content={"model": data, "texts": list(texts), "current": current},
    )


def shown(answer: float, labels: Sequence[str]) -> str:
    """A label's name, or a value."""
    return labels[int(answer)] if labels else f"{answer:.3g}"
