"""Dimensions of a synthetic model: presets, derived layer roles, and the config.json they stand for."""

import json
import math

DEFAULT = dict(
    vocab=16384, dim=1024, layers=12, heads=8, head_dim=512, rope_dim=64, q_lora=512, o_groups=4,
    o_lora=512, experts=64, topk=6, inter=512, shared=1, window=128, swiglu_limit=10.0,
    route_scale=1.5, ratios=None, kv_sources=None, index_sources=None, candidate=None,
    index_heads=16, index_dim=128, index_topk=512, cand_blocks=2048, cand_block=8, hc=4,
    engram_layers=None, engram_rows_start=20000, engram_ngram=4, engram_heads=4, engram_dim=64,
    mtp=3, mtp_experts=16, mtp_topk=3, markov=256, block=5, targets=None,
    max_pos=1048576, theta=10000, ctheta=160000, yarn=16, yarn_orig=65536, encoder=None)

PRESETS = {
    # Small enough for tests; all mechanisms.
    "mini": dict(layers=8, dim=256, heads=4, head_dim=128, rope_dim=32, q_lora=128, o_groups=2,
                 o_lora=128, experts=16, topk=4, inter=128, vocab=2048, index_heads=4, index_dim=64,
                 index_topk=64, cand_blocks=32, engram_rows_start=1000, engram_dim=32,
                 mtp_experts=8, markov=64),
    # The common workload: 1.5 B parameters, 0.9 GB.
    "mid": dict(),
    # The released layer shapes with few layers and experts: one layer costs what a released one does.
    "slice": dict(layers=6, dim=5120, heads=64, q_lora=1280, o_groups=8, o_lora=1024, experts=24,
                  inter=2304, index_heads=32, engram_rows_start=50000, engram_heads=8,
                  engram_dim=256, mtp=0, engram_layers=[1]),
    # The released model; writing it needs 510 GB.
    "flash": dict(layers=40, dim=5120, heads=64, q_lora=1280, o_groups=8, o_lora=1024, experts=384,
                  inter=2304, vocab=129280, index_heads=32, engram_rows_start=16000000,
                  engram_heads=8, engram_dim=256, mtp=3, mtp_experts=128,
                  kv_sources=[2, 8, 14, 20], index_sources=[2, 8, 14, 20, 24, 28, 32, 36],
                  candidate=20, engram_layers=[1, 14]),
}

# config.json key -> dimension, where both are the same value.
TEXT_KEYS = dict(
    vocab_size="vocab", hidden_size="dim", num_hidden_layers="layers", num_attention_heads="heads",
    head_dim="head_dim", qk_rope_head_dim="rope_dim", q_lora_rank="q_lora", o_groups="o_groups",
    o_lora_rank="o_lora", n_routed_experts="experts", num_experts_per_tok="topk",
    moe_intermediate_size="inter", n_shared_experts="shared", sliding_window="window",
    swiglu_limit="swiglu_limit", routed_scaling_factor="route_scale", compress_ratios="ratios",
    kv_source_layer_ids="kv_sources", index_source_layer_ids="index_sources",
    candidate_source_layer_id="candidate", index_n_heads="index_heads", index_head_dim="index_dim",
    index_topk="index_topk", candidate_topk_blocks="cand_blocks", candidate_block_size="cand_block",
    hc_mult="hc", engram_layer_ids="engram_layers", engram_vocab_size="engram_rows_start",
    engram_max_ngram_size="engram_ngram", engram_n_heads="engram_heads",
    engram_head_dim="engram_dim", num_nextn_predict_layers="mtp",
    dspark_n_routed_experts="mtp_experts", dspark_num_experts_per_tok="mtp_topk",
    dspark_markov_rank="markov", dspark_block_size="block", dspark_target_layer_ids="targets",
    max_position_embeddings="max_pos", rope_theta="theta", compress_rope_theta="ctheta")


