"""What the engine refuses or fails at, as exceptions."""


class DeepInferError(Exception):
    """`status`, `code` and `param` are those of the HTTP API."""

    def __init__(self, message, status=500, code=None, param=None):
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class InvalidRequestError(DeepInferError, ValueError):
    """The request cannot be run as it is; `param` names the field."""


class ContextLengthError(InvalidRequestError):
    """The prompt fills the context."""


class OverloadedError(DeepInferError):
    """Too much waits already; later it may work."""


class CancelledError(DeepInferError):
    """The model was closed before the answer began."""


class InternalError(DeepInferError):
    """A fault of the engine."""


def error_of(status, body):
    """The exception for an error answer: `body` is the member `error` of it."""
    message, code, param = body.get("message", ""), body.get("code"), body.get("param")
    if code == "context_length_exceeded":
        kind = ContextLengthError
    elif status in (429, 503, 504):
        kind = OverloadedError
    elif status >= 500:
        kind = InternalError
    else:
        kind = InvalidRequestError
    return kind(message, status, code, param)
