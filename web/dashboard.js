// The dashboard: reads /metrics once a second and shows what changed.
import { getJson, getText } from "./api.js";
import { applyTheme, count, seconds } from "./format.js";
import { Sample, percentile, rate } from "./prometheus.js";

const PERIOD_MS = 1000;
const KEPT = 121; // two minutes
const WINDOW = 60; // of percentiles, in samples
const COLOURS = ["a", "b", "c", "d"];
const TIERS = ["device", "dram", "disk", "remote"];
const byId = (id) => document.getElementById(id);
const samples = [];
const lines = { speed: [], ttft: [], itl: [], queue: [] };
let paused = false;
let version = {};
let polls = 0;

function show(id, rows) {
  const nodes = [];
  for (const [label, value, colour] of rows) {
    const dt = document.createElement("dt");
    dt.textContent = label;
    if (colour) dt.className = "key c-" + colour;
    const dd = document.createElement("dd");
    dd.textContent = value;
    nodes.push(dt, dd);
  }
  byId(id).replaceChildren(...nodes);
}

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

// values: one array per point in time, NaN for no value. write: shows the largest, which is the height.
function draw(name, values, write) {
  const kept = lines[name];
  kept.push(values);
  if (kept.length > KEPT) kept.shift();
  const most = Math.max(1e-9, ...kept.flat().filter(Number.isFinite));
  byId("most-" + name).textContent = most > 1e-9 ? "max " + write(most) : "";
  const nodes = [svg("line", { x1: 0, y1: 39.5, x2: 120, y2: 39.5 })];
  values.forEach((_, i) => {
    let path = "";
    let pen = "M";
    kept.forEach((point, at) => {
      if (!Number.isFinite(point[i])) { pen = "M"; return; }
      path += pen + (120 - (kept.length - 1 - at)) + " " + (39 - 37 * point[i] / most).toFixed(2);
      pen = "L";
    });
    if (path) nodes.push(svg("path", { d: path, class: "c-" + COLOURS[i] }));
  });
  byId("chart-" + name).replaceChildren(...nodes);
}

function bar(id, parts) {
  const total = parts.reduce((sum, part) => sum + part, 0);
  byId(id).replaceChildren(...parts.map((part, i) => {
    const node = document.createElement("span");
    node.className = "c-" + COLOURS[i];
    node.style.flexGrow = total > 0 ? part / total : 0;
    return node;
  }));
}

function percent(part, whole) {
  return whole > 0 ? (100 * part / whole).toFixed(1) + " %" : "–";
}

function showSpeed(before, now) {
  const kinds = ["cached", "computed", "generated"]; // coloured as in showSplit
  const values = kinds.map((kind) => rate(before, now, "tokens_total", { class: kind }));
  draw("speed", values, count);
  show("speed", kinds.map((kind, i) => [kind, count(values[i]), COLOURS[i]]));
}

function showTimes(name, metric, before, now) {
  const shares = [0.5, 0.9, 0.99];
  const values = shares.map((share) => percentile(before, now, metric, share));
  draw(name, values, seconds);
  show(name, shares.map((share, i) => ["p" + share * 100, seconds(values[i]), COLOURS[i]]));
}

function showQueue(before, now) {
  const running = now.sum("num_requests_running");
  const waiting = now.sum("num_requests_waiting");
  draw("queue", [running, waiting], count);
  show("queue", [
    ["running", count(running), "a"], ["waiting", count(waiting), "b"],
    ["set aside", count(now.sum("num_requests_parked"))],
    ["waiting prompt tokens", count(now.sum("waiting_prompt_tokens"))],
    ["answers per minute", count(60 * rate(before, now, "requests_total", { outcome: "ok" }))],
    ["errors, cancelled", now.sum("requests_total", { outcome: "error" }) + ", " + now.sum("requests_total", { outcome: "cancelled" })],
  ]);
}

function showSplit(now) {
  const kinds = ["cached", "computed", "generated"];
  const values = kinds.map((kind) => now.sum("tokens_total", { class: kind }));
  bar("bar-split", values);
  show("split", [
    ...kinds.map((kind, i) => [kind, count(values[i]), COLOURS[i]]),
    ["replayed, part of computed", count(now.sum("tokens_total", { class: "replayed" }))],
    ["wasted", count(now.sum("tokens_total", { class: "wasted" }))],
  ]);
}

