// Markdown as DOM nodes. Text of a model only ever becomes text nodes: there is no HTML to inject.
// Images are shown as links. Every step is linear in the text, and nesting ends at DEPTH.

const DEPTH = 8;
const LINK = 1000; // characters of the longest text or address of a link

const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const RULE = /^ {0,3}(?:(?:\* *){3,}|(?:- *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])( +|$)/;
const CELL = /^:?-+:?$/;

/** Show `text` in `container`; blocks that did not change since the last call stay as they are. */
export function show(container, text) {
  const old = container.shownBlocks ?? [];
  const sources = [...blocks(text.split("\n"))];
  const now = sources.map(({ lines }) => lines.join("\n"));
  for (let i = 0; i < sources.length; i++) {
    if (old[i] === now[i]) continue;
    const node = block(sources[i], 0);
    if (i < container.children.length) container.children[i].replaceWith(node);
    else container.append(node);
  }
  while (container.children.length > sources.length) container.lastElementChild.remove();
  container.shownBlocks = now;
}

function element(name, ...children) {
  return filled(name, children);
}

function filled(name, children) {
  const made = document.createElement(name);
  for (const child of children) made.append(child); // not spread: there may be too many for a call
  return made;
}

// --- blocks ---------------------------------------------------------------------------------------

/** Yields the blocks of some lines: their kind, and their lines. */
function* blocks(lines) {
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const kind = kindOf(lines, at);
    const end = ENDS[kind](lines, at);
    yield { kind, lines: lines.slice(at, end) };
    at = end;
  }
}

function kindOf(lines, at) {
  const line = lines[at];
  if (FENCE.test(line)) return "fence";
  if (HEADING.test(line)) return "heading";
  if (isRule(line)) return "rule";
  if (QUOTE.test(line)) return "quote";
  if (ITEM.test(line)) return "list";
  if (isTable(lines, at)) return "table";
  return "paragraph";
}

const isRule = (line) => line.length < 200 && RULE.test(line.trimEnd());

function isTable(lines, at) {
  if (!lines[at].includes("|") || at + 1 >= lines.length) return false;
  const marks = cells(lines[at + 1]);
  return marks.length === cells(lines[at]).length && marks.every((mark) => CELL.test(mark));
}

function run(lines, at, belongs) {
  let end = at + 1;
  while (end < lines.length && belongs(lines[end], end)) end += 1;
  return end;
}

const ENDS = {
  fence(lines, at) {
    const mark = lines[at].match(FENCE)[1];
    const end = run(lines, at, (line) => !closes(line, mark));
    return Math.min(end + 1, lines.length);
  },
  heading: (_, at) => at + 1,
  rule: (_, at) => at + 1,
  quote: (lines, at) => run(lines, at, (line) => QUOTE.test(line)),
  list(lines, at) {
    const ordered = isOrdered(lines[at]);
    const indent = lines[at].match(ITEM)[1].length;
    return run(lines, at, (line, i) => {
      if (!line.trim()) {
        // A blank line belongs to the list if an item or an indented line follows it.
        const next = lines[i + 1] ?? "";
        return startsItem(next, indent, ordered) || (next.trim() !== "" && indentOf(next) > indent);
      }
      return startsItem(line, indent, ordered) || indentOf(line) > indent
        || (lines[i - 1].trim() !== "" && kindOf(lines, i) === "paragraph");
    });
  },
  table: (lines, at) => run(lines, at, (line) => line.includes("|")),
  paragraph: (lines, at) =>
    run(lines, at, (line, i) => line.trim() !== "" && kindOf(lines, i) === "paragraph"),
};

const closes = (line, mark) =>
  line.trimStart().startsWith(mark) && line.trim() === mark[0].repeat(line.trim().length);
const isOrdered = (line) => /^ *\d/.test(line);
const indentOf = (line) => line.length - line.trimStart().length;

function startsItem(line, indent, ordered) {
  const found = line.match(ITEM);
  return found !== null && !isRule(line) && found[1].length <= indent + 1 && isOrdered(line) === ordered;
}

