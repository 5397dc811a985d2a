/* What the agent remembers of the person: two pages, which are read and edited in a dialog. */

import { call } from "./api.js";
import { $, make } from "./elements.js";
import { showProblem } from "./blocks.js";

const MEANING = {
  "MEMORY.md": "what new conversations should know",
  "USER.md": "about you",
};
let reading = 0; // the number of the last reading; one that answers after the dialog was closed is dropped
let isWarned = false; // that text is not saved
let shown = []; // the pages as they were read, each with the field that edits it

/** Shows what is remembered. New conversations begin with it; open ones are told of a change. */
export async function showMemory() {
  const mine = (reading += 1);
  showProblem($("memory-error"), null);
  $("memory").showModal();
  try {
    const memory = await call("GET", "/api/memory");
    if (mine === reading) draw(memory);
  } catch (error) {
    showProblem($("memory-error"), error);
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
  showProblem($("memory-error"), null);
  try {
    for (const each of shown) {
      if (each.page.trouble || each.field.value === each.page.text) continue;
      const body = JSON.stringify({ text: each.field.value, digest: each.page.digest });
      const { pages } = await call("POST", `/api/memory/${each.page.name}`, { body });
      each.page = pages.find(({ name }) => name === each.page.name);
    }
    close();
  } catch (error) {
    showProblem($("memory-error"), error);
  } finally {
    $("memory-save").disabled = false;
  }
}

$("memory-save").onclick = save;
$("memory-close").onclick = leave;
$("memory").oncancel = (event) => { event.preventDefault(); leave(); }; // Escape

/** Closes the dialog. Text that is not saved is kept until it is closed a second time. */
function leave() {
  const isChanged = shown.some(({ page, field }) => field.value !== page.text);
  if (isChanged && !isWarned) {
    isWarned = true;
    showProblem($("memory-error"), { message: "Your changes are not saved.", hint: "Save them, or close again to drop them." });
    return;
  }
  close();
}

/** Closes the dialog with its fields, so that nothing that was read now is edited at the next visit. */
function close() {
  reading += 1;
  isWarned = false;
  shown = [];
  $("memory-pages").replaceChildren();
  $("memory").close();
}
