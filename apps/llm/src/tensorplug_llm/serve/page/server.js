// Requests to the server: the key, errors in words, answers as they are generated.

const KEY = "tensorplug.key";

export const key = () => localStorage.getItem(KEY) ?? "";

export function setKey(value) {
  if (value) localStorage.setItem(KEY, value);
  else localStorage.removeItem(KEY);
}

export function headers(more = {}) {
  return key() ? { Authorization: `Bearer ${key()}`, ...more } : more;
}

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** What a refusal says. */
export async function problem(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

export async function get(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw new ServerError(await problem(response), response.status);
  return response.json();
}

/** Yields the chunks of a chat completion. Throws ServerError, and AbortError after `signal`. */
export async function* chat(body, signal) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw new ServerError(await problem(response), response.status);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message, 200);
    yield chunk;
  }
  throw new ServerError("The server ended the answer early.", 200);
}

/** Yields the data of server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6).trimEnd();
  }
}
