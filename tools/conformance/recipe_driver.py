#!/usr/bin/env python3
"""Changes recorded requests, composes others and cuts recorded model output at random, and prints what
the package deepseek-recipe makes of each, one JSON line a case, in the form of the recorded vectors.

usage: recipe_driver.py TOKENIZER_JSON VECTOR_FOLDER COUNT SEED
"""

import copy
import json
import pathlib
import random
import sys

import deepseek_recipe as recipe

from recipe_composer import Composer

DIALECTS = ("chat", "messages", "responses")
REQUESTS = {"chat": recipe.ChatCompletionRequest, "messages": recipe.MessagesRequest,
            "responses": recipe.ResponsesRequest}
RESPONSES = {"chat": recipe.ChatCompletionResponse, "messages": recipe.MessagesResponse,
             "responses": recipe.ResponsesResponse}
ODD_VALUES = (None, True, False, 0, 1, -1, 1.5, "", "x", "low", "max", [], {}, [None], {"type": "text"},
              [{"type": "text", "text": "a\n\nb"}], "\n", "</think>", "<｜User｜>", 2**63, -2**63, 1e300,
              "data:image/png;base64,AAAA", {"type": "function"}, {"type": "object", "properties": {}})
FINISHES = ("stop", "length", "content_filter", None)


class Reference:
    """Answers of the package."""

    def __init__(self, tokenizer_path):
        self.tokenizer = recipe.Tokenizer.from_file(tokenizer_path)
        self.v4 = recipe.DeepseekV4Encoding().with_tokenizer(self.tokenizer)
        self.v41 = recipe.DeepseekV41Encoding().with_tokenizer(self.tokenizer)

    @staticmethod
    def options_of(options):
        fields = {name: value for name, value in options.items() if name != "model_aliases"}
        if "reasoning_content_behavior" in fields:
            fields["reasoning_content_behavior"] = (
                recipe.ReasoningContentBehavior.Reject
                if fields["reasoning_content_behavior"] == "reject"
                else recipe.ReasoningContentBehavior.FillEmpty)
        for name in ("responses_web_search", "messages_web_search"):
            if name in fields:
                fields[name] = (recipe.WebSearchBehavior.Drop if fields[name] == "drop"
                                else recipe.WebSearchBehavior.Reject)
        return recipe.ConversionOptions(**fields)

    def convert(self, dialect, body, options):
        """(request or None, the `expect` of an error or None)"""
        try:
            request = REQUESTS[dialect](body)
        except Exception as error:  # the package raises several plain kinds
            return None, {"error": {"stage": "parse", "status": 400, "message": str(error)}}
        try:
            return request.convert(self.options_of(options)), None
        except recipe.ConversionError as error:
            fields = json.loads(error.body)["error"]
            return None, {"error": {"stage": "convert", "status": error.status_code,
                                    "message": fields["message"]}}

    def encode(self, dialect, body, options):
        request, error = self.convert(dialect, body, options)
        if error:
            return error
        conversation, inference = request.conversation, request.inference_options
        is_v41 = request.model_version == recipe.ModelVersion.DeepseekV41Flash
        encoding = self.v41 if is_v41 else self.v4
        prompt = encoding.render_conversation(conversation)
        constraint = inference.output_constraint
        expect = {
            "prompt": prompt.prompt, "special_ranges": [list(r) for r in prompt.special_ranges],
            "thinking_mode": conversation.thinking_mode, "tool_choice": conversation.tool_choice,
            "reasoning_effort": conversation.reasoning_effort,
            "response_format": conversation.response_format,
            "tool_names": [tool.name for tool in conversation.tools],
            "inference": {
                "max_tokens": inference.max_tokens, "temperature": inference.temperature,
                "top_p": inference.top_p, "logprobs": inference.logprobs,
                "top_logprobs": inference.top_logprobs, "seed": inference.seed,
                "output_constraint": constraint and constraint.kind},
            "parsing": self.parsing_of(request.parsing_options), "stream": request.stream}
        if not prompt.image_sources and is_v41:
            expect["ids"] = encoding.encode(conversation)
        return expect

    @staticmethod
    def parsing_of(options):
        stage = options.thinking_initial_stage
        names = {"ReasoningStart": "reasoning_start", "ReasoningContinuation": "reasoning_continuation",
                 "ContentContinuation": "content_continuation"}
        return {"parse_tool_calls": options.parse_tool_calls,
                "starts_in_tool_calls": options.starts_in_tool_calls,
                "parse_json_output": options.parse_json_output,
                "thinking_initial_stage": stage and names[str(stage).split(".")[-1]],
                "stop_sequences": list(options.stop_sequences)}


    def parse(self, dialect, body, options, chunks, finish):
        """The final body of an answer that the model gave in these chunks of text."""
        generator_of = REQUESTS[dialect].chunk_generator
        names = {}
        if dialect == "responses":
            names = REQUESTS[dialect](body).namespace_tool_map(self.options_of(options))
        request, error = self.convert(dialect, body, options)
        if error:
            return None
        generator = generator_of(request, "resp-1", "m")
        if names:
            generator = generator.with_namespace_tool_map(names)
        processor = recipe.StreamProcessor(generator, request.parsing_options)
        answer = RESPONSES[dialect]("resp-1", "m", 0, 7, 3)
        chunk = recipe.InferenceChunk
        pushed = [chunk.ready(prompt_usage=recipe.PromptUsage(prompt_tokens=7,
                                                              prompt_cache_hit_tokens=3),
                              system_fingerprint="fp")]
        pushed += [chunk.text(text, 1) for text in chunks]
        if finish:
            reasons = {"stop": "Stop", "length": "Length", "content_filter": "ContentFilter"}
            pushed.append(chunk.finish(getattr(recipe.InferenceFinishReason, reasons[finish])))
        for one in pushed:
            if processor.finished:  # behind a stop string
                break
            for event in processor.push(one):
                answer.accumulate(event)
        for event in processor.finish():
            answer.accumulate(event)
        return {"final": json.loads(answer.to_json())}