function showCache(now) {
  const engines = Math.max(1, now.values("kv_cache_usage_perc", "engine").length);
  const tiers = TIERS.map((tier) => now.sum("cached_tokens_total", { tier }));
  bar("bar-tiers", tiers);
  show("cache", [
    ["hit rate", percent(now.sum("prefix_cache_hits_total"), now.sum("prefix_cache_queries_total"))],
    ...TIERS.map((tier, i) => [tier, count(tiers[i]), COLOURS[i]]),
    ["memory in use", percent(now.sum("kv_cache_usage_perc") / engines, 1)],
    ["blocks in use, kept", count(now.sum("blocks_in_use")) + ", " + count(now.sum("blocks_cached"))],
  ]);
}

function showDrafts(now) {
  const drafts = now.sum("spec_decode_num_drafts_total");
  const tokens = now.sum("spec_decode_num_draft_tokens_total");
  const accepted = now.sum("spec_decode_num_accepted_tokens_total");
  const positions = now.values("spec_decode_num_accepted_tokens_per_pos_total", "position")
    .sort((a, b) => a - b);
  show("drafts", [
    ["accepted", percent(accepted, tokens)],
    ["tokens per step", drafts > 0 ? (1 + accepted / drafts).toFixed(2) : "–"],
    ...positions.map((position) => ["kept at position " + (Number(position) + 1),
      percent(now.sum("spec_decode_num_accepted_tokens_per_pos_total", { position }), drafts)]),
  ]);
}

function showMoney(before, now) {
  const perHour = 3600 * rate(before, now, "revenue_usd_total");
  const spent = now.sum("cost_usd_total");
  // What the reader pays for an hour counts idle time too; a cost book counts what requests used.
  const cost = Number(byId("rate").value) || 3600 * rate(before, now, "cost_usd_total");
  const rows = [
    ["price book", version.price_book ? version.price_book.id : "none"],
    ["window", version.price_book ? version.price_book.window : "–"],
    ["revenue per hour, USD", perHour.toFixed(4)],
    ["revenue so far, USD", now.sum("revenue_usd_total").toFixed(6)],
    ["cost per hour, USD", cost > 0 || spent > 0 ? cost.toFixed(4) : "not set"],
  ];
  if (spent > 0) rows.push(["cost of requests so far, USD", spent.toFixed(6)]);
  if (cost > 0 && perHour > 0) rows.push(["gross margin", percent(perHour - cost, perHour)]);
  show("money", rows);
}

function showWorkers(before, now) {
  const rows = now.values("num_requests_running", "engine").map((engine) => {
    const row = document.createElement("tr");
    const steps = rate(before, now, "engine_steps_total", { engine });
    const tokens = rate(before, now, "rows_total", { engine });
    const cells = [engine, count(now.sum("num_requests_running", { engine })),
      count(now.sum("num_requests_waiting", { engine })), count(steps),
      steps > 0 ? count(tokens / steps) : "–",
      percent(now.sum("kv_cache_usage_perc", { engine }), 1),
      count(now.sum("blocks_in_use", { engine })), count(now.sum("blocks_cached", { engine }))];
    for (const text of cells) row.insertCell().textContent = text;
    return row;
  });
  byId("workers").replaceChildren(...rows);
}

function update() {
  const now = samples[samples.length - 1];
  const before = samples[samples.length - 2];
  const window = samples[Math.max(0, samples.length - 1 - WINDOW)];
  showSpeed(before, now);
  showTimes("ttft", "time_to_first_token_seconds", window, now);
  showTimes("itl", "inter_token_latency_seconds", window, now);
  showQueue(window, now);
  showSplit(now);
  showCache(now);
  showDrafts(now);
  showMoney(window, now);
  showWorkers(before, now);
}

async function poll() {
  if (!paused) {
    try {
      if (polls++ % 60 === 0 || !version.version) version = await getJson("/version");
      samples.push(new Sample(await getText("/metrics"), performance.now()));
      if (samples.length > KEPT) samples.shift();
      if (samples.length > 1) update();
      byId("state").textContent = version.model_name + " " + version.version;
      byId("state").classList.remove("error");
    } catch (error) {
      byId("state").textContent = error.message;
      byId("state").classList.add("error");
    }
  }
  setTimeout(poll, PERIOD_MS);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  byId("pause").textContent = paused ? "Continue" : "Pause";
});
byId("key").value = sessionStorage.getItem("key") || "";
byId("key").addEventListener("change", () => sessionStorage.setItem("key", byId("key").value));
byId("rate").value = localStorage.getItem("rate") || "";
byId("rate").addEventListener("change", () => localStorage.setItem("rate", byId("rate").value));
applyTheme(JSON.parse(localStorage.getItem("settings") || "{}").theme);
poll();
