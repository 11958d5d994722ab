"""How tokens are chosen, under the names that other engines use too."""

import dataclasses
from typing import Any, Dict, List, Optional, Union


@dataclasses.dataclass
class SamplingParams:
    """Absent values take the defaults of the HTTP API (docs/api.md section 3).

    `logprobs`: how many alternatives to show of each token; 0 shows the chosen one alone.
    `structured_outputs`: {"json": schema}, {"regex": ...}, {"choice": [...]} or {"grammar": ...}.
    """

    n: int = 1
    temperature: Optional[float] = None
    top_p: Optional[float] = None
    top_k: Optional[int] = None
    min_p: Optional[float] = None
    presence_penalty: Optional[float] = None
    frequency_penalty: Optional[float] = None
    repetition_penalty: Optional[float] = None
    seed: Optional[int] = None
    max_tokens: Optional[int] = None
    min_tokens: Optional[int] = None
    stop: Optional[Union[str, List[str]]] = None
    stop_token_ids: Optional[List[int]] = None
    include_stop_str_in_output: Optional[bool] = None
    ignore_eos: Optional[bool] = None
    bad_words: Optional[List[str]] = None
    allowed_token_ids: Optional[List[int]] = None
    logit_bias: Optional[Dict[int, float]] = None
    logprobs: Optional[int] = None
    structured_outputs: Optional[Dict[str, Any]] = None
    sampling_mode: Optional[str] = None

    def body(self, chat):
        """The fields of a request; `chat` or raw completion."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        logprobs = fields.pop("logprobs")
        if logprobs is not None:
            fields.update({"logprobs": True, "top_logprobs": logprobs} if chat
                          else {"logprobs": logprobs})
        if fields["logit_bias"] is not None:
            fields["logit_bias"] = {str(id): bias for id, bias in fields["logit_bias"].items()}
        return {name: value for name, value in fields.items() if value is not None}