function block({ kind, lines }, depth) {
  if (depth >= DEPTH) return element("p", lines.join("\n"));
  return MAKERS[kind](lines, depth);
}

const all = (lines, depth) => [...blocks(lines)].map((one) => block(one, depth));

const MAKERS = {
  fence(lines) {
    const [, mark, word] = lines[0].match(FENCE);
    const closed = lines.length > 1 && closes(lines.at(-1), mark);
    return code(lines.slice(1, closed ? -1 : undefined).join("\n"), word.trim().split(" ")[0]);
  },
  heading(lines) {
    const [, marks, text] = lines[0].match(HEADING);
    return filled(`h${Math.min(marks.length + 2, 6)}`, inline(text.replace(/ #+ *$/, ""), 0));
  },
  rule: () => element("hr"),
  quote: (lines, depth) =>
    filled("blockquote", all(lines.map((line) => line.replace(QUOTE, "")), depth + 1)),
  list(lines, depth) {
    const ordered = isOrdered(lines[0]);
    const made = filled(ordered ? "ol" : "ul", items(lines, ordered).map((own) => item(own, depth)));
    const first = Number.parseInt(lines[0].trimStart(), 10);
    if (ordered && first !== 1) made.start = first;
    return made;
  },
  table(lines) {
    const marks = cells(lines[1]);
    const row = (line, name) => {
      const texts = cells(line);
      return filled("tr", marks.map((mark, i) => {
        const cell = filled(name, inline(texts[i] ?? "", 0));
        if (mark.endsWith(":")) cell.className = mark.startsWith(":") ? "middle" : "right";
        return cell;
      }));
    };
    const body = lines.slice(2).map((line) => row(line, "td"));
    const made = element("table", element("thead", row(lines[0], "th")), filled("tbody", body));
    const around = element("div", made);
    around.className = "table";
    return around;
  },
  paragraph: (lines) => filled("p", inline(lines.join("\n"), 0)),
};

function code(text, language) {
  const head = element("div", element("span", language.slice(0, 30) || "text"));
  head.className = "head";
  if (navigator.clipboard) head.append(copier(text)); // browsers give it to safe origins only
  const pre = element("pre", element("code", text));
  pre.tabIndex = 0; // so that the keyboard can scroll it
  const made = element("div", head, pre);
  made.className = "code";
  return made;
}

function copier(text) {
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.className = "copy";
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  return copy;
}

/** The lines of each item, without its mark and its indentation. */
function items(lines, ordered) {
  const found = [];
  const indent = lines[0].match(ITEM)[1].length;
  let width = 0;
  for (const line of lines) {
    if (startsItem(line, indent, ordered)) {
      width = line.match(ITEM)[0].length;
      found.push([line.slice(width)]);
    } else {
      found.at(-1).push(line.slice(Math.min(indentOf(line), width)));
    }
  }
  return found;
}

function item(lines, depth) {
  const parts = [...blocks(lines)].map((one) => {
    const made = block(one, depth + 1);
    return one.kind === "paragraph" && depth + 1 < DEPTH ? made : [made];
  });
  // The text of an item that is one line or paragraph stands without the space of a paragraph.
  return filled("li", parts.flatMap((part, i) => {
    if (Array.isArray(part)) return part;
    return i === 0 ? [...part.childNodes] : [part];
  }));
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.slice(0, 10000).split("|").slice(0, 100).map((cell) => cell.trim());
}

// --- text in a line -------------------------------------------------------------------------------

const SPANS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const MARKS = /[\\`*_~[!<\n]|https?:\/\//g;
const ESCAPED = /[!-/:-@[-`{-~]/;

/** The nodes of text with emphasis, code and links. */
function inline(text, depth) {
  const nodes = [];
  const none = new Set(); // marks that nothing closes from here on
  let plain = "";
  let at = 0;
  const put = (node, end) => {
    at = end;
    if (typeof node === "string") {
      plain += node;
      return;
    }
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(node);
  };
  while (at < text.length) {
    MARKS.lastIndex = at;
    const next = MARKS.exec(text)?.index ?? text.length;
    plain += text.slice(at, next);
    at = next;
    if (at === text.length) break;
    const found = READERS[text[at]]?.(text, at, depth, none);
    if (found) put(...found);
    else {
      plain += text[at];
      at += 1;
    }
  }
  if (plain) nodes.push(plain);
  return nodes;
}

const READERS = {
  "\\": (text, at) => (ESCAPED.test(text[at + 1] ?? "") ? [text[at + 1], at + 2] : null),
  "\n": (_, at) => [element("br"), at + 1],
  "`": codeSpan,
  "*": span,
  "_": span,
  "~": span,
  "[": (text, at, depth) => link(text, at, depth),
  "!": (text, at, depth) => (text[at + 1] === "[" ? link(text, at + 1, depth) : null),
  "<"(text, at) {
    const end = text.slice(at, at + LINK).indexOf(">");
    const address = end < 0 ? "" : text.slice(at + 1, at + end);
    return isSafe(address) ? [anchor(address, [address]), at + end + 1] : null;
  },
  h(text, at) {
    const [whole] = text.slice(at, at + LINK).match(/^[^\s<>"'`]+/);
    const address = whole.replace(/[.,;:!?)\]*_]+$/, "");
    return isSafe(address) ? [anchor(address, [address]), at + address.length] : null;
  },
};

function codeSpan(text, at, _, none) {
  let length = 1;
  while (text[at + length] === "`") length += 1;
  const mark = "`".repeat(length);
  if (none.has(mark)) return [mark, at + length];
  let end = text.indexOf(mark, at + length);
  while (end >= 0 && text[end + length] === "`") {
    while (text[end] === "`") end += 1;
    end = text.indexOf(mark, end);
  }
  if (end < 0) {
    none.add(mark);
    return [mark, at + length];
  }
  const inner = text.slice(at + length, end);
  return [element("code", inner.trim() ? inner.replace(/^ (.*) $/s, "$1") : inner), end + length];
}

function span(text, at, depth, none) {
  for (const [mark, name] of SPANS) {
    if (!text.startsWith(mark, at) || none.has(mark) || depth >= DEPTH) continue;
    const first = at + mark.length;
    if (/\s|^$/.test(text[first] ?? "") || (mark[0] === "_" && isWord(text[at - 1]))) continue;
    const end = closing(text, first, mark);
    if (end < 0) none.add(mark);
    else return [filled(name, inline(text.slice(first, end), depth + 1)), end + mark.length];
  }
  let length = 1;
  while (text[at + length] === text[at]) length += 1;
  return [text.slice(at, at + length), at + length];
}

/** Where a mark closes what began before `first`, or -1. */
function closing(text, first, mark) {
  for (let end = text.indexOf(mark, first + 1); end >= 0; end = text.indexOf(mark, end + 1)) {
    if (/\s/.test(text[end - 1]) || text[end - 1] === "\\") continue;
    if (mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark)) continue;
    if (mark[0] === "_" && isWord(text[end + mark.length])) continue;
    return end;
  }
  return -1;
}

const isWord = (letter) => letter !== undefined && /[\p{L}\p{N}]/u.test(letter);

/** `[text](address)` and `[text](address "title")`. */
function link(text, at, depth) {
  const near = text.slice(at, at + 2 * LINK);
  const middle = near.indexOf("](");
  if (middle < 0 || middle > LINK || depth >= DEPTH) return null;
  const end = near.indexOf(")", middle);
  if (end < 0) return null;
  const address = near.slice(middle + 2, end).trim().split(/\s/)[0];
  const inside = inline(near.slice(1, middle), DEPTH);
  return [isSafe(address) ? anchor(address, inside) : filled("span", inside), at + end + 1];
}

/** Whether an address leads to the web or to mail, and nowhere else. */
function isSafe(address) {
  if (!/^(?:https?:\/\/|mailto:)[^\s]/i.test(address)) return false;
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(address).protocol);
  } catch {
    return false;
  }
}

function anchor(address, inside) {
  const made = filled("a", inside);
  made.href = address;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  made.title = address;
  return made;
}
