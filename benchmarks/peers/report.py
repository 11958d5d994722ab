"""The table of benchmarks/peers/run: medians, ratios round by round, and the bars aimed at."""

import json
import os
import statistics

FLAGS = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16"]

# Aims on two threads (docs/benchmarks.md §9): tokens per second of a preset, and the ratio to the
# best peer of the same run.
BAR_THREADS = 2
SPEED_BARS = {
    "mid": {"prefill": 520, "decode 1": 130, "decode 4": 260, "decode 8": 370},
    "slice": {"prefill": 55, "decode 1": 18},
}
RATIO_BARS = {"prefill": 1.4, "decode 1": 2.0, "decode 4": 3.5, "decode 8": 3.5}


def load_average():
    return os.getloadavg()[0]


def cpu():
    """(model, the vector extensions it has)."""
    model, flags = "unknown CPU", []
    for line in open("/proc/cpuinfo", encoding="utf-8"):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() == "flags":
            flags = [flag for flag in FLAGS if flag in value.split()]
    return model, flags


def grouped(samples):
    """{(row, threads): {system: [value of each round]}}, ours first."""
    groups = {}
    for s in samples:
        systems = groups.setdefault((s["row"], s["threads"]), {})
        systems.setdefault(s["system"], []).append(s["value"])
    return groups


def ratio(ours, peer):
    """Median over the rounds of ours / peer: what drifts between rounds cancels."""
    return statistics.median(a / b for a, b in zip(ours, peer))


def rows_of(groups):
    for (row, threads), systems in sorted(groups.items(), key=lambda item: item[0][::-1]):
        for system, values in systems.items():
            line = "%-10s %d threads  %-12s %9.1f (%.1f to %.1f)" % (
                row, threads, system, statistics.median(values), min(values), max(values))
            if system != "ours" and "ours" in systems:
                line += "  ours / it %.2f" % ratio(systems["ours"], values)
            yield line


def bars_of(preset, groups):
    for (row, threads), systems in sorted(groups.items()):
        ours = systems.get("ours")
        if threads != BAR_THREADS or not ours:
            continue
        bar = SPEED_BARS.get(preset, {}).get(row)
        if bar:
            speed = statistics.median(ours)
            yield "%-10s %.1f tok/s, aim %d: %s" % (row, speed, bar, verdict(speed, bar))
        ratios = {name: ratio(ours, values) for name, values in systems.items() if name != "ours"}
        if ratios and row in RATIO_BARS:
            best = min(ratios, key=ratios.get)
            yield "%-10s %.2f times %s, the best peer, aim %.1f: %s" % (
                row, ratios[best], best, RATIO_BARS[row], verdict(ratios[best], RATIO_BARS[row]))


def verdict(value, bar):
    return "met" if value >= bar else "missed"


def text(arguments, version, samples):
    model, flags = cpu()
    loads = [s["load"] for s in samples]
    groups = grouped(samples)
    lines = [
        "%s (%s), %d processors" % (model, " ".join(flags) or "no vector extensions",
                                    os.cpu_count()),
        version,
        "numerics %s, preset %s, prompt %d, decode after %d tokens, %d tokens each" %
        (arguments.numerics, arguments.preset, arguments.prompt, arguments.decode_prompt,
         arguments.gen),
        "%d rounds in turns, started with: %s; load average %.1f to %.1f" %
        (arguments.rounds, " ".join(arguments.prefix) or "nothing before", min(loads), max(loads)),
        "tokens/s: median (lowest to highest)",
        *rows_of(groups)]
    bars = list(bars_of(arguments.preset, groups))
    return "\n".join(lines + (["", "Aims on %d threads:" % BAR_THREADS, *bars] if bars else []))


def as_json(arguments, version, samples):
    model, flags = cpu()
    return json.dumps({"cpu": model, "flags": flags, "ours": version,
                       "preset": arguments.preset, "numerics": arguments.numerics,
                       "prompt": arguments.prompt, "decode_prompt": arguments.decode_prompt,
                       "gen": arguments.gen, "prefix": arguments.prefix,
                       "samples": samples}, indent=1) + "\n"
