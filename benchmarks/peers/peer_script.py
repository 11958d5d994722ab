"""Arguments and output that the scripts driving one peer share; each runs in its peer's environment."""

import argparse
import json


def parse_arguments(description, model_help):
    """The workload of a run; `batches` as a list of numbers, without zeros."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", help=model_help)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-prompt-tokens", type=int, default=32)
    parser.add_argument("--gen-tokens", type=int, default=64)
    parser.add_argument("--batches", default="1,4,8")
    arguments = parser.parse_args()
    arguments.batches = [int(b) for b in arguments.batches.split(",") if b != "0"]
    return arguments


def print_row(row, tokens_per_s):
    print(json.dumps({"row": row, "value": tokens_per_s}), flush=True)
