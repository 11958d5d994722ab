"""Names, kinds, shapes and distributions of all tensors (model.md §14).

Kinds: f8 (E4M3 with a scale per 32x32), f4 (packed E2M1 with a scale per 1x32), row8 (E4M3 with a
scale per 1x32), bf (bf16), f32.
"""

import math
from dataclasses import dataclass

from .dimensions import engram_rows


@dataclass(frozen=True)
class Tensor:
    group: str  # tensors of one group are stored together
    name: str
    kind: str
    shape: tuple
    fan: int  # values have the variance 1/fan
    mean: float = 0.0
    std: float = None


@dataclass(frozen=True)
class Stored:
    """What a tensor is on disk; a quantised one is two of these."""
    tensor: Tensor
    name: str
    dtype: str
    shape: tuple
    item_bytes: int

    @property
    def size_bytes(self):
        return math.prod(self.shape) * self.item_bytes


class Listing:
    def __init__(self, c):
        self.c = c
        self.tensors = []

    def add(self, group, name, kind, shape, fan=None, mean=0.0, std=None):
        self.tensors.append(Tensor(group, name, kind, tuple(shape), fan or shape[-1], mean, std))

    def norm(self, group, name, size):
        self.add(group, name, "bf", [size], mean=1.0, std=0.1)

    def expert(self, group, prefix, kind):
        dim, inter = self.c["dim"], self.c["inter"]
        for name, shape in (("w1", [inter, dim]), ("w2", [dim, inter]), ("w3", [inter, dim])):
            self.add(group, prefix + "." + name, kind, shape)

    def attention(self, group, prefix):
        c = self.c
        dim, q_width = c["dim"], c["heads"] * c["head_dim"]
        self.add(group, prefix + ".attn_sink", "f32", [c["heads"]], std=0.5)
        self.norm(group, prefix + ".q_norm.weight", c["q_lora"])
        self.norm(group, prefix + ".kv_norm.weight", c["head_dim"])
        self.add(group, prefix + ".wq_a", "f8", [c["q_lora"], dim])
        self.add(group, prefix + ".wq_b", "f8", [q_width, c["q_lora"]])
        self.add(group, prefix + ".wkv", "f8", [c["head_dim"], dim])
        o_width = c["o_groups"] * c["o_lora"]
        self.add(group, prefix + ".wo_a", "f8", [o_width, q_width // c["o_groups"]])
        self.add(group, prefix + ".wo_b", "f8", [dim, o_width])

    def compressor(self, group, prefix, layer):
        c = self.c
        dim, head_dim = c["dim"], c["head_dim"]
        self.add(group, prefix + ".compressor.wkv.weight", "bf", [head_dim, dim], std=dim ** -0.5)
        if c["ratios"][layer] > 1:
            self.add(group, prefix + ".compressor.wgate.weight", "bf", [head_dim, dim],
                     std=dim ** -0.5)
        self.norm(group, prefix + ".compressor.norm.weight", head_dim)
        self.add(group, prefix + ".indexer.wk.weight", "bf", [c["index_dim"], head_dim],
                 std=head_dim ** -0.5)
        self.norm(group, prefix + ".indexer.k_norm.weight", c["index_dim"])

    def indexer(self, group, prefix):
        c = self.c
        width = c["index_heads"] * c["index_dim"]
        self.add(group, prefix + ".indexer.wq_b", "f8", [width, c["q_lora"]])
        self.add(group, prefix + ".indexer.weights_proj.weight", "bf", [c["index_heads"], c["dim"]],
                 std=c["dim"] ** -0.5)

    def hyper_connection(self, group, prefix):
        copies, dim = self.c["hc"], self.c["dim"]
        mixes = (2 + copies) * copies
        self.add(group, prefix + "_fn", "f32", [mixes, copies * dim], std=(copies * dim) ** -0.5)
        self.add(group, prefix + "_base", "f32", [mixes], std=0.5)
        self.add(group, prefix + "_scale", "f32", [3], std=0.5)

    def experts(self, group, prefix, num_experts):
        dim = self.c["dim"]
        self.add(group, prefix + ".gate.weight", "bf", [num_experts, dim], std=2 * dim ** -0.5)
        self.add(group, prefix + ".gate.bias", "f32", [num_experts], std=0.02)
        self.add(group, prefix + ".gate.bias_vl", "f32", [num_experts], std=0.02)
        self.expert(group, prefix + ".shared_experts", "f8")
        for e in range(num_experts):
            self.expert(group, "%s.experts.%d" % (prefix, e), "f4")

    def block(self, group, num_experts, layer=None):
        """One transformer block; layer is None for a draft layer."""
        c, attention = self.c, group + ".attn"
        self.attention(group, attention)
        if layer in c["kv_sources"]:
            self.compressor(group, attention, layer)
        if layer in c["index_sources"]:
            self.indexer(group, attention)
        self.norm(group, group + ".attn_norm.weight", c["dim"])
        self.norm(group, group + ".ffn_norm.weight", c["dim"])
        for site in ("attn", "ffn"):
            self.hyper_connection(group, "%s.hc_%s" % (group, site))
        self.experts(group, group + ".ffn", num_experts)

    def engram(self, group, num_rows):
        c = self.c
        columns = (c["engram_ngram"] - 1) * c["engram_heads"] * c["engram_dim"]
        self.add(group + ".engram", group + ".engram.embed", "row8", [num_rows, c["engram_dim"]],
                 fan=64)
        self.add(group, group + ".engram.wkv", "f8", [(c["hc"] + 1) * c["dim"], columns])
        self.add(group, group + ".engram.q_weight", "bf", [c["hc"], c["dim"]], mean=1.0, std=0.3)
        self.add(group, group + ".engram.k_weight", "bf", [c["hc"], c["dim"]], mean=1.0, std=0.3)

    def draft(self, layer):
        c, group = self.c, "mtp.%d" % layer
        dim, vocab, rank = c["dim"], c["vocab"], c["markov"]
        self.block(group, c["mtp_experts"])
        if layer == 0:
            self.add(group, group + ".main_proj", "f8", [dim, dim * len(c["targets"])])
            self.norm(group, group + ".main_norm.weight", dim)
        if layer == c["mtp"] - 1:
            self.norm(group, group + ".norm.weight", dim)
            self.add(group, group + ".markov_head.embed.weight", "bf", [vocab, rank], std=0.5)
            self.add(group, group + ".markov_head.head.weight", "bf", [vocab, rank],
                     std=4 * rank ** -0.5 / 8)
            self.add(group, group + ".confidence_head.proj.weight", "bf", [1, dim + rank],
                     std=dim ** -0.5)


def tensors(c):
    listing = Listing(c)
    listing.add("embed", "embed.weight", "bf", [c["vocab"], c["dim"]], std=0.12)
    num_rows = dict(zip(c["engram_layers"], engram_rows(c)))
    for layer in range(c["layers"]):
        group = "layers.%d" % layer
        if layer in num_rows:
            listing.engram(group, num_rows[layer])
        listing.block(group, c["experts"], layer)
    for layer in range(c["mtp"]):
        listing.draft(layer)
    listing.norm("head", "norm.weight", c["dim"])
    listing.add("head", "head.weight", "bf", [c["vocab"], c["dim"]], std=4 * c["dim"] ** -0.5)
    return listing.tensors


def up32(n):
    return (n + 31) // 32


def stored(tensor, weight_format):
    """What the tensor is on disk, in the format fp8fp4 or bf16."""
    kind, shape, name = tensor.kind, tensor.shape, tensor.name
    if kind == "f32":
        return [Stored(tensor, name, "F32", shape, 4)]
    if kind == "bf":
        return [Stored(tensor, name, "BF16", shape, 2)]
    if weight_format == "bf16":
        return [Stored(tensor, name + ".weight", "BF16", shape, 2)]
    rows, columns = shape
    scale_rows = up32(rows) if kind == "f8" else rows
    scale = Stored(tensor, name + ".scale", "F8_E8M0", (scale_rows, up32(columns)), 1)
    if kind == "f4":
        return [Stored(tensor, name + ".weight", "I8", (rows, columns // 2), 1), scale]
    return [Stored(tensor, name + ".weight", "F8_E4M3", shape, 1), scale]
