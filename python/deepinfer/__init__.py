"""DeepInfer inside a Python process: the engine and everything in front of it, without a server."""

from ._core import version as __version__
from .errors import (CancelledError, ContextLengthError, DeepInferError, InternalError,
                     InvalidRequestError, OverloadedError)
from .llm import LLM
from .outputs import Completion, Output, Piece
from .sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams", "Output", "Completion", "Piece", "DeepInferError",
           "InvalidRequestError", "ContextLengthError", "OverloadedError", "CancelledError",
           "InternalError", "__version__"]
