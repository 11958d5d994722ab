"""The one class: a loaded model that answers."""

import collections
import json
import weakref

from . import _core
from .errors import CancelledError, error_of
from .outputs import output_of_chat, output_of_completions, pieces_of
from .sampling_params import SamplingParams

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# More would only wait inside: the engine batches what it has room for.
MOST_IN_FLIGHT = 256


def _flags(options):
    """Keywords as flags of `deepinfer serve`: max_model_len=4096 is --max-model-len=4096."""
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            yield flag
        elif isinstance(value, (list, tuple)):
            yield flag
            yield from map(str, value)
        else:
            yield "%s=%s" % (flag, value)


class LLM:
    """LLM(model, **options): `model` is a folder; options are the flags of `deepinfer serve`.

    Every method may be called from any thread; while the engine computes, other threads of
    Python run. Use it as a context manager or call close(), so that what runs is cancelled.
    """

    def __init__(self, model, **options):
        flags = {"log_level": "warning", **options}
        self._server = _core.Server([str(model), *_flags(flags)])
        self._calls = weakref.WeakSet()

    @property
    def model_name(self):
        return self._server.model_name

    def generate(self, prompts, sampling_params=None):
        """Continues raw prompts: texts, or lists of token ids. One Output each, in their order.

        A single prompt gives a list of one. `sampling_params`: one for all, or a list.
        """
        single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        prompts = [prompts] if single else list(prompts)
        bodies = [{"prompt": prompt, "return_token_ids": True, **params.body(chat=False)}
                  for prompt, params in zip(prompts, _params_for(prompts, sampling_params))]
        answers = self._answers(COMPLETIONS, bodies)
        return [output_of_completions(a, prompt) for a, prompt in zip(answers, prompts)]

    def chat(self, messages, sampling_params=None, **fields):
        """Answers a conversation, or each of a list of them; the messages of the HTTP API.

        `fields` are further fields of a chat request: tools, tool_choice, thinking,
        reasoning_effort, response_format, chat_template_kwargs and so on.
        """
        many = bool(messages) and isinstance(messages[0], (list, tuple))
        conversations = list(messages) if many else [messages]
        bodies = [{"messages": conversation, "return_token_ids": True, **params.body(chat=True),
                   **fields} for conversation, params in
                  zip(conversations, _params_for(conversations, sampling_params))]
        outputs = [output_of_chat(answer) for answer in self._answers(CHAT, bodies)]
        return outputs if many else outputs[0]

    def stream(self, messages, sampling_params=None, **fields):
        """Iterates over the pieces of an answer as they come: `messages` a conversation, or a raw
        prompt as a text. Leaving the loop cancels the rest."""
        chat = not isinstance(messages, str)
        body = {"messages" if chat else "prompt": messages, "stream": True,
                "stream_options": {"include_usage": True}, "return_token_ids": True,
                **(sampling_params or SamplingParams()).body(chat), **fields}
        return self._stream(CHAT if chat else COMPLETIONS, body)

    def tokenize(self, text):
        """Token ids of a text, without a begin token."""
        return self.request("POST", "/tokenize",
                            {"prompt": text, "add_special_tokens": False})["tokens"]

    def detokenize(self, token_ids):
        return self.request("POST", "/detokenize", {"tokens": list(token_ids)})["prompt"]

    def request(self, method, path, body=None):
        """Any route of the HTTP API; the JSON of its answer, or its text."""
        raw = self._whole(self._call(method, path, body))
        return json.loads(raw) if raw[:1] in (b"{", b"[") else raw.decode()

    def close(self):
        """Cancels what runs and lets go of the model. Idempotent."""
        for call in list(self._calls):
            call.cancel()
        self._calls.clear()
        self._server = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # --- calls

    def _call(self, method, path, body):
        if self._server is None:
            raise RuntimeError("this LLM is closed")
        if isinstance(body, dict) and path in (CHAT, COMPLETIONS):
            body = {"model": self.model_name, **body}
        call = self._server.call(method, path, "" if body is None else json.dumps(body))
        self._calls.add(call)
        return call

    def _pieces(self, call):
        """The pieces of a body; an error answer is raised."""
        while True:
            # Waits are short, so that Ctrl-C is seen.
            kind, data = call.next()
            if kind == "end":
                if call.status == 0:
                    raise CancelledError("the call was cancelled", 499, "cancelled")
                return
            if kind == "piece":
                if call.status >= 400:
                    raise error_of(call.status, json.loads(data)["error"])
                yield data

    def _whole(self, call):
        return b"".join(self._pieces(call))

    def _answers(self, path, bodies):
        """Yields the answers in order; keeps the engine busy with those behind."""
        waiting = collections.deque()
        remaining = iter(bodies)
        answers = []
        try:
            while True:
                while len(waiting) < MOST_IN_FLIGHT:
                    body = next(remaining, None)
                    if body is None:
                        break
                    waiting.append(self._call("POST", path, body))
                if not waiting:
                    return answers
                answers.append(json.loads(self._whole(waiting[0])))
                waiting.popleft()
        finally:
            for call in waiting:
                call.cancel()

    def _stream(self, path, body):
        call = self._call("POST", path, body)
        try:
            for data in self._pieces(call):
                if not data.startswith(b"data: {"):
                    continue  # [DONE], or a comment that fills silence
                chunk = json.loads(data[len(b"data: "):])
                if "error" in chunk:
                    raise error_of(500, chunk["error"])
                yield from pieces_of(chunk)
        finally:
            call.cancel()


def _params_for(requests, sampling_params):
    if sampling_params is None:
        sampling_params = SamplingParams()
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * len(requests)
    if len(sampling_params) != len(requests):
        raise ValueError("%d sampling_params for %d prompts" % (len(sampling_params),
                                                                len(requests)))
    return sampling_params
