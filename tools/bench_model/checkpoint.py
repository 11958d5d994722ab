"""Writes a checkpoint folder, and compares a folder's tensor names and shapes with the generator's."""

import json
import pathlib
import struct

import numpy as np

from . import dimensions
from .tensors import stored, tensors
from .tokenizer import SPECIAL, make_tokenizer, token_classes
from .values import write_tensor


def shards_of(c, weight_format, shard_bytes):
    """Stored tensors in files of about shard_bytes; groups stay whole."""
    shards, current, size, last_group = [], [], 0, None
    for tensor in tensors(c):
        for item in stored(tensor, weight_format):
            if current and size + item.size_bytes > shard_bytes and tensor.group != last_group:
                shards.append(current)
                current, size = [], 0
            current.append(item)
            size, last_group = size + item.size_bytes, tensor.group
    return shards + [current]


def write_shard(path, seed, items, weight_format):
    # Wide items first: every tensor is then aligned to its item.
    items = sorted(items, key=lambda item: (-item.item_bytes, item.name))
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for item in items:
        header[item.name] = dict(dtype=item.dtype, shape=list(item.shape),
                                 data_offsets=[offset, offset + item.size_bytes])
        offset += item.size_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for item in items:
            write_tensor(file, seed, item, weight_format)
        if file.tell() != 8 + len(text) + offset:
            raise SystemExit("%s has a wrong length" % path)
    return offset


def write_json(path, value, **options):
    path.write_text(json.dumps(value, ensure_ascii=False, **options), encoding="utf-8")


def write_side_files(c, folder, weight_format):
    """config.json and the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, tokens, texts = make_tokenizer(c["vocab"])
    classes, num_classes = token_classes(tokens, texts)
    write_json(folder / "config.json", dimensions.config_json(c, weight_format, num_classes),
               indent=1)
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json",
               dict(tokenizer_class="PreTrainedTokenizerFast", bos_token=SPECIAL[0],
                    eos_token=SPECIAL[1], pad_token=SPECIAL[2]))
    # What other programs need to compute Engram rows.
    write_json(folder / "engram_meta.json",
               dict(token_map=classes, compressed_vocab_size=num_classes, pad_token_id=2,
                    engram_layer_ids=c["engram_layers"],
                    multipliers=engram_multipliers(c, num_classes),
                    primes=dimensions.engram_primes(c)))


def engram_multipliers(c, num_classes):
    """As decimal text: they exceed what JSON numbers hold exactly (model.md §10.1)."""
    high = max(1, (np.iinfo(np.int64).max // num_classes) // 2)
    return [[str(int(v) * 2 + 1) for v in
             np.random.default_rng(10007 * layer).integers(0, high, size=(c["engram_ngram"],),
                                                           dtype=np.int64)]
            for layer in c["engram_layers"]]


def write_checkpoint(c, out, weight_format, seed, shard_bytes):
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    index, total = {}, 0
    shards = shards_of(c, weight_format, shard_bytes)
    for i, items in enumerate(shards):
        name = "model-%05d-of-%05d.safetensors" % (i + 1, len(shards))
        size = write_shard(folder / name, seed, items, weight_format)
        index.update({item.name: name for item in items})
        total += size
        print("%s  %.3f GB" % (name, size / 1e9), flush=True)
    write_json(folder / "model.safetensors.index.json",
               dict(metadata=dict(total_size=total), weight_map=index), indent=1, sort_keys=True)
    write_side_files(c, folder, weight_format)


def read_headers(folder):
    """{tensor: (dtype, shape)} of all safetensors files of a folder."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with open(path, "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        found.update({k: (v["dtype"], tuple(v["shape"])) for k, v in header.items()})
    return found


def compare_with(folder, weight_format):
    """True when a real checkpoint has exactly the tensors the generator would write."""
    config = pathlib.Path(folder) / "config.json"
    c = dimensions.with_layer_roles(dimensions.from_config(config))
    ours = {item.name: (item.dtype, tuple(item.shape))
            for tensor in tensors(c) for item in stored(tensor, weight_format)}
    theirs = read_headers(folder)
    differing = [n for n in sorted(set(ours) | set(theirs)) if ours.get(n) != theirs.get(n)]
    for name in differing[:20]:
        print("differs: %s, generator %s, checkpoint %s" % (name, ours.get(name), theirs.get(name)))
    with open(config, encoding="utf-8") as file:
        rows = json.load(file)["text_config"]["engram_num_embeddings"]
    rows_agree = dimensions.engram_rows(c) == list(rows)
    print("%d tensors compared, %d differ; Engram rows %s" %
          (len(theirs), len(differing), "agree" if rows_agree else "DIFFER"))
    return not differing and rows_agree
