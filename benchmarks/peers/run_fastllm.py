"""One round of the fastllm measurement: prefill and batched decode of random prompts.

Runs in the virtual environment that benchmarks/peers/setup made; called by
benchmarks/peers/run. Prints one JSON line a row: {"row": ..., "value": tokens per second}.
"""

import json
import os
import pathlib
import time

import numpy as np
from ftllm import benchmark
from ftllm.llm import fastllm_lib
from ftllm.util import make_normal_llm_model, make_normal_parser

POLL_S = 0.0002


class Request:
    def __init__(self, handle):
        self.handle = handle
        self.first_token_s = None
        self.token_times_s = []


def generate(model, prompts, num_tokens):
    """Starts all prompts at once; (start, requests) when all have finished."""
    greedy = dict(do_sample=False, top_p=1.0, top_k=1, temperature=1.0, repeat_penalty=1.0)
    start = time.perf_counter()
    requests = [Request(benchmark._launch_raw_response(model, prompt, num_tokens, greedy))
                for prompt in prompts]
    pending = list(requests)
    while pending:
        progressed = False
        for request in list(pending):
            if not fastllm_lib.can_fetch_response_llm_model(model.model, request.handle):
                continue
            token = fastllm_lib.fetch_response_llm_model(model.model, request.handle)
            now, progressed = time.perf_counter(), True
            if token <= -1:
                pending.remove(request)
                continue
            request.first_token_s = request.first_token_s or now
            request.token_times_s.append(now)
        if not progressed:
            time.sleep(POLL_S)
    return start, requests


def decode_speed(requests):
    """Tokens per second from the moment the last request has its first token."""
    begin = max(request.first_token_s for request in requests)
    later = [t for request in requests for t in request.token_times_s if t > begin]
    return len(later) / (max(later) - begin) if later else 0.0


def run_before_workers():
    """Under a real-time policy the workers, which spin, would keep this reader of tokens off both
    cores until the last token; one priority above theirs it only takes the time of its polls."""
    policy = os.sched_getscheduler(0)
    if policy in (os.SCHED_FIFO, os.SCHED_RR):
        priority = os.sched_getparam(0).sched_priority
        os.sched_setscheduler(0, policy, os.sched_param(priority + 1))


def print_row(row, tokens_per_s):
    print(json.dumps({"row": row, "value": tokens_per_s}), flush=True)


def main():
    parser = make_normal_parser("one round of the fastllm measurement")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-prompt-tokens", type=int, default=32)
    parser.add_argument("--gen-tokens", type=int, default=64)
    parser.add_argument("--batches", default="1,4,8")
    arguments = parser.parse_args()
    batches = [int(b) for b in arguments.batches.split(",") if b != "0"]
    arguments.max_batch = max(batches, default=1)
    model = make_normal_llm_model(arguments)
    folder = pathlib.Path(arguments.path or arguments.model)
    config = json.loads((folder / "config.json").read_text())
    vocab_size = config["text_config"]["vocab_size"]
    run_before_workers()
    random = np.random.default_rng(time.time_ns())

    def prompts(count, length):
        return [[0, *map(int, random.integers(3, vocab_size - 2, length - 1))]
                for _ in range(count)]

    generate(model, prompts(1, 64), 4)
    if arguments.prompt_tokens:
        start, requests = generate(model, prompts(1, arguments.prompt_tokens), 1)
        print_row("prefill", arguments.prompt_tokens / (requests[0].first_token_s - start))
    for batch in batches:
        _, requests = generate(model, prompts(batch, arguments.decode_prompt_tokens),
                               arguments.gen_tokens)
        print_row("decode %d" % batch, decode_speed(requests))
    os._exit(0)  # its threads outlive the interpreter's end


if __name__ == "__main__":
    main()
