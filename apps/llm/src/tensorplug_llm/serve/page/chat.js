// The page: conversations on the left, messages, and a box to write in.
import { show } from "./markdown.js";
import { ServerError, chat, get, key, setKey } from "./server.js";
import * as store from "./store.js";

const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "seed"];
const NEAR = 80; // pixels from the end of a conversation within which it follows an answer

const of = (id) => document.getElementById(id);
const list = of("list"), log = of("log"), scroll = of("scroll"), prompt = of("prompt");

let current = store.fresh();
let running = null; // the AbortController of the answer that is generated, and its conversation
let models = [];

// --- drawing --------------------------------------------------------------------------------------

function made(name, className, ...children) {
  const element = document.createElement(name);
  element.className = className;
  element.append(...children);
  return element;
}

function button(text, act, className = "") {
  const element = made("button", className, text);
  element.type = "button";
  element.addEventListener("click", act);
  return element;
}

function cross() {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, "path");
  svg.setAttribute("viewBox", "0 0 16 16");
  path.setAttribute("d", "M4 4l8 8M12 4l-8 8");
  svg.append(path);
  return svg;
}

function drawList() {
  list.replaceChildren(...store.conversations().map((one) => {
    const open = button(one.title || "New conversation", () => select(one), "open");
    const drop = button(cross(), () => remove(one), "drop");
    drop.setAttribute("aria-label", `Delete: ${one.title}`);
    const row = made("div", one.id === current.id ? "at" : "", open, drop);
    if (one.id === current.id) open.setAttribute("aria-current", "true");
    return row;
  }));
}

function drawLog() {
  if (!current.messages.length) {
    const name = of("model").value;
    log.replaceChildren(made("div", "empty", made("b", "", "What shall we talk about?"), name ? `${name} answers.` : ""));
    return;
  }
  const last = current.messages.length - 1;
  log.replaceChildren(...current.messages.map((message, i) => drawn(message, i === last)));
  scroll.scrollTop = scroll.scrollHeight;
}

function drawn(message, isLast) {
  if (message.role === "user") return made("div", "mine", message.content);
  const text = made("div", "text");
  const foot = made("div", "foot");
  const element = made("article", "answer", text, foot);
  element.setAttribute("aria-label", "Answer");
  update(element, message, isLast);
  return element;
}

/** Show an answer as it is now. */
function update(element, message, isLast) {
  const [text, foot] = element.children;
  const isRunning = running?.message === message;
  element.classList.toggle("waiting", isRunning && !message.content);
  show(text, message.content);
  foot.replaceChildren();
  if (message.error) foot.append(made("div", "failed", message.error));
  if (isRunning) {
    foot.append(speed(message));
    return;
  }
  if (message.content && navigator.clipboard) {
    foot.append(button("Copy", () => navigator.clipboard.writeText(message.content)));
  }
  if (isLast) foot.append(button(message.error ? "Try again" : "Regenerate", regenerate, "again"));
  foot.append(speed(message));
}

function speed({ tokens, seconds, first, finish }) {
  const words = [];
  if (tokens) words.push(`${tokens} ${tokens === 1 ? "token" : "tokens"}`);
  if (tokens > 1 && seconds >= 0.01) words.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
  if (first !== undefined) words.push(`first after ${first.toFixed(2)} s`);
  if (finish === "length") words.push("ended at the limit of tokens");
  if (finish === "stopped") words.push("stopped");
  const element = made("span", "speed", words.join(" \u00b7 "));
  element.setAttribute("aria-live", "off");
  return element;
}

// --- conversations --------------------------------------------------------------------------------

function select(conversation) {
  if (!running || conversation.id !== current.id) open(conversation);
  drawer(false);
  prompt.focus();
}

function open(conversation) {
  stop();
  current = conversation;
  if (models.includes(current.model)) of("model").value = current.model;
  drawModel();
  drawList();
  drawLog();
}

function remove(conversation) {
  if (!confirm(`Delete "${conversation.title}"?`)) return;
  store.remove(conversation.id);
  if (conversation.id === current.id) select(store.fresh());
  else drawList();
}

function keep(conversation) {
  if (!store.keep(conversation)) {
    alert("The browser has no room for more conversations. Delete some of them to keep this one.");
  }
}

// --- answers --------------------------------------------------------------------------------------

function send() {
  const text = prompt.value.trim();
  if (!text || running) return;
  current.messages.push({ role: "user", content: text });
  current.title ||= text.replace(/\s+/g, " ").slice(0, 60);
  prompt.value = "";
  fit();
  answer();
}

function regenerate() {
  if (running) return;
  while (current.messages.at(-1)?.role === "assistant") current.messages.pop();
  answer();
}

/** The messages without those that got no answer: templates take questions and answers in turns. */
function answered(messages) {
  return messages.filter(({ content }, i) => content && (messages[i + 1]?.content ?? true));
}

