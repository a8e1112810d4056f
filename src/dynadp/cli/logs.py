"""A node's log file: of bounded room, reopened after others put it aside, in text or in JSON."""

import json
import logging
import os
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

_BYTES = 4 << 20  # of a log, before it is put aside; two of these are kept


class BoundedLog(RotatingFileHandler):
    """A log that takes a bounded room, whoever tries to fill it.

    Where another program put the file aside (logrotate), the next line opens a new one. A disk
    that refuses a line costs that line alone.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=_BYTES, backupCount=2, encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line into the file that has the name now."""
        if (open_now := self.stream) is not None and self._moved(open_now):
            self.stream = None  # what follows opens it, or loses the line
            with suppress(OSError):
                open_now.close()
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Lose the line: a full disk must not fill standard error too."""

    def close(self) -> None:
        """Close the file; what a full disk does not take is lost."""
        with suppress(OSError):
            super().close()

    def _moved(self, stream: TextIO) -> bool:
        try:
            found, own = os.stat(self.baseFilename), os.fstat(stream.fileno())
        except (OSError, ValueError):  # gone; or closed, while a full disk refused the rest
            return True
        return (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, node and message.

    Parameters
    ----------
    node
        The node's name.
    """

    def __init__(self, node: str) -> None:
        super().__init__()
        self.node = node

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = {"time": at, "level": record.levelname, "node": self.node}
        facts["message"] = record.getMessage()
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=False)
