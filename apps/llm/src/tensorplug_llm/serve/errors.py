"""`ServeError`: a request that is refused, with the status of its answer."""

from collections.abc import Mapping

from tensorplug.errors import TensorplugError

KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
"""OpenAI's `type` of an error by its status; others are those of the client or of the server."""
RETRY_AFTER = 1
"""Seconds that clients shall wait where too much is asked at once, or the server ends."""


class ServeError(TensorplugError):
    """A request is refused: HTTP status, the parameter at fault, a code, seconds until a retry."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.headers = headers or {}

    def body(self) -> dict[str, object]:
        """OpenAI's JSON of this error."""
        other = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = KINDS.get(self.status, other)
        found = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": found}


def closing() -> ServeError:
    """What clients are told whose answers are not complete when the server ends."""
    return ServeError(503, "server: is closing; send the request again", retry_after=RETRY_AFTER)
