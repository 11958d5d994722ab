"""One round of the llama.cpp measurement on a GGUF file: prefill and batched decode of random
prompts.

Runs in the virtual environment that benchmarks/peers/setup made, with the bindings of the same
source distribution; called by benchmarks/peers/run. Prints one JSON line a row:
{"row": ..., "value": tokens per second}.
"""

import ctypes
import time

import numpy as np
from llama_cpp import llama_cpp as api

from peer_script import parse_arguments, print_row

WARM_UP_TOKENS = 32
MICRO_BATCH_TOKENS = 512


@api.llama_log_callback
def silent(level, text, user_data):
    """Its log lists every input of every graph."""


class Session:
    def __init__(self, path, threads, num_sequences, tokens_per_sequence):
        api.llama_log_set(silent, None)
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(path.encode(),
                                                    api.llama_model_default_params())
        if not self.model:
            raise SystemExit("llama.cpp cannot load " + path)
        self.vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        parameters = api.llama_context_default_params()
        parameters.n_ctx = num_sequences * tokens_per_sequence
        parameters.n_seq_max = num_sequences
        parameters.n_batch = max(MICRO_BATCH_TOKENS, num_sequences * tokens_per_sequence)
        parameters.n_ubatch = MICRO_BATCH_TOKENS
        parameters.n_threads = parameters.n_threads_batch = threads
        self.context = api.llama_init_from_model(self.model, parameters)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context of %d tokens" % parameters.n_ctx)
        self.batch = api.llama_batch_init(parameters.n_batch, 0, 1)
        self.random = np.random.default_rng(time.time_ns())

    def clear(self):
        api.llama_memory_clear(api.llama_get_memory(self.context), True)

    def random_prompt(self, length):
        return self.random.integers(3, self.vocab_size - 2, length)

    def run(self, rows):
        """Evaluates (sequence, position, token, whether logits are wanted) in one call."""
        self.batch.n_tokens = len(rows)
        for i, (sequence, position, token, wanted) in enumerate(rows):
            self.batch.token[i] = int(token)
            self.batch.pos[i] = position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = wanted
        status = api.llama_decode(self.context, self.batch)
        if status != 0:
            raise SystemExit("llama_decode failed with %d" % status)
        api.llama_synchronize(self.context)

    def best_token(self, row):
        logits = api.llama_get_logits_ith(self.context, row)
        values = np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)),
                                       (self.vocab_size,))
        if not np.isfinite(values).all():
            raise SystemExit("the random model computes no finite logits")
        return int(values.argmax())

    def prefill(self, sequence, prompt):
        last = len(prompt) - 1
        self.run([(sequence, i, token, i == last) for i, token in enumerate(prompt)])
        return self.best_token(last)


def prefill_speed(session, num_tokens):
    session.clear()
    prompt = session.random_prompt(num_tokens)
    start = time.perf_counter()
    session.prefill(0, prompt)
    return num_tokens / (time.perf_counter() - start)


def decode_speed(session, batch, prompt_tokens, num_tokens):
    """Tokens per second of greedy steps, from the moment the last request has its first token."""
    session.clear()
    tokens = [session.prefill(s, session.random_prompt(prompt_tokens)) for s in range(batch)]
    start = time.perf_counter()
    for step in range(num_tokens):
        session.run([(s, prompt_tokens + step, tokens[s], True) for s in range(batch)])
        tokens = [session.best_token(s) for s in range(batch)]
    return batch * num_tokens / (time.perf_counter() - start)


def main():
    arguments = parse_arguments(__doc__, "GGUF file")
    session = Session(arguments.model, arguments.threads, max(arguments.batches, default=1),
                      max(arguments.prompt_tokens, WARM_UP_TOKENS,
                          arguments.decode_prompt_tokens + arguments.gen_tokens))
    prefill_speed(session, WARM_UP_TOKENS)
    if arguments.prompt_tokens:
        print_row("prefill", prefill_speed(session, arguments.prompt_tokens))
    for batch in arguments.batches:
        print_row("decode %d" % batch, decode_speed(session, batch, arguments.decode_prompt_tokens,
                                                    arguments.gen_tokens))


if __name__ == "__main__":
    main()
