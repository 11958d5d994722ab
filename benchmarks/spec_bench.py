#!/usr/bin/env python3
"""Tables of what drafts are worth on the demo model, from speculation_bench.

usage: spec_bench.py BINARY [--batches 1,4,8,16] [--rounds 5] [--requests 48] [--modes off,scheduled]
                     [--prefix 'chrt -f 1'] [--json FILE]

Modes take turns in every round. Tokens per second are compared with the run without drafts of the
same round: median of the rounds, with the lowest and the highest.
"""

import argparse
import json
import shlex
import statistics
import subprocess


def ratios(samples, mode, base):
    """Speed of `mode` against `base`, round by round."""
    speed = {(s["mode"], s["run"], s["round"]): s["tokens"] / s["seconds"] for s in samples}
    rounds = sorted({(s["run"], s["round"]) for s in samples})
    return [speed[mode, *r] / speed[base, *r] for r in rounds]


def spread(values):
    return f"{statistics.median(values):.3f} ({min(values):.2f}-{max(values):.2f})"


def total(samples, mode, field):
    return sum(s[field] for s in samples if s["mode"] == mode)


def by_position(samples, mode, field):
    return [sum(column) for column in zip(*(s[field] for s in samples if s["mode"] == mode))]


def acceptance(samples, mode):
    """Survival and conditional acceptance of each position, as text."""
    verified = by_position(samples, mode, "verified_by_position")
    accepted = by_position(samples, mode, "accepted_by_position")
    out = []
    for k, count in enumerate(verified):
        reached = total(samples, mode, "drafts") if k == 0 else accepted[k - 1]
        if count and reached:
            out.append(f"{accepted[k] / count:.2f}/{accepted[k] / reached:.2f}")
    return " ".join(out)


def report(batch, samples):
    modes = list(dict.fromkeys(s["mode"] for s in samples))
    print(f"\n{batch} at a time, {len(samples) // len(modes)} rounds")
    print("| mode | tok/s | of off | steps | verified | accepted | tokens a verification "
          "| model, draft ms a step | acceptance by position: survival/conditional |")
    print("|---|---|---|---|---|---|---|---|---|")
    for mode in modes:
        speeds = [s["tokens"] / s["seconds"] for s in samples if s["mode"] == mode]
        steps, drafts = total(samples, mode, "steps"), total(samples, mode, "drafts")
        mean = lambda field: total(samples, mode, field) / drafts if drafts else 0.0
        per_step = lambda field: 1e3 * total(samples, mode, field) / steps
        print(f"| {mode} | {statistics.median(speeds):.0f} | {spread(ratios(samples, mode, 'off'))} "
              f"| {steps * len(modes) // len(samples)} | {mean('verified'):.2f} "
              f"| {mean('accepted'):.2f} | {1 + mean('accepted') if drafts else 0:.2f} "
              f"| {per_step('model_s'):.2f}, {per_step('draft_s'):.2f} "
              f"| {acceptance(samples, mode)} |")
    if "scheduled" not in modes:
        return
    fixed = [m for m in modes if m != "scheduled"]
    best = max(fixed, key=lambda m: statistics.median(ratios(samples, m, "off")))
    print(f"scheduled against the best fixed setting ({best}): "
          f"{spread(ratios(samples, 'scheduled', best))}")
    if "fixed 5" in modes:
        print(f"scheduled against fixed 5: {spread(ratios(samples, 'scheduled', 'fixed 5'))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--batches", default="1,4,8,16")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of a process")
    parser.add_argument("--runs", type=int, default=1, help="processes per batch size")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--modes", default="")
    parser.add_argument("--prefix", default="", help="command in front of each process")
    parser.add_argument("--json", help="file that gets all samples")
    flags = parser.parse_args()
    everything = []
    for batch in flags.batches.split(","):
        samples = []
        for run in range(flags.runs):
            command = [*shlex.split(flags.prefix), flags.binary, str(flags.rounds), batch,
                       str(flags.requests), *([flags.modes] if flags.modes else [])]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            samples += [dict(json.loads(line), run=run) for line in out.splitlines()]
        report(batch, samples)
        everything += samples
    if flags.json:
        with open(flags.json, "w") as file:
            json.dump(everything, file)


if __name__ == "__main__":
    main()
