"""Reads `# Parameters` in docstrings for mkdocstrings."""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

SECTION = re.compile(r"^# (Attributes|Parameters|Raises|Returns)$", re.MULTILINE)
HEAD = re.compile(r"^(\w[\w, ]* : .*?)(?:, optional.*)?$", re.MULTILINE)


class ParametersSections(griffe.Extension):
    """`# Parameters` and the like, as AllenNLP writes them, in the form of numpydoc, which mkdocstrings reads."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            first, *rest = SECTION.split(inspect.cleandoc(obj.docstring.value))
            parts = [first]
            for title, text in zip(rest[::2], rest[1::2]):
                body = (
                    HEAD.sub(lambda head: head[1].replace("`", ""), text)
                    if title in ("Attributes", "Parameters")
                    else text
                )
                parts.append(f"{title}\n{'-' * len(title)}\n{body.lstrip()}")
            obj.docstring.value = "".join(parts)