def with_layer_roles(given):
    """Fills in the layer roles that were not given: two window layers, then ratio 2 in the encoder,
    ratio 1 in the decoder."""
    c = dict(DEFAULT, **given)
    layers = c["layers"]
    encoder = c["encoder"]
    if encoder is None:
        encoder = max(3, (layers + 1) // 2 if layers < 40 else layers // 2)
    if c["ratios"] is None:
        c["ratios"] = [0, 0] + [2] * (encoder - 2) + [1] * (layers - encoder)
    encoder = c["ratios"].index(1) if 1 in c["ratios"] else layers
    if c["kv_sources"] is None:
        middle = {2 + (encoder - 2) // 2} if encoder - 2 >= 3 else set()
        c["kv_sources"] = sorted({2} | middle | ({encoder} if encoder < layers else set()))
    if c["candidate"] is None:
        c["candidate"] = c["kv_sources"][-1]
    if c["index_sources"] is None:
        step = 2 if layers - encoder <= 6 else 4
        c["index_sources"] = sorted(set(c["kv_sources"]) | set(range(encoder + step, layers, step)))
    if c["engram_layers"] is None:
        few = len(c["kv_sources"]) <= 2
        c["engram_layers"] = [1] if few else [1, c["kv_sources"][-2]]
    if c["targets"] is None:
        c["targets"] = [layers - 3, layers - 2, layers - 1] if c["mtp"] else []
    c["ratios"] = list(c["ratios"][:layers]) + [0] * c["mtp"]
    return c


def from_config(path):
    """Dimensions of an existing config.json."""
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    text = config.get("text_config", config)
    given = {dimension: text[key] for key, dimension in TEXT_KEYS.items()}
    given["yarn"] = text["rope_scaling"]["factor"]
    given["yarn_orig"] = text["rope_scaling"]["original_max_position_embeddings"]
    return given


def config_json(c, weight_format, compressed_vocab):
    """The config.json of these dimensions; weight_format is fp8fp4 or bf16."""
    text = {key: c[dimension] for key, dimension in TEXT_KEYS.items()}
    text.update(
        model_type="deepseek_v41_text", num_key_value_heads=1, hidden_act="silu",
        rms_norm_eps=1e-20, attention_bias=False, attention_dropout=0.0, initializer_range=0.02,
        use_cache=True, tie_word_embeddings=False, scoring_func="sqrtsoftplus",
        topk_method="noaux_tc", norm_topk_prob=True, hc_sinkhorn_iters=20, hc_eps=1e-6,
        rope_scaling=dict(rope_type="yarn", factor=c["yarn"], beta_fast=32, beta_slow=1,
                          original_max_position_embeddings=c["yarn_orig"]),
        engram_num_embeddings=engram_rows(c), engram_pad_token_id=2, engram_pad_id=2,
        engram_compressed_vocab_size=compressed_vocab, dspark_noise_token_id=c["vocab"] - 1)
    config = dict(architectures=["DeepseekV41ForCausalLM"], model_type="deepseek_v41",
                  dtype="bfloat16", transformers_version="5.6.0", bos_token_id=0, eos_token_id=1,
                  pad_token_id=2, image_token_id=c["vocab"] - 2)
    if weight_format != "bf16":
        config["quantization_config"] = dict(
            quant_method="fp8", activation_scheme="dynamic", weight_block_size=[32, 32],
            scale_fmt="ue8m0", expert_dtype="fp4")
    config["text_config"] = text
    return config


def is_prime(n):
    if n < 2 or n % 2 == 0:
        return n == 2
    return all(n % d for d in range(3, math.isqrt(n) + 1, 2))


def engram_primes(c):
    """Per layer and n-gram size the next unused primes, one walk over all layers (model.md §10.1)."""
    used, layers = set(), []
    for _ in c["engram_layers"]:
        sizes = []
        for _ in range(2, c["engram_ngram"] + 1):
            prime, row = c["engram_rows_start"] - 1, []
            while len(row) < c["engram_heads"]:
                prime += 1
                if prime not in used and is_prime(prime):
                    used.add(prime)
                    row.append(prime)
            sizes.append(row)
        layers.append(sizes)
    return layers


def engram_rows(c):
    return [sum(map(sum, sizes)) for sizes in engram_primes(c)]
