"""What others send takes a bounded room: in memory, in files, and in time to read.

A hostile member can send as much as it likes. These are the places where what it sends would stay.
"""

import json
import re
from collections import Counter
from typing import Any

import numpy as np

from dynadp.errors import Rejected

DEPTH = 32  # of JSON, at most
REASONS, WORDS = 500, 300  # told apart, and letters of each
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_STEPS = np.zeros(256, np.int64)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


def read_json(data: bytes, largest: int, depth: int = DEPTH) -> Any:
    """Read JSON that somebody else wrote; refuse what is larger or deeper before it is parsed."""
    if len(data) > largest:
        raise Rejected(f"malformed: longer than {largest} bytes")
    outside = np.frombuffer(_TEXT.sub(b"", data), np.uint8)
    if outside.size and int(np.cumsum(_STEPS[outside]).max()) > depth:
        raise Rejected(f"malformed: nested deeper than {depth}")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise Rejected("malformed: no JSON") from None


def shortened(text: str, most: int = WORDS) -> str:
    """Return a text with its middle left out where it is longer."""
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


class Tally(Counter[str]):
    """Counts by reason; reasons past the first few hundred are counted together."""

    def count(self, reason: str) -> None:
        """Count one more."""
        reason = shortened(reason)
        self[reason if reason in self or len(self) < REASONS else "for other reasons"] += 1