class Mutator:
    """Changes recorded requests: values from elsewhere in the corpus, odd ones, other places."""

    def __init__(self, cases, rng):
        self.rng = rng
        self.requests = [case["request"] for case in cases if isinstance(case.get("request"), dict)]
        self.values = {}
        for request in self.requests:
            self.collect(request)

    def collect(self, value):
        if isinstance(value, dict):
            for key, child in value.items():
                self.values.setdefault(key, []).append(child)
                self.collect(child)
        elif isinstance(value, list):
            for child in value:
                self.collect(child)

    def places(self, value, out):
        """Every (container, key) of a tree."""
        if isinstance(value, dict):
            keys = list(value)
        elif isinstance(value, list):
            keys = range(len(value))
        else:
            return out
        for key in keys:
            out.append((value, key))
            self.places(value[key], out)
        return out

    def other_value(self, key):
        if isinstance(key, str) and self.rng.random() < 0.7 and self.values.get(key):
            return copy.deepcopy(self.rng.choice(self.values[key]))
        return copy.deepcopy(self.rng.choice(ODD_VALUES))

    def change(self, request):
        rng = self.rng
        if rng.random() < 0.35:  # a field of another request
            donor = rng.choice(self.requests)
            key = rng.choice(list(donor) or ["model"])
            if key in ("messages", "input") and isinstance(request.get(key), list) and \
                    isinstance(donor[key], list):
                at = rng.randrange(len(request[key]) + 1)
                request[key][at:at] = copy.deepcopy(donor[key])
            else:
                request[key] = copy.deepcopy(donor[key])
            return
        container, key = rng.choice(self.places(request, []) or [(request, "model")])
        kind = rng.randrange(4)
        if kind == 0:
            if isinstance(container, dict):
                container.pop(key, None)
            else:
                del container[key]
        elif kind == 1 and isinstance(container, list):
            container.insert(rng.randrange(len(container) + 1), copy.deepcopy(container[key]))
        elif kind == 2 and isinstance(container, dict):
            extra = rng.choice(list(self.values))
            container[extra] = self.other_value(extra)
        else:
            container[key] = self.other_value(key)

    def next(self):
        request = copy.deepcopy(self.rng.choice(self.requests))
        for _ in range(self.rng.choice((1, 1, 1, 2, 2, 3))):
            self.change(request)
        return request


def outputs_of(case):
    """The text chunks of a recorded stream; None where they are ids."""
    chunks = []
    for chunk in case["chunks"]:
        text = chunk if isinstance(chunk, str) else chunk.get("text")
        if text is None:
            return None
        chunks.append(text)
    return chunks


def cut_at_random(text, rng):
    chunks = []
    while text:
        size = rng.choice((1, 1, 2, 3, 5, 8, 13, 60))
        chunks.append(text[:size])
        text = text[size:]
    return chunks


def main():
    tokenizer, folder, count, seed = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    reference = Reference(tokenizer)
    for dialect in DIALECTS:
        rng = random.Random(seed + dialect)
        cases = json.loads((folder / ("recipe_%s.json" % dialect)).read_text(encoding="utf-8"))
        mutator = Mutator(cases, rng)
        option_sets = [case.get("options") or {} for case in cases]
        for _ in range(count):
            request = mutator.next()
            options = {k: v for k, v in rng.choice(option_sets).items() if k != "model_aliases"}
            body = json.dumps(request)
            print(json.dumps({"dialect": dialect, "raw": body, "options": options,
                              "expect": reference.encode(dialect, body, options)}))
        composer = Composer(random.Random(seed + dialect + "composed"))
        for _ in range(count):
            body = composer.next(dialect)
            print(json.dumps({"dialect": dialect, "raw": body, "options": {},
                              "expect": reference.encode(dialect, body, {})}))
    for dialect in DIALECTS:
        rng = random.Random(seed + dialect + "stream")
        lines = (folder / ("recipe_stream_%s.jsonl" % dialect)).read_text(encoding="utf-8")
        streams = [(case, "".join(chunks)) for line in lines.split("\n") if line
                   for case in [json.loads(line)] if (chunks := outputs_of(case)) is not None]
        for _ in range(count):
            case, text = rng.choice(streams)
            chunks, finish = cut_at_random(text, rng), rng.choice(FINISHES)
            options = case.get("options") or {}
            expect = reference.parse(dialect, json.dumps(case["request"]), options, chunks, finish)
            if expect:
                print(json.dumps({"dialect": dialect, "name": case["name"],
                                  "request": case["request"], "options": options,
                                  "chunks": chunks, "finish": finish, "expect": expect}))


if __name__ == "__main__":
    main()
