"""One spelling for public declarations, so that two parties can compare them by a hash."""

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no spaces, no NaN and the shortest spelling of every float.

    >>> canonical_json({"b": 1.0, "a": [True, None]})
    '{"a":[true,null],"b":1.0}'
    """
    value = json.loads(json.dumps(value, allow_nan=False))  # keys become text before they are sorted
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest(value: Any) -> str:
    """SHA-256 of :func:`canonical_json`, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
