#!/usr/bin/env python3
"""Writes a synthetic V4.1 checkpoint with random weights in the released safetensors layout.

Needs numpy (Debian: python3-numpy). Tensors are written in pieces, so memory stays below 200 MB
whatever the model's size; a model is a function of its dimensions and the seed.

  make_bench_model.py OUT --preset mid                    FP8 and FP4 weights, tokenizer, config.json
  make_bench_model.py OUT --preset mid --format bf16      the same values, dequantised
  make_bench_model.py OUT --preset mid --set layers=8 experts=32 dim=2048
  make_bench_model.py OUT --preset flash --config-only    config.json and tokenizer without weights,
                                                          enough for `deepinfer bench kernels OUT`
  make_bench_model.py OUT --config SOME/config.json       dimensions of an existing model
  make_bench_model.py --check DIR                         compare names and shapes with a checkpoint
"""

import argparse
import json
import pathlib
import sys

from bench_model import checkpoint, dimensions


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", help="folder to write")
    parser.add_argument("--preset", choices=sorted(dimensions.PRESETS), default="mid")
    parser.add_argument("--config", help="take the dimensions from this config.json")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE",
                        help="override dimensions, JSON values; keys: " +
                        " ".join(dimensions.DEFAULT))
    parser.add_argument("--format", choices=["fp8fp4", "bf16"], default="fp8fp4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard-gb", type=float, default=2.0)
    parser.add_argument("--config-only", action="store_true")
    parser.add_argument("--check", metavar="DIR")
    arguments = parser.parse_args()
    if not arguments.out and not arguments.check:
        parser.error("name the folder to write")
    return parser, arguments


def chosen_dimensions(parser, arguments):
    given = dict(dimensions.from_config(arguments.config) if arguments.config
                 else dimensions.PRESETS[arguments.preset])
    for setting in arguments.set:
        key, _, value = setting.partition("=")
        if key not in dimensions.DEFAULT:
            parser.error("unknown key " + key)
        given[key] = json.loads(value)
    c = dimensions.with_layer_roles(given)
    for key in ("dim", "q_lora", "inter", "head_dim", "o_lora", "engram_dim"):
        if c[key] % 32:
            parser.error("%s must be a multiple of 32" % key)
    return c


def main():
    parser, arguments = parse_arguments()
    if arguments.check:
        sys.exit(0 if checkpoint.compare_with(arguments.check, arguments.format) else 1)
    c = chosen_dimensions(parser, arguments)
    if arguments.config_only:
        checkpoint.write_side_files(c, pathlib.Path(arguments.out), arguments.format)
    else:
        checkpoint.write_checkpoint(c, arguments.out, arguments.format, arguments.seed,
                                    arguments.shard_gb * 1e9)


if __name__ == "__main__":
    main()
