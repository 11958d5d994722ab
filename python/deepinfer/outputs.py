"""What comes back."""

import dataclasses
from typing import Any, Dict, List, Optional


@dataclasses.dataclass
class Completion:
    """One choice. `message` is the assistant message of a chat, to send back as it is."""

    index: int
    text: str
    token_ids: List[int]
    finish_reason: Optional[str] = None
    stop_reason: Any = None
    logprobs: Any = None
    reasoning: Optional[str] = None
    tool_calls: List[Dict[str, Any]] = dataclasses.field(default_factory=list)
    message: Optional[Dict[str, Any]] = None


@dataclasses.dataclass
class Output:
    """The answer to one prompt. `usage` is that of the HTTP API."""

    request_id: str
    prompt: Optional[str]
    prompt_token_ids: List[int]
    outputs: List[Completion]
    usage: Dict[str, Any]

    @property
    def text(self):
        return self.outputs[0].text

    @property
    def num_cached_tokens(self):
        return self.usage["prompt_tokens_details"]["cached_tokens"]


@dataclasses.dataclass
class Piece:
    """What one step of the engine added to a choice. The last one of a stream has the usage."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: List[Dict[str, Any]] = dataclasses.field(default_factory=list)
    token_ids: List[int] = dataclasses.field(default_factory=list)
    finish_reason: Optional[str] = None
    usage: Optional[Dict[str, Any]] = None


def output_of_completions(body, prompt):
    choices = [Completion(choice["index"], choice["text"], choice.get("token_ids") or [],
                          choice["finish_reason"], choice.get("stop_reason"),
                          choice.get("logprobs")) for choice in body["choices"]]
    return Output(body["id"], prompt if isinstance(prompt, str) else None,
                  body["choices"][0].get("prompt_token_ids") or [], choices, body["usage"])


def output_of_chat(body):
    choices = []
    for choice in body["choices"]:
        message = choice["message"]
        choices.append(Completion(
            choice["index"], message["content"], choice.get("token_ids") or [],
            choice["finish_reason"], choice.get("stop_reason"), choice.get("logprobs"),
            message.get("reasoning_content"), message.get("tool_calls") or [], message))
    return Output(body["id"], None, body.get("prompt_token_ids") or [], choices, body["usage"])


def pieces_of(chunk):
    """The pieces of one chunk of a stream, of either form."""
    for choice in chunk["choices"]:
        delta = choice.get("delta", {})
        yield Piece(choice["index"], choice.get("text") or delta.get("content") or "",
                    delta.get("reasoning_content") or "", delta.get("tool_calls") or [],
                    choice.get("token_ids") or [], choice.get("finish_reason"))
    if chunk.get("usage") and not chunk["choices"]:
        yield Piece(usage=chunk["usage"])
