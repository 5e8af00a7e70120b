"""Whether two policies compute the same scores."""

from __future__ import annotations

import pickle
from collections.abc import Collection


def fingerprint(policy: object, without: Collection[str]) -> bytes | None:
    """
    The class of `policy` and its attributes, except for those `without` which it would score the same. Policies of
    equal fingerprints do behave the same; equal policies may have different ones, which only costs time. `None` if an
    attribute cannot be told in bytes.
    """
    cls = type(policy)
    attributes = {name: value for name, value in vars(policy).items() if name not in without}
    try:
        return pickle.dumps((cls.__module__, cls.__qualname__, attributes))
    except Exception:  # whatever a user's class holds: locks and functions fail in many ways
        return None
