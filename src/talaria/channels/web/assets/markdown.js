/* Markdown as DOM nodes. Content becomes text nodes and a fixed set of elements, never HTML.
   No pattern has two adjacent repetitions that match the same text, so matching takes linear time. */

import { copier, make } from "./elements.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)/;
const HEADING = /^(#{1,6})\s+(\S.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const SEPARATOR = /^:?-+:?$/;
const TASK = /^\[([ xX])\](?= )/;
const MAX_DEPTH = 6; // of nested marks; bounds the cost of hostile text

/** Renders `text` into `node`. Unchanged blocks keep their elements, so a stream can call this often. */
export function show(node, text) {
  const blocks = split(text.split("\n"));
  const old = [...node.children];
  blocks.forEach(({ source, build, grow }, index) => {
    if (old[index]?.source === source) return;
    if (old[index] && source.startsWith(old[index].source) && grow?.(old[index])) {
      old[index].source = source;
      return;
    }
    const fresh = Object.assign(build(), { source });
    if (old[index]) old[index].replaceWith(fresh);
    else node.append(fresh);
  });
  old.slice(blocks.length).forEach((block) => block.remove());
}

function split(lines, depth = 0) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (!lines[at].trim()) { at += 1; continue; }
    const [end, build, grow] = block(lines, at, depth);
    blocks.push({ source: lines.slice(at, end).join("\n"), build, grow });
    at = end;
  }
  return blocks;
}

/** Returns the end of the block that begins at line `at`, and a function that makes its element. */
function block(lines, at, depth) {
  const first = lines[at];
  const run = (belongs) => {
    let end = at + 1;
    while (end < lines.length && belongs(lines[end])) end += 1;
    return end;
  };
  const fence = FENCE.exec(first);
  if (fence) {
    const close = run((row) => !(row.trimStart().startsWith(fence[1]) && !row.trim().replaceAll(fence[1][0], "")));
    const inner = lines.slice(at + 1, close);
    const isClosed = close < lines.length;
    return [Math.min(close + 1, lines.length), () => code(inner, fence[2], isClosed), (node) => extend(node, inner, fence[2], isClosed)];
  }
  const heading = HEADING.exec(first);
  if (heading) return [at + 1, () => directed(inline(make(`h${Math.min(heading[1].length + 1, 6)}`), unclosed(heading[2])))];
  if (RULE.test(first)) return [at + 1, () => make("hr")];
  if (depth < MAX_DEPTH && QUOTE.test(first)) {
    const end = run((row) => QUOTE.test(row));
    return [end, () => directed(fill(make("blockquote"), lines.slice(at, end).map((row) => row.replace(QUOTE, "")), depth))];
  }
  if (depth < MAX_DEPTH && ITEM.test(first)) return list(lines, at, run, depth);
  const next = lines[at + 1] ?? "";
  if (first.includes("|") && next.includes("|") && cells(next).every((cell) => SEPARATOR.test(cell))) {
    const end = run((row) => row.includes("|"));
    return [end, () => table(lines.slice(at, end), cells(next).map(alignment))];
  }
  const end = run((row) => row.trim() && ![FENCE, HEADING, RULE, QUOTE, ITEM].some((start) => start.test(row)));
  return [end, () => directed(inline(make("p"), lines.slice(at, end).map((row) => row.trim()).join("\n")))];
}

/** Text of each block runs as its first letter does. A browser looks for it with each node that is added, so the direction is
 * set when all of them are there. */
function directed(node) {
  node.dir = "auto";
  return node;
}

function fill(node, lines, depth) {
  for (const { build } of split(lines, depth + 1)) node.append(build());
  return node;
}

function list(lines, at, run, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const inner = indent.length + 2;
  const isOurs = (row) => {
    const found = ITEM.exec(row);
    return found && found[1].length < inner && /\d/.test(found[2]) === /\d/.test(mark);
  };
  const end = run((row) => isOurs(row) || /^( {2,}|\t)/.test(row) || !row.trim());
  const build = () => {
    const node = /\d/.test(mark) ? make("ol", { start: parseInt(mark, 10) }) : make("ul");
    const items = [];
    for (const row of lines.slice(at, end)) {
      if (isOurs(row)) items.push([row.replace(ITEM, "")]);
      else items.at(-1).push(row.replace(/^(\t| {1,4})/, ""));
    }
    for (const rows of items) node.append(item(rows, depth));
    return node;
  };
  return [end, build];
}

/** An item that begins with a paragraph has its text directly in the `li`. */
function item(rows, depth) {
  const task = TASK.exec(rows[0])?.[1];
  const node = fill(make("li"), task ? [rows[0].slice(4), ...rows.slice(1)] : rows, depth);
  if (node.firstElementChild?.tagName === "P") node.firstElementChild.replaceWith(...node.firstElementChild.childNodes);
  if (!task) return directed(node);
  const isDone = task !== " ";
  node.className = "task";
  node.prepend(make("span", { role: "img", ariaLabel: isDone ? "done: " : "to do: ", className: "box" }, isDone ? "☑" : "☐"), " ");
  return directed(node);
}

