/* What the agent remembers of the person: two pages, which are read and edited in a dialog. */

import { call } from "./api.js";
import { $, make } from "./elements.js";
import { trouble } from "./transcript.js";

const MEANING = {
  "MEMORY.md": "what new conversations should know",
  "USER.md": "about you",
};
let shown = []; // the pages as they were read, each with the field that edits it

/** Shows what is remembered. New conversations begin with it; open ones are told of a change. */
async function showMemory() {
  $("memory-error").replaceChildren();
  $("memory").showModal();
  try {
    draw(await call("GET", "/api/memory"));
  } catch (error) {
    $("memory-pages").replaceChildren();
    $("memory-error").replaceChildren(trouble(error));
  }
}

function draw({ pages }) {
  shown = pages.map((page) => ({ page, field: fieldOf(page) }));
  $("memory-pages").replaceChildren(...shown.flatMap(({ page, field }) => {
    const size = `${page.bytes} of ${page.max_bytes} bytes`;
    const label = make("label", { htmlFor: field.id }, `${page.name}: ${MEANING[page.name] ?? ""} `, make("small", {}, size));
    return [label, page.trouble ? make("p", { className: "error" }, page.trouble) : field];
  }));
}

function fieldOf(page) {
  return make("textarea", { id: `memory-${page.name}`, rows: 8, value: page.text, spellcheck: false });
}

/** Writes the pages that were changed. One that somebody else changed meanwhile is refused, and its text stays in the field. */
async function save() {
  $("memory-save").disabled = true;
  $("memory-error").replaceChildren();
  try {
    for (const each of shown) {
      if (each.page.trouble || each.field.value === each.page.text) continue;
      const body = JSON.stringify({ text: each.field.value, digest: each.page.digest });
      const { pages } = await call("POST", `/api/memory/${each.page.name}`, { body });
      each.page = pages.find(({ name }) => name === each.page.name);
    }
    $("memory").close();
  } catch (error) {
    $("memory-error").replaceChildren(trouble(error));
  } finally {
    $("memory-save").disabled = false;
  }
}

$("memory-open").onclick = showMemory;
$("memory-save").onclick = save;
$("memory-close").onclick = () => $("memory").close();
