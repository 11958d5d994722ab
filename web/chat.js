// The chat page: one conversation, kept in this tab only.
import { getJson, streamChat } from "./api.js";
import { applyTheme, count, money, priceOf, renderText, seconds } from "./format.js";

const byId = (id) => document.getElementById(id);
const history = [];
let settings = { thinking: "enabled", ...JSON.parse(localStorage.getItem("settings") || "{}") };
let server = { model: "", prices: null };
let running = null; // AbortController of the answer in progress
let conversation = 0; // counts resets: what an older one still sends is dropped
let totals = { tokens: 0, pico: 0 };

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}

function button(label, action) {
  const node = element("button", "small", label);
  node.type = "button";
  node.addEventListener("click", action);
  return node;
}

// Stays at the end of the text unless the reader scrolled away.
function keepAtEnd(change) {
  const box = byId("scroll");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
  change();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function addMessage(role) {
  byId("empty").hidden = true;
  const node = element("article", "message " + role);
  node.setAttribute("aria-label", role === "user" ? "You" : "Answer");
  keepAtEnd(() => byId("messages").append(node));
  return node;
}

// An answer while it grows.
class Answer {
  constructor() {
    this.node = addMessage("assistant");
    this.details = element("details");
    this.summary = element("summary", "", "Thinking");
    this.thought = element("div");
    this.details.append(this.summary, this.thought);
    this.details.hidden = true;
    this.body = element("div", "body");
    this.foot = element("div", "foot muted");
    this.node.append(this.details, this.body, this.foot);
    this.content = "";
    this.reasoning = "";
    this.started = performance.now();
    this.first = 0;
    this.usage = null;
  }

  take(event) {
    if (event.usage) this.usage = event.usage;
    const choice = event.choices[0];
    if (!choice) return;
    this.first ||= performance.now();
    this.reasoning += choice.delta.reasoning_content || "";
    this.content += choice.delta.content || "";
    if (choice.finish_reason) this.finish = choice.finish_reason;
    keepAtEnd(() => {
      this.details.hidden = !this.reasoning;
      renderText(this.thought, this.reasoning);
      renderText(this.body, this.content);
    });
  }

  end(note) {
    const items = [];
    if (this.usage) {
      const own = this.usage.deepinfer || {};
      items.push(count(this.usage.prompt_cache_hit_tokens) + " cached",
                 count(this.usage.prompt_cache_miss_tokens) + " computed",
                 count(this.usage.completion_tokens) + " generated");
      if (own.draft_accepted_tokens) items.push(count(own.draft_accepted_tokens) + (own.draft_accepted_tokens === 1 ? " draft kept" : " drafts kept"));
      const spent = (performance.now() - this.first) / 1000;
      items.push("first token " + seconds((this.first - this.started) / 1000));
      if (spent > 0) items.push((this.usage.completion_tokens / spent).toFixed(0) + " tok/s");
      totals.tokens += this.usage.total_tokens;
      if (server.prices) {
        const pico = priceOf(this.usage, server.prices);
        totals.pico += pico;
        items.push(money(pico, server.prices.currency));
      }
    }
    if (note) items.push(note);
    for (const item of items) this.foot.append(element("span", "", item));
    this.foot.append(button("Copy", async (event) => {
      await navigator.clipboard.writeText(this.content);
      event.target.textContent = "Copied";
    }));
    showTotals();
  }

  fail(error) {
    this.body.append(element("p", "error", error.message));
  }
}

function showTotals() {
  let text = totals.tokens ? count(totals.tokens) + " tokens" : "";
  if (text && server.prices) text += ", " + money(totals.pico, server.prices.currency);
  byId("total").textContent = text;
}

function requestBody() {
  const body = {
    model: server.model,
    messages: history.slice(),
    stream: true,
    stream_options: { include_usage: true },
    thinking: { type: settings.thinking },
  };
  if (settings.system) body.messages.unshift({ role: "system", content: settings.system });
  if (settings.effort && settings.thinking === "enabled") body.reasoning_effort = settings.effort;
  for (const key of ["temperature", "top_p", "max_tokens", "seed"]) {
    if (settings[key] !== undefined && settings[key] !== "") body[key] = Number(settings[key]);
  }
  return body;
}

async function answer() {
  running = new AbortController();
  setRunning(true);
  const mine = conversation;
  const view = new Answer();
  let note = "";
  try {
    for await (const event of streamChat(requestBody(), running.signal)) view.take(event);
    if (view.finish && view.finish !== "stop") note = "ended: " + view.finish;
  } catch (error) {
    if (error.name === "AbortError") note = "stopped";
    else view.fail(error);
  }
  if (mine !== conversation) return;
  if (view.content || view.reasoning) {
    history.push({ role: "assistant", content: view.content });
  } else {
    history.pop();  // a question without an answer is not asked again
  }
  view.end(note);
  running = null;
  setRunning(false);
}

function setRunning(on) {
  byId("send").hidden = on;
  byId("stop").hidden = !on;
  if (!on) byId("prompt").focus();
}

function send() {
  const prompt = byId("prompt");
  const text = prompt.value.trim();
  if (!text || running) return;
  prompt.value = "";
  history.push({ role: "user", content: text });
  renderText(addMessage("user"), text);
  byId("scroll").scrollTop = byId("scroll").scrollHeight;
  answer();
}

function reset() {
  if (running) running.abort();
  running = null;
  ++conversation;
  history.length = 0;
  totals = { tokens: 0, pico: 0 };
  byId("messages").replaceChildren();
  byId("empty").hidden = false;
  showTotals();
  setRunning(false);
}

function openSettings() {
  const form = byId("settings").querySelector("form");
  for (const field of form.elements) {
    if (field.name) field.value = field.name === "key" ? sessionStorage.getItem("key") || "" : settings[field.name] ?? "";
  }
  byId("settings").showModal();
}

function closeSettings() {
  const data = Object.fromEntries(new FormData(byId("settings").querySelector("form")));
  sessionStorage.setItem("key", data.key);
  delete data.key;
  settings = data;
  localStorage.setItem("settings", JSON.stringify(data));
  applyTheme(settings.theme);
  connect();
}

async function connect() {
  try {
    const version = await getJson("/version");
    server = { model: version.model_name, prices: version.price_book || null };
    byId("model").textContent = version.model_name;
    byId("model").classList.remove("error");
  } catch (error) {
    byId("model").textContent = error.message;
    byId("model").classList.add("error");
  }
}

byId("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !byId("settings").open) running.abort();
});
byId("stop").addEventListener("click", () => running && running.abort());
byId("new").addEventListener("click", reset);
byId("open-settings").addEventListener("click", openSettings);
byId("settings").addEventListener("close", closeSettings);
applyTheme(settings.theme);
connect();
