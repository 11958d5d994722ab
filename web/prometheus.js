// The text form of /metrics as samples, and what the dashboard asks of two of them.

const LINE = /^deepinfer:([a-z0-9_]+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-z_]+)="((?:[^"\\]|\\.)*)"/g;

export class Sample {
  constructor(text, time) {
    this.time = time;
    this.series = new Map();
    for (const line of text.split("\n")) {
      const match = LINE.exec(line);
      if (!match) continue;
      const labels = {};
      for (const [, key, value] of (match[2] || "").matchAll(LABEL)) labels[key] = value;
      if (!this.series.has(match[1])) this.series.set(match[1], []);
      this.series.get(match[1]).push({ labels, value: Number(match[3]) });
    }
  }

  // Sum over all series of this name whose labels include `want`.
  sum(name, want = {}) {
    let total = 0;
    for (const { labels, value } of this.series.get(name) || []) {
      if (Object.entries(want).every(([key, wanted]) => labels[key] === wanted)) total += value;
    }
    return total;
  }

  // Values of a label of this name, in order of appearance.
  values(name, label) {
    return [...new Set((this.series.get(name) || []).map(({ labels }) => labels[label]))];
  }
}

export function rate(before, after, name, want) {
  const spent = (after.time - before.time) / 1000;
  return spent > 0 ? Math.max(0, after.sum(name, want) - before.sum(name, want)) / spent : 0;
}

// Percentile of what a histogram saw between two samples, linear inside a bucket; NaN when nothing.
export function percentile(before, after, name, share) {
  const bounds = after.values(name + "_bucket", "le");
  const grown = bounds.map((le) => after.sum(name + "_bucket", { le }) - before.sum(name + "_bucket", { le }));
  const total = grown[grown.length - 1];
  if (!(total > 0)) return NaN;
  const rank = share * total;
  const at = grown.findIndex((seen) => seen >= rank);
  const low = at > 0 ? Number(bounds[at - 1]) : 0;
  if (bounds[at] === "+Inf") return low;
  const below = at > 0 ? grown[at - 1] : 0;
  return low + (Number(bounds[at]) - low) * (rank - below) / Math.max(grown[at] - below, 1e-9);
}