/** Removes closing marks of a heading, which stand apart: `# C# #` is the heading "C#". */
function unclosed(text) {
  const words = trimmed(text.trimEnd(), "#");
  return words.trimEnd() === words ? text.trimEnd() : words.trimEnd();
}

function trimmed(text, marks) {
  let end = text.length;
  while (end && marks.includes(text[end - 1])) end -= 1;
  return text.slice(0, end);
}

function cells(row) {
  return row.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function alignment(cell) {
  if (!cell.endsWith(":")) return "";
  return cell.startsWith(":") ? "center" : "right";
}

function table([head, , ...rows], alignments) {
  const cellOf = (tag, n) => make(tag, { className: alignments[n] ?? "" });
  const line = (row, tag) => make("tr", {}, ...cells(row).map((cell, n) => directed(inline(cellOf(tag, n), cell))));
  const body = make("tbody", {}, ...rows.map((row) => line(row, "td")));
  return make("div", { className: "wide" }, make("table", {}, make("thead", {}, line(head, "th")), body));
}

const PIECE = 50; // lines of code in one element, so that a stream lays out the last of them only

function code(lines, language, isClosed) {
  const shown = make("code");
  const head = make("div", { className: "codehead" }, make("span", { textContent: language }), copier(shown));
  const node = make("div", { className: "code", dir: "ltr" }, head, make("pre", { tabIndex: 0 }, shown));
  extend(node, lines, language, isClosed);
  return node;
}

/** Shows more lines in a block of code. Returns false if it is another block. The last line may have been cut. */
function extend(node, lines, language, isClosed) {
  if (!node.classList.contains("code") || node.querySelector(".codehead span").textContent !== language) return false;
  const shown = node.querySelector("code");
  const pieces = [...shown.children];
  pieces.splice(Math.max(1, Math.ceil(lines.length / PIECE))).forEach((piece) => piece.remove());
  const first = Math.max(0, pieces.length - 1);
  for (let at = first; at * PIECE < lines.length || at === 0; at += 1) {
    const isLast = (at + 1) * PIECE >= lines.length;
    const text = lines.slice(at * PIECE, (at + 1) * PIECE).join("\n") + (isLast ? "" : "\n");
    const piece = pieces[at] ?? shown.appendChild(make("span"));
    const known = piece.textContent;
    if (!piece.firstChild) piece.textContent = text;
    else if (!piece.firstElementChild && text.startsWith(known)) piece.firstChild.appendData(text.slice(known.length));
    else piece.textContent = text;
  }
  if (isClosed && language) import("./colours.js").then(({ colour }) => colour([...shown.children], language)); // not while it grows
  return true;
}

const OPENERS = /\$\$[^$\n]{1,400}\$\$|\\\((?:[^\\\n]|\\(?!\))){1,400}\\\)|\\\[(?:[^\\]|\\(?!\])){1,400}\\\]|\$(?=[^\s$])[^$\n]{0,300}[\\^_{][^$\n]{0,300}[^\s$\\]\$(?!\d)|\\([!-/:-@[-`{-~])|`+|\*\*|__|~~|\*|_|!?\[|https?:\/\/[^\s<>"`]+|\n/g;
const LINK = /^((?:[^[\]]|\[[^[\]]*\])*)\]\(\s?<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s"[^"]*")?\s?\)/;
const MATH = /^(?:\$.|\\[([]..)/s;
const ELEMENTS = { "**": "strong", "__": "strong", "~~": "del", "*": "em", "_": "em" };

/** Appends `text` to `node`, with marks as elements. */
function inline(node, text, depth = 0) {
  let at = 0;
  const opener = new RegExp(OPENERS);
  for (let found; (found = opener.exec(text)); ) {
    const made = span(text, found, depth);
    if (!made) continue;
    node.append(text.slice(at, found.index), made.node);
    at = opener.lastIndex = made.end;
  }
  node.append(text.slice(at));
  return node;
}

/** A formula as it was written, until what reads it is loaded. */
function formula(source) {
  const node = make("span", { className: "math", textContent: source });
  import("./math.js").then(({ typeset }) => typeset(node));
  return node;
}

/** Returns the element that begins at the mark `found` and its end, or null if the mark is just text. */
function span(text, found, depth) {
  const [mark, escaped] = found;
  const start = found.index + mark.length;
  if (MATH.test(mark)) return { node: formula(mark), end: start };
  if (escaped) return { node: document.createTextNode(escaped), end: start };
  if (mark === "\n") return { node: make("br"), end: start };
  const rest = text.slice(start);
  if (mark.startsWith("`")) {
    const length = rest.split(mark, 1)[0].length;
    if (length === rest.length || rest[length + mark.length] === "`") return null;
    const textContent = rest.slice(0, length).replace(/^ (.+) $/, "$1");
    return { node: make("code", { textContent }), end: start + length + mark.length };
  }
  if (depth >= MAX_DEPTH) return null;
  if (mark.startsWith("http")) {
    const url = trimmed(mark, mark.includes("(") ? ".,;:!?'*_~" : ".,;:!?'*_~)]");
    return { node: link(url, make("a", { textContent: url })), end: found.index + url.length };
  }
  if (mark.endsWith("[")) {
    const whole = LINK.exec(rest);
    if (!whole) return null;
    const words = inline(make("a"), whole[1] || whole[2], MAX_DEPTH);
    return { node: link(whole[2], words), end: start + whole[0].length };
  }
  let length = rest.indexOf(mark);
  if (mark === "**" && rest[length + 2] === "*") length += 1; // ***both***
  const isWord = (index) => /[\p{L}\p{N}]/u.test(text[index] ?? "");
  const end = start + length + mark.length;
  if (length < 1 || /^\s|\s$/.test(rest.slice(0, length))) return null;
  if (mark.includes("_") && (isWord(found.index - 1) || isWord(end))) return null;
  return { node: inline(make(ELEMENTS[mark]), rest.slice(0, length), depth + 1), end };
}

/** Returns `anchor` with `href`, and its host if the words hide that; if it must not be a link, its words and address
    as text. */
function link(href, anchor) {
  const url = outer(href);
  const words = anchor.textContent;
  if (!url) return make("span", {}, ...anchor.childNodes, words === href ? "" : ` (${href})`);
  Object.assign(anchor, { href: url.href, title: url.href, rel: "noopener noreferrer nofollow", target: "_blank" });
  anchor.referrerPolicy = "no-referrer";
  return words === href ? anchor : make("span", {}, anchor, make("small", { textContent: ` (${url.host})` }));
}

// -- links
//
// Which addresses in a model's text may become links: the rule of core/links.py, with the browser's own parser. A click
// reaches more than the model does, so only plainly public hosts are links.

const START = /^https?:\/\/([^/?#]*)/i;
const CONTROLS = /[\u0000-\u0020\u007f\\]/; // browsers drop or replace them
const LABEL = /^[a-z0-9_-]{1,63}$/;
const INNER_NAMES = new Set(["localhost", "local", "internal", "intranet", "private", "corp", "home", "lan",
  "localdomain", "arpa", "test", "invalid"]);
const MIRRORS = new Set(["nip.io", "sslip.io", "xip.io", "localtest.me", "lvh.me"]);
const INNER_V4 = [["0.0.0.0", 8], ["10.0.0.0", 8], ["100.64.0.0", 10], ["127.0.0.0", 8], ["169.254.0.0", 16],
  ["172.16.0.0", 12], ["192.0.0.0", 24], ["192.0.2.0", 24], ["192.88.99.0", 24], ["192.168.0.0", 16],
  ["198.18.0.0", 15], ["198.51.100.0", 24], ["203.0.113.0", 24], ["224.0.0.0", 3]];

/** Returns the URL if it plainly leads to a host of the public internet, else null. `own` is the gateway's host. */
export function outer(href, own = location.hostname) {
  const found = START.exec(href);
  if (!found || CONTROLS.test(href) || /[@%]/.test(found[1]) || !URL.canParse(href)) return null;
  const url = new URL(href);
  const host = url.hostname.replace(/\.$/, "");
  return host === own.replace(/\.$/, "").toLowerCase() || isInner(host) ? null : url;
}

function isInner(host) {
  if (host.startsWith("[")) return isInnerV6(host.slice(1, -1));
  const labels = host.split(".");
  if (host.length > 253 || labels.length === 1 || !labels.every((label) => LABEL.test(label))) return true;
  const last = labels.at(-1);
  if (/^\d+$/.test(last)) return INNER_V4.some(([block, bits]) => number(host) >>> (32 - bits) === number(block) >>> (32 - bits));
  return INNER_NAMES.has(last) || MIRRORS.has(labels.slice(-2).join("."));
}

function number(v4) {
  return v4.split(".").reduce((sum, byte) => sum * 256 + Number(byte), 0);
}

/** Only 2000::/3 is global. Within it: Teredo, documentation, and 6to4, which contains an IPv4 address. */
function isInnerV6(v6) {
  const [first, second] = v6.split(":").map((group) => parseInt(group || "0", 16));
  if (first < 0x2000 || first > 0x3fff || first === 0x2002) return true;
  return (first === 0x2001 && (second < 0x200 || second === 0xdb8)) || (first === 0x3fff && second < 0x1000);
}