async function answer() {
  const conversation = current;
  const messages = answered(conversation.messages).map(({ role, content }) => ({ role, content }));
  const message = { role: "assistant", content: "", tokens: 0 };
  conversation.model = of("model").value;
  conversation.messages.push(message);
  running = { abort: new AbortController(), message };
  keep(conversation);
  drawList();
  drawLog();
  buttons();
  const element = log.lastElementChild;
  const start = performance.now();
  let begun = start;
  let waiting = false;
  const redraw = () => {
    waiting = false;
    const follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR;
    update(element, message, true);
    if (follows) scroll.scrollTop = scroll.scrollHeight;
  };
  try {
    for await (const chunk of chat(request(messages), running.abort.signal)) {
      const now = performance.now();
      const choice = chunk.choices[0];
      if (chunk.usage) message.tokens = chunk.usage.completion_tokens;
      if (choice?.delta.content) {
        if (!message.content) {
          begun = now;
          message.first = (now - start) / 1000;
        }
        message.content += choice.delta.content;
        message.tokens += 1;
        message.seconds = (now - begun) / 1000;
      }
      if (choice?.finish_reason) message.finish = choice.finish_reason;
      if (!waiting) {
        waiting = true;
        requestAnimationFrame(redraw);
      }
    }
  } catch (error) {
    if (error.name === "AbortError") message.finish = "stopped";
    else message.error = words(error);
    if (error.status === 401) askKey(error.message);
  }
  running = null;
  if (store.has(conversation.id)) keep(conversation); // else it was deleted meanwhile
  redraw();
  buttons();
  drawList();
}

function words(error) {
  if (error instanceof ServerError) return error.message;
  return "The server cannot be reached. Is it running?";
}

function request(messages) {
  const { system, ...numbers } = store.settings();
  const all = system ? [{ role: "system", content: system }, ...messages] : messages;
  return { model: of("model").value || undefined, messages: all, ...numbers };
}

function stop() {
  running?.abort.abort();
}

// --- the box, the drawer, dialogs -----------------------------------------------------------------

function buttons() {
  of("send").hidden = running !== null;
  of("stop").hidden = running === null;
  of("send").disabled = !prompt.value.trim();
}

function fit() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
  buttons();
}

function drawer(open) {
  document.body.classList.toggle("drawn", open);
  of("shade").hidden = !open;
  of("menu").setAttribute("aria-expanded", String(open));
  if (open) of("new").focus();
}

function openSettings() {
  const values = store.settings();
  of("system").value = values.system ?? "";
  for (const name of NUMBERS) of(name).value = values[name] ?? "";
  of("key").value = key();
  of("settings").showModal();
}

function saveSettings() {
  const values = {};
  if (of("system").value.trim()) values.system = of("system").value;
  for (const name of NUMBERS) {
    if (of(name).value !== "" && of(name).validity.valid) values[name] = Number(of(name).value);
  }
  store.setSettings(values);
  if (of("key").value !== key()) {
    setKey(of("key").value);
    load();
  }
}

function forget() {
  if (!confirm("Delete all conversations in this browser?")) return;
  for (const one of store.conversations()) store.remove(one.id);
  of("settings").close();
  select(store.fresh());
}

function askKey(message) {
  of("key-error").textContent = message;
  of("asked-key").value = "";
  if (!of("ask-key").open) of("ask-key").showModal();
}

// --- the server -----------------------------------------------------------------------------------

async function load() {
  try {
    models = (await get("v1/models")).data.map((model) => model.id);
  } catch (error) {
    if (error.status === 401) askKey(key() ? "The server refuses the key that this page has." : "Its operator has it.");
    else log.replaceChildren(made("div", "failed", words(error)));
    return;
  }
  const select = of("model");
  const wanted = models.includes(current.model) ? current.model : models[0];
  select.replaceChildren(...models.map((name) => {
    const option = made("option", "", name);
    option.value = name;
    return option;
  }));
  select.value = wanted;
  select.parentElement.hidden = models.length < 2;
  of("name").hidden = models.length > 1;
  drawModel();
  drawLog();
}

async function drawModel() {
  const model = of("model").value;
  if (!model) return;
  of("name").textContent = model;
  document.title = model;
  of("schedule").href = `page/schedule.html?model=${encodeURIComponent(model)}`;
  try {
    const props = await get(`props?model=${encodeURIComponent(model)}`);
    for (const name of NUMBERS) of(name).placeholder ||= props.defaults[name] ?? "";
    of("about").textContent = `${props.model}: ${props.architecture} on ${props.devices.join(", ")}, context of ${props.context} tokens.`;
  } catch {
    // what it says is only a convenience
  }
}

of("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
prompt.addEventListener("input", fit);
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  stop();
  drawer(false);
});
of("stop").addEventListener("click", stop);
of("new").addEventListener("click", () => select(store.fresh()));
of("menu").addEventListener("click", () => drawer(!document.body.classList.contains("drawn")));
of("shade").addEventListener("click", () => drawer(false));
of("model").addEventListener("change", () => {
  drawModel();
  if (!current.messages.length) drawLog();
});
of("open-settings").addEventListener("click", openSettings);
of("settings").addEventListener("close", () => {
  if (of("settings").returnValue === "save") saveSettings();
  of("settings").returnValue = "";
});
of("forget").addEventListener("click", forget);
of("ask-key").addEventListener("close", () => {
  if (!of("asked-key").value) return;
  setKey(of("asked-key").value);
  load();
});
addEventListener("storage", (event) => {
  if (event.key === null || event.key.startsWith("tensorplug.chat.")) drawList();
});

current = store.conversations()[0] ?? current;
drawList();
fit();
await load();
