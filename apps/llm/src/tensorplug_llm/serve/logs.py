"""Logs of the server: one JSON object a line on stderr, without what prompts and answers say."""

import json
import logging
import sys
import time
from typing import Any

LOGGER = logging.getLogger("tensorplug_llm.serve")


class JsonLines(logging.Formatter):
    """A record as a JSON object: its time, level, event, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def write_logs() -> None:
    """Send the logs of the server, of uvicorn and of asyncio to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    others = [(logging.getLogger(name), logging.WARNING) for name in ("uvicorn", "asyncio")]
    for logger, level in ((LOGGER, logging.INFO), *others):
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False


def log(event: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Write one line."""
    LOGGER.log(level, event, extra={"fields": fields})
