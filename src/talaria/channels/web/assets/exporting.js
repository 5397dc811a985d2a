/* A chat as a file: as Markdown to read, or as JSON with everything that the log has. */

import { call } from "./api.js";
import { make } from "./elements.js";

const PAGE = 500;

/** Saves the session as Markdown. */
export async function saveMarkdown(session, title) {
  const entries = await readAll(session);
  save(`${fileName(title)}.md`, "text/markdown", `# ${title}\n\n${entries.flatMap(paragraphs).join("\n\n")}\n`);
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
