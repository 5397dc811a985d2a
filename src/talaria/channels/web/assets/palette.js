/* The command palette: every action and chat by a few letters. */

import { $ } from "./elements.js";
import { html, render, useState } from "./preact.js";
import { label, referenceOf, store } from "./reading.js";

const MOST_CHATS = 8;

/** `actions` are { name, run, keys? }; `search(words)` searches all conversations. */
export function openPalette(actions, search) {
  const close = (work) => { $("palette").close(); work?.(); };
  render(null, $("palette-list")); // begins with an empty field
  render(html`<${Palette} actions=${actions} search=${search} close=${close} />`, $("palette-list"));
  $("palette").showModal();
  $("palette").querySelector("input").focus();
}

function Palette({ actions, search, close }) {
  const [words, setWords] = useState("");
  const [active, setActive] = useState(0);
  const rows = rowsFor(words.trim(), actions, search);
  const at = Math.min(active, rows.length - 1);
  const onKeyDown = (event) => {
    if (event.isComposing) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") setActive((at + (event.key === "ArrowDown" ? 1 : -1) + rows.length) % rows.length);
    else if (event.key === "Enter") close(rows[at]?.run);
    else return;
    event.preventDefault();
  };
  return html`<input role="combobox" aria-label="Find an action or a chat" placeholder="Find an action or a chat" aria-expanded="true" aria-controls="palette-rows" aria-activedescendant=${rows.length ? `palette-${at}` : undefined}
      autocomplete="off" spellcheck="false" dir="auto" value=${words} onInput=${({ target }) => { setWords(target.value); setActive(0); }} onKeyDown=${onKeyDown} />
    <ul id="palette-rows" role="listbox" aria-label="Actions and chats">${rows.map((row, n) => html`<li key=${row.key} id=${`palette-${n}`} role="option" aria-selected=${n === at} onClick=${() => close(row.run)}>
      <span dir="auto">${row.name}</span> <small>${row.note}</small></li>`)}</ul>`;
}

function rowsFor(words, actions, search) {
  const parts = words.toLowerCase().split(/\s+/);
  const fits = ({ name }) => parts.every((part) => name.toLowerCase().includes(part));
  const chats = store.peek().sessions.map((session) => ({ key: session.id, name: label(session), note: "Chat", run: () => { location.hash = `#chat=${referenceOf(session)}`; } }));
  const found = [...actions.map((action) => ({ ...action, key: action.name, note: action.keys ?? "" })).filter(fits), ...chats.filter(fits).slice(0, MOST_CHATS)];
  if (words) found.push({ key: "search", name: `Search all conversations for “${words}”`, note: "", run: () => search(words) });
  return found;
}
