"""HTML pages that need nothing else: jinja2 templates that share `layout.html`, with style and plots inside."""

import base64
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from beem_plugin.rendering.plots import to_svg


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def data_uri(figure: Any) -> str:
    """A figure as the source of an image."""
    return f"data:image/svg+xml;base64,{base64.b64encode(to_svg(figure).encode()).decode()}"


@lru_cache(maxsize=1)
def environment() -> Environment:
    found = Environment(
        loader=PackageLoader("beem_plugin.rendering", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["percent"] = percent
    return found


def render_page(template: str, **values: Any) -> str:
    """A file of this folder with the values that it uses; text is escaped."""
    return environment().get_template(template).render(**values)
