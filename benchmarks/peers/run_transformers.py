"""One round of the transformers measurement: its V4 model at the dimensions of a checkpoint, random
weights in bf16, eager.

Runs in the virtual environment that benchmarks/peers/setup made; called by benchmarks/peers/run.
Prints one JSON line a row: {"row": ..., "value": tokens per second}.
"""

import json
import pathlib
import time

import torch
from transformers.initialization import no_init_weights
from transformers.models.deepseek_v4 import DeepseekV4Config, DeepseekV4ForCausalLM

from peer_script import parse_arguments, print_row

# V4 alternates these ratios after two layers without compression.
V4_RATIOS = [4, 128]
POOL_SIZE = (1 << 20) + 7  # not a multiple of a row, so that rows differ


def v4_config(text):
    layers = text["num_hidden_layers"]
    ratios = [0, 0] + (V4_RATIOS * layers)[:layers - 2]
    same = ["vocab_size", "hidden_size", "moe_intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim", "qk_rope_head_dim",
            "q_lora_rank", "o_lora_rank", "o_groups", "n_routed_experts", "num_experts_per_tok",
            "index_n_heads", "index_head_dim", "index_topk"]
    return DeepseekV4Config(**{key: text[key] for key in same}, num_nextn_predict_layers=0,
                            compress_ratios=ratios, num_hash_layers=0,
                            max_position_embeddings=65536)


def fill(parameter, pool):
    """Matrices get normal values of variance 1/width, from a pool that repeats: drawing every value
    would take longer than the measurement. Vectors scale, and are one."""
    if parameter.dim() < 2:
        parameter.fill_(1)
        return
    flat = parameter.view(-1)
    scaled = pool * parameter.shape[-1] ** -0.5
    for begin in range(0, flat.numel(), POOL_SIZE):
        part = flat[begin:begin + POOL_SIZE]
        part.copy_(scaled[:part.numel()])


def random_model(text):
    with no_init_weights():
        model = DeepseekV4ForCausalLM(v4_config(text)).eval()
    pool = torch.randn(POOL_SIZE)
    with torch.no_grad():
        for parameter in model.parameters():
            fill(parameter, pool)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.zero_()
    return model


def random_prompts(vocab_size, count, length):
    return torch.randint(3, vocab_size - 2, (count, length))


def prefill_speed(model, prompt):
    start = time.perf_counter()
    model(prompt, use_cache=True, logits_to_keep=1)
    return prompt.numel() / (time.perf_counter() - start)


def decode_speed(model, prompts, num_tokens):
    """Tokens per second of greedy steps after the prompts."""
    out = model(prompts, use_cache=True, logits_to_keep=1)
    start = time.perf_counter()
    for _ in range(num_tokens):
        ids = out.logits[:, -1:].argmax(-1)
        out = model(ids, past_key_values=out.past_key_values, use_cache=True)
    if not torch.isfinite(out.logits).all():
        raise SystemExit("the random model computes no finite logits")
    return len(prompts) * num_tokens / (time.perf_counter() - start)


def main():
    arguments = parse_arguments(__doc__, "folder with config.json")
    torch.set_num_threads(arguments.threads)
    torch.set_default_dtype(torch.bfloat16)
    text = json.loads((pathlib.Path(arguments.model) / "config.json").read_text())["text_config"]
    model = random_model(text)
    with torch.inference_mode():
        model(random_prompts(text["vocab_size"], 1, 32), use_cache=True)  # starts the threads
        if arguments.prompt_tokens:
            prompt = random_prompts(text["vocab_size"], 1, arguments.prompt_tokens)
            print_row("prefill", prefill_speed(model, prompt))
        for batch in arguments.batches:
            prompts = random_prompts(text["vocab_size"], batch, arguments.decode_prompt_tokens)
            print_row("decode %d" % batch, decode_speed(model, prompts, arguments.gen_tokens))


if __name__ == "__main__":
    main()
