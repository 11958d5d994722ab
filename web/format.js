// Text of models as elements, and numbers as text. Text never becomes markup.

// Replaces the content of `parent` by paragraphs and fenced code blocks.
export function renderText(parent, text) {
  parent.replaceChildren();
  const parts = text.split(/^```/m);
  parts.forEach((part, i) => {
    if (i % 2 === 0) {
      if (!part.trim()) return;
      const p = document.createElement("p");
      p.textContent = part.replace(/^\n+|\n+$/g, "");
      parent.append(p);
      return;
    }
    const pre = document.createElement("pre");
    const code = document.createElement("code");
    code.textContent = part.replace(/^[^\n]*\n/, "");
    pre.append(code);
    parent.append(pre);
  });
}

// Pico-units (1e-12) as an amount with the digits that say something.
export function money(pico, currency) {
  const digits = pico < 1000000000 ? 9 : pico < 1000000000000 ? 6 : 2;
  return (pico / 1e12).toFixed(digits) + " " + currency;
}

// What an answer costs: cached tokens as hits, the other prompt tokens as misses. Integers.
export function priceOf(usage, prices) {
  const cached = usage.prompt_cache_hit_tokens;
  const written = prices.cache_write ? usage.prompt_tokens_details.cache_write_tokens : 0;
  return cached * prices.hit + (usage.prompt_tokens - cached - written) * prices.miss +
      written * prices.cache_write + usage.completion_tokens * prices.output;
}

export function count(number) {
  if (number >= 1e6) return (number / 1e6).toFixed(2) + " M";
  if (number >= 1e4) return (number / 1e3).toFixed(1) + " k";
  return Number.isInteger(number) ? String(number) : number.toFixed(1);
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  return value < 1 ? (value * 1000).toFixed(value < 0.01 ? 1 : 0) + " ms" : value.toFixed(2) + " s";
}

export function applyTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}
