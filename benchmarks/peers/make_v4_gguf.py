#!/usr/bin/env python3
"""Writes a GGUF file of architecture deepseek4 with random weights and the dimensions of a preset.

llama.cpp has no V4.1 yet; V4 of the same width, experts, heads and hyper-connections is the nearest
work it can run (compression ratios 4 and 128 instead of 2 and 1, no Engram, one more compressor a
layer). Needs numpy and the gguf package inside the sources of llama.cpp in PYTHONPATH; called so by
benchmarks/peers/run.

  make_v4_gguf.py OUT.gguf --preset mid --dense Q8_0 --experts MXFP4
"""

import argparse
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import gguf  # noqa: E402
import numpy as np  # noqa: E402
from bench_model import dimensions, values  # noqa: E402

HC_MIXES_FACTOR = 2
SQRT_SOFTPLUS = 4  # llama.cpp's number of the gating function


class Writer:
    def __init__(self, path, c, dense, experts):
        self.c, self.dense, self.experts = c, dense, experts
        self.random = np.random.default_rng(1)
        self.gguf = gguf.GGUFWriter(path, "deepseek4", use_temp_file=False)
        layers = c["layers"]
        self.ratios = [0, 0] + [4 if i % 2 == 0 else 128 for i in range(layers - 2)]

    def quantised(self, name, shape, kind, fan):
        """Blocks of random codes with values of variance 1/fan."""
        count, std = math.prod(shape), fan ** -0.5
        if kind == "Q8_0":
            blocks = np.empty((count // 32, 34), np.uint8)
            blocks[:, :2] = np.array([std / 60], np.float16).view(np.uint8)
            codes = np.clip(np.round(values.NORMAL_256 * 48), -127, 127).astype(np.int8)
            random = np.frombuffer(self.random.bytes(count), np.uint8)
            blocks[:, 2:] = codes.view(np.uint8)[random].reshape(-1, 32)
        elif kind == "MXFP4":
            blocks = np.frombuffer(self.random.bytes(count // 32 * 17), np.uint8)
            blocks = blocks.reshape(-1, 17).copy()
            blocks[:, 0] = 127 + round(math.log2(std / values.E2M1_RMS))
            blocks[:, 1:] = values.E2M1_OF_BYTE[blocks[:, 1:]]
        else:
            raise SystemExit("no form for " + kind)
        data = blocks.reshape(-1)
        row_bytes = len(data) // (count // shape[-1])
        self.gguf.add_tensor(name, data.reshape([*shape[:-1], row_bytes]),
                             raw_dtype=gguf.GGMLQuantizationType[kind])

    def matrix(self, name, out, width, fan=None):
        self.quantised(name, [out, width], self.dense, fan or width)

    def floats(self, name, shape, std=0.0, mean=0.0):
        normal = self.random.standard_normal(shape, np.float32)
        self.gguf.add_tensor(name, normal * np.float32(std) + np.float32(mean))

    def norm(self, name, size):
        self.floats(name, [size], 0.1, 1)

    def metadata(self, title):
        c, w, layers = self.c, self.gguf, self.c["layers"]
        w.add_name(title)
        w.add_vocab_size(c["vocab"])
        w.add_context_length(65536)
        w.add_embedding_length(c["dim"])
        w.add_embedding_length_out(c["dim"] * c["hc"])
        w.add_block_count(layers)
        w.add_feed_forward_length(c["inter"])
        w.add_head_count(c["heads"])
        w.add_head_count_kv(1)
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
        w.add_rope_dimension_count(c["rope_dim"])
        w.add_rope_freq_base(10000.0)
        w.add_layer_norm_rms_eps(1e-6)
        w.add_q_lora_rank(c["q_lora"])
        w.add_sliding_window(c["window"])
        w.add_expert_count(c["experts"])
        w.add_expert_used_count(c["topk"])
        w.add_expert_feed_forward_length(c["inter"])
        w.add_expert_shared_count(1)
        w.add_expert_weights_scale(c["route_scale"])
        w.add_expert_weights_norm(True)
        w.add_uint32("deepseek4.expert_gating_func", SQRT_SOFTPLUS)
        w.add_swiglu_clamp_exp([c["swiglu_limit"]] * layers)
        w.add_swiglu_clamp_shexp([c["swiglu_limit"]] * layers)
        w.add_indexer_head_count(c["index_heads"])
        w.add_indexer_key_length(c["index_dim"])
        w.add_indexer_top_k(c["index_topk"])
        w.add_attention_output_group_count(c["o_groups"])
        w.add_attention_output_lora_rank(c["o_lora"])
        w.add_attention_compress_ratios(self.ratios)
        w.add_attention_compress_rope_freq_base(160000.0)
        w.add_hyper_connection_count(c["hc"])
        w.add_hyper_connection_sinkhorn_iterations(20)
        w.add_hyper_connection_epsilon(1e-6)
        w.add_hash_layer_count(0)
        w.add_tokenizer_model("none")

    def ends(self):
        c, dim, copies = self.c, self.c["dim"], self.c["hc"]
        self.matrix("token_embd.weight", c["vocab"], dim, fan=64)
        self.norm("output_norm.weight", dim)
        self.matrix("output.weight", c["vocab"], dim, fan=dim / 16)
        self.floats("output_hc_fn.weight", [copies, copies * dim], (copies * dim) ** -0.5)
        self.floats("output_hc_base.weight", [copies], 0.5)
        self.floats("output_hc_scale.weight", [1], 0.0, 0.5)

    def attention(self, block):
        c, dim, q_width = self.c, self.c["dim"], self.c["heads"] * self.c["head_dim"]
        o_width = c["o_groups"] * c["o_lora"]
        self.norm(block + "attn_norm.weight", dim)
        self.floats(block + "attn_sinks.weight", [c["heads"]], 0.5)
        self.matrix(block + "attn_q_a.weight", c["q_lora"], dim)
        self.norm(block + "attn_q_a_norm.weight", c["q_lora"])
        self.matrix(block + "attn_q_b.weight", q_width, c["q_lora"])
        self.matrix(block + "attn_kv.weight", c["head_dim"], dim)
        self.norm(block + "attn_kv_a_norm.weight", c["head_dim"])
        self.matrix(block + "attn_output_a.weight", o_width, q_width // c["o_groups"])
        self.matrix(block + "attn_output_b.weight", dim, o_width)

    def hyper_connections(self, block):
        copies, dim = self.c["hc"], self.c["dim"]
        mixes = (HC_MIXES_FACTOR + copies) * copies
        for site in ("attn", "ffn"):
            prefix = "%shc_%s" % (block, site)
            self.floats(prefix + "_fn.weight", [mixes, copies * dim], (copies * dim) ** -0.5)
            self.floats(prefix + "_base.weight", [mixes], 0.5)
            self.floats(prefix + "_scale.weight", [3], 0.5)

    def compressor(self, block, ratio):
        c, dim = self.c, self.c["dim"]
        # Ratio 4 pools two overlapping groups.
        width = (2 if ratio == 4 else 1) * c["head_dim"]
        for part in ("kv", "gate"):
            self.matrix(block + "attn_compressor_%s.weight" % part, width, dim)
        self.floats(block + "attn_compressor_ape.weight", [ratio, width], 0.1)
        self.norm(block + "attn_compressor_norm.weight", c["head_dim"])
        if ratio != 4:
            return
        self.matrix(block + "indexer.proj.weight", c["index_heads"], dim)
        self.matrix(block + "indexer.attn_q_b.weight", c["index_heads"] * c["index_dim"],
                    c["q_lora"])
        for part in ("kv", "gate"):
            self.matrix(block + "indexer_compressor_%s.weight" % part, 2 * c["index_dim"], dim)
        self.floats(block + "indexer_compressor_ape.weight", [4, 2 * c["index_dim"]], 0.1)
        self.norm(block + "indexer_compressor_norm.weight", c["index_dim"])

    def feed_forward(self, block):
        c, dim, inter, experts = self.c, self.c["dim"], self.c["inter"], self.c["experts"]
        self.floats(block + "ffn_gate_inp.weight", [experts, dim], 2 * dim ** -0.5)
        self.floats(block + "exp_probs_b.bias", [experts], 0.02)
        self.norm(block + "ffn_norm.weight", dim)
        for name, out, width in (("gate", inter, dim), ("up", inter, dim), ("down", dim, inter)):
            self.quantised(block + "ffn_%s_exps.weight" % name, [experts, out, width],
                           self.experts, width)
            self.matrix(block + "ffn_%s_shexp.weight" % name, out, width)

    def write(self, title):
        self.metadata(title)
        self.ends()
        for layer, ratio in enumerate(self.ratios):
            block = "blk.%d." % layer
            self.attention(block)
            self.hyper_connections(block)
            if ratio:
                self.compressor(block, ratio)
            self.feed_forward(block)
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--preset", choices=sorted(dimensions.PRESETS), default="mid")
    parser.add_argument("--dense", default="Q8_0")
    parser.add_argument("--experts", default="MXFP4")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    given = dict(dimensions.PRESETS[arguments.preset])
    for setting in arguments.set:
        key, _, value = setting.partition("=")
        given[key] = json.loads(value)
    c = dimensions.with_layer_roles(given)
    Writer(arguments.out, c, arguments.dense, arguments.experts).write("v4-" + arguments.preset)


if __name__ == "__main__":
    main()
