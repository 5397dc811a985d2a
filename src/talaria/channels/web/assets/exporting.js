/* A chat as a file: as Markdown to read, or as JSON with everything that the log has. */

import { call } from "./api.js";
import { make } from "./elements.js";
import { show } from "./markdown.js";

const PAGE = 500;
const source = (node) => new XMLSerializer().serializeToString(node);
// The page's own policy allows no styles inside it, so they are not among the nodes that are made.
const HEAD = "<meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"><style>body{max-width:46rem;margin:2rem auto;padding:0 1rem;font:1rem/1.6 system-ui,sans-serif;overflow-wrap:anywhere}h2{font-size:.85rem;color:#5b616a;margin-top:2rem}.user div{white-space:pre-wrap;background:#e6efeb;padding:.5rem 1rem;border-radius:.8rem}pre{background:#f3f1ec;padding:.8rem;overflow:auto}td,th{padding:.3rem .8rem;border-bottom:1px solid #ddd}.right{text-align:right}.center{text-align:center}</style>";

/** Saves the session as Markdown. */
export async function saveMarkdown(session, title) {
  const entries = await readAll(session);
  save(`${fileName(title)}.md`, "text/markdown", `# ${title}\n\n${entries.flatMap(paragraphs).join("\n\n")}\n`);
}

/** Saves the session as a page that needs nothing else and runs nothing. */
export async function saveHtml(session, title) {
  const entries = await readAll(session);
  const made = document.implementation.createHTMLDocument(title);
  made.body.append(make("h1", { dir: "auto" }, title));
  for (const entry of entries) {
    const [head, ...texts] = paragraphs(entry);
    if (!head) continue;
    const node = make("section", { className: entry.body.type }, make("h2", { dir: "auto" }, head.replaceAll("**", "")));
    for (const text of texts) {
      const part = make("div", { dir: "auto" });
      if (entry.body.type === "user") part.textContent = text;
      else show(part, text);
      part.querySelectorAll("button").forEach((button) => button.remove());
      node.append(part);
    }
    made.body.append(node);
  }
  save(`${fileName(title)}.html`, "text/html", `<!doctype html>\n<html><head>${HEAD}${source(made.querySelector("title"))}</head>\n${source(made.body)}</html>\n`);
}

/** Saves the session as JSON, as the gateway has it. */
export async function saveJson(session, title) {
  save(`${fileName(title)}.json`, "application/json", JSON.stringify({ session, entries: await readAll(session) }, null, 1));
}

async function readAll({ id }) {
  const entries = [];
  for (let after = ""; after !== null; ) {
    const page = await call("GET", `/api/sessions/${id}/entries?limit=${PAGE}${after && `&after=${after}`}`);
    entries.push(...page.entries);
    after = page.next;
  }
  const hidden = entries.filter(({ body }) => body.type === "hidden").map(({ body }) => [body.first, body.last]);
  return entries.filter(({ seq }) => !hidden.some(([first, last]) => seq >= first && seq <= last));
}

/** What people read of an entry: messages and answers, and the names of tools. */
export function paragraphs({ at, body }) {
  const when = new Date(at * 1000).toISOString().slice(0, 16).replace("T", " ");
  if (body.type === "user") {
    const parts = body.parts.map((part) => part.text ?? (part.name ? `[${part.name}]` : "[picture]"));
    return [`**${body.name || "You"}** (${when} UTC)`, ...parts];
  }
  if (body.type === "announcement") return [`**Sent to this chat** (${when} UTC)`, body.text];
  if (body.type !== "assistant") return [];
  const calls = body.tool_calls.map((call) => `*${call.name}*`).join(", ");
  return [...(body.text ? [`**Assistant** (${when} UTC)`, body.text] : []), ...(calls ? [`Tools: ${calls}`] : [])];
}

/** A name that every system takes. */
export function fileName(title) {
  return title.normalize("NFKC").replace(/[^\p{L}\p{N} ._-]+/gu, "").trim().replace(/\s+/g, "-").replace(/^[.-]+/, "").slice(0, 60) || "chat";
}

function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
