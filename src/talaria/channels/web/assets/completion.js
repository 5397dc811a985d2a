/* Completion of slash commands above the message field. */

import { $ } from "./elements.js";
import { html, render } from "./preact.js";

const MOST = 8;
let found = [];
let active = -1; // the chosen row; none before an arrow was pressed

/** Offers those of the commands that begin like the one that is being typed. */
export function complete(commands) {
  const typed = /^\/([\w-]*)$/.exec($("text").value)?.[1].toLowerCase();
  const fitting = typed === undefined ? [] : commands.filter(({ name }) => name.startsWith(typed) && name !== typed);
  show(fitting.slice(0, MOST), -1);
}

function show(list, row) {
  [found, active] = [list, row];
  const text = $("text");
  $("completions").hidden = !found.length;
  if (active < 0) text.removeAttribute("aria-activedescendant");
  else text.setAttribute("aria-activedescendant", `completion-${active}`);
  render(found.map((each, n) => html`<li key=${each.name} id=${`completion-${n}`} role="option" aria-selected=${n === active} onMouseDown=${(event) => { event.preventDefault(); take(each); }}>
    <code>/${each.name}</code> <span>${each.arguments}</span> <small>${each.help}</small></li>`), $("completions"));
}

function take({ name, arguments: more }) {
  const text = $("text");
  text.value = `/${name}${more ? " " : ""}`;
  text.dispatchEvent(new Event("input"));
}

/** Handles a key while commands are offered. Returns whether it was one of this list's. */
export function completeByKey(event) {
  if (!found.length || event.isComposing || event.shiftKey) return false;
  const { key } = event;
  if (key === "ArrowDown" || key === "ArrowUp") show(found, (active + (key === "ArrowDown" ? 1 : active < 0 ? 0 : -1) + found.length) % found.length);
  else if (key === "Tab" || (key === "Enter" && active >= 0)) take(found[Math.max(0, active)]);
  else if (key === "Escape") show([], -1);
  else return false;
  event.preventDefault();
  return true;
}

$("text").addEventListener("blur", () => show([], -1));
