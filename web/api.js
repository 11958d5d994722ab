// Requests to the server this page came from. The key stays in this tab.

export function apiKey() {
  return sessionStorage.getItem("key") || "";
}

function headers() {
  const all = { "Content-Type": "application/json" };
  if (apiKey()) all.Authorization = "Bearer " + apiKey();
  return all;
}

async function failure(response) {
  let text = "HTTP " + response.status;
  try {
    const body = await response.json();
    if (body.error && body.error.message) text += ": " + body.error.message;
  } catch {
    // An answer without a JSON body says no more than its status.
  }
  return new Error(text);
}

// A server that hangs must not stop a page that asks again.
function read(path) {
  return fetch(path, { headers: headers(), signal: AbortSignal.timeout(10000) });
}

export async function getJson(path) {
  const response = await read(path);
  if (!response.ok) throw await failure(response);
  return response.json();
}

export async function getText(path) {
  const response = await read(path);
  if (!response.ok) throw await failure(response);
  return response.text();
}

// Yields the JSON of every event of a streamed answer.
export async function* streamChat(body, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST", headers: headers(), body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw await failure(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    pending += value;
    const events = pending.split("\n\n");
    pending = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;
      const data = event.slice(6);
      if (data === "[DONE]") return;
      const json = JSON.parse(data);
      if (json.error) throw new Error(json.error.message);
      yield json;
    }
  }
}
