"""One round of the transformers measurement: its V4 model at the dimensions of a checkpoint, random
weights in bf16, eager.

Runs in the virtual environment that benchmarks/peers/setup made; called by compare.py. Prints one
JSON line a row: {"row": ..., "value": tokens per second}.
"""

import argparse
import json
import pathlib
import time

import torch
from transformers.models.deepseek_v4 import DeepseekV4Config, DeepseekV4ForCausalLM

# V4 alternates these ratios after two layers without compression.
V4_RATIOS = [4, 128]


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


def decode(model, prompts, num_tokens):
    """(prefill seconds, decode seconds) of a batch."""
    start = time.perf_counter()
    out = model(prompts, use_cache=True)
    middle = time.perf_counter()
    for _ in range(num_tokens):
        ids = out.logits[:, -1:].argmax(-1)
        out = model(ids, past_key_values=out.past_key_values, use_cache=True)
    return middle - start, time.perf_counter() - middle


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder with config.json")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--gen-tokens", type=int, default=16)
    parser.add_argument("--batches", default="1,4,8")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_default_dtype(torch.bfloat16)
    text = json.loads((pathlib.Path(arguments.model) / "config.json").read_text())["text_config"]
    model = DeepseekV4ForCausalLM(v4_config(text)).eval()
    with torch.inference_mode():
        for batch in map(int, arguments.batches.split(",")):
            # A long prompt for the prefill; batches start short, as their prefill is not timed.
            length = arguments.prompt_tokens if batch == 1 else 32
            prompts = torch.randint(3, text["vocab_size"] - 2, (batch, length))
            prefill_s, decode_s = decode(model, prompts, arguments.gen_tokens)
            if batch == 1:
                print(json.dumps({"row": "prefill", "value": length / prefill_s}), flush=True)
            print(json.dumps({"row": "decode batch %d" % batch,
                              "value": batch * arguments.gen_tokens / decode_s}), flush=True)


if __name__ == "__main__":
    main()
