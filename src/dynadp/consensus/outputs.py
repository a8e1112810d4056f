"""Which mean of released vectors becomes the model."""

from typing import Literal

Output = Literal["last", "tail", "neighbours", "network"]
