// What the browser keeps: conversations, each under a key of its own, and settings.

const PREFIX = "tensorplug.chat.";
const SETTINGS = "tensorplug.settings";

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null; // damaged by hand: as if it were not there
  }
}

function isConversation(value) {
  return value !== null && typeof value === "object" && typeof value.id === "string"
    && typeof value.title === "string" && Array.isArray(value.messages)
    && value.messages.every((m) => typeof m?.content === "string" && typeof m?.role === "string");
}

/** All conversations, the one that changed last first. */
export function conversations() {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  return keys.map(read).filter(isConversation).sort((a, b) => (b.changed ?? 0) - (a.changed ?? 0));
}

export function fresh() {
  return { id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: "", messages: [], changed: 0 };
}

/** Keeps a conversation; false where the browser's room is used up. */
export function keep(conversation) {
  conversation.changed = Date.now();
  try {
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
    return true;
  } catch {
    return false;
  }
}

export function has(id) {
  return localStorage.getItem(PREFIX + id) !== null;
}

export function remove(id) {
  localStorage.removeItem(PREFIX + id);
}

export function settings() {
  const found = read(SETTINGS);
  return found !== null && typeof found === "object" ? found : {};
}

export function setSettings(values) {
  localStorage.setItem(SETTINGS, JSON.stringify(values));
}
