/* The list of chats: at the left, or a drawer on a narrow screen. */

import { attempt, call } from "./api.js";
import { $, make } from "./elements.js";
import { seen, titles } from "./storage.js";

const PAGE = 50;
const MAX_LEARNED = 20; // labels that are looked up at a time
export const narrow = matchMedia("(max-width: 46rem)");
let sessions = [];
let shown = PAGE;

/** Returns the sessions of the pages that are open in the list, the last used first. */
export async function readChats() {
  const found = [];
  let next = "";
  do {
    const after = next ? `&after=${encodeURIComponent(next)}` : "";
    const part = await call("GET", `/api/sessions?limit=${PAGE}${after}`);
    found.push(...part.items);
    next = part.next;
  } while (next && found.length < shown);
  sessions = found;
  seen.begin(sessions);
  $("more").hidden = !next;
  return sessions;
}

export function showMore() {
  shown += PAGE;
}

/** Looks up the first words of chats without a title, once for each. A chat that cannot be read is skipped. */
export async function learnTitles() {
  const unknown = sessions.filter((session) => !session.title && titles.of(session.id) === undefined);
  for (const { id } of unknown.slice(0, MAX_LEARNED)) {
    const log = await attempt("GET", `/api/sessions/${id}/entries?limit=3`).catch(() => null);
    if (log) titles.learn(id, log.entries);
  }
  return unknown.length > 0;
}

/** `current` is the open chat's reference in the address bar. The focused link keeps the focus. */
export function drawChats(current) {
  const held = $("chats").contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const names = new Set();
  const unread = seen.unread(sessions);
  $("chats").replaceChildren(...sessions.map((session) => row(session, names, current, unread.has(session.id))));
  if (held) $("chats").querySelector(`a[href="${held}"]`)?.focus();
}

/** The newest session of a name is linked by its name, earlier sessions by their ids. */
function row(session, names, current, isUnread) {
  const ref = session.name && !names.has(session.name) ? session.name : session.id;
  names.add(session.name);
  const when = new Date(session.updated_at * 1000);
  const isToday = when.toDateString() === new Date().toDateString();
  const textContent = isToday ? when.toLocaleTimeString([], { timeStyle: "short" }) : day(when);
  const time = make("time", { textContent, dateTime: when.toISOString() });
  const link = make("a", { href: `#chat=${ref}` }, make("span", { textContent: label(session) }), time);
  if (ref === current) link.ariaCurrent = "page";
  else if (isUnread) time.before(make("b", { className: "unread", textContent: "New" }));
  return make("li", {}, link);
}

/** Returns the session in the list that a reference in the address bar names. */
export function listed(ref) {
  return sessions.find((session) => session.name === ref || session.id === ref);
}

/** The text for a session in the list. */
export function label(session) {
  const words = session.title || titles.of(session.id);
  if (words) return words;
  if (!session.name) return session.chat_key.split(":").slice(2).join(" ");
  return session.name.startsWith("web-") ? `Chat of ${day(new Date(session.created_at * 1000))}` : session.name;
}

function day(date) {
  return date.toLocaleDateString([], { day: "numeric", month: "short" });
}

// -- the drawer

export function toggleSide(isOpen) {
  const wasOpen = "open" in $("side").dataset;
  if (isOpen) $("side").dataset.open = "";
  else delete $("side").dataset.open;
  $("menu").ariaExpanded = String(isOpen);
  $("shade").hidden = !isOpen;
  $("main").inert = isOpen;
  if (isOpen) $("new").focus();
  else if (wasOpen) $("menu").focus();
}

$("menu").onclick = () => toggleSide(true);
$("shade").onclick = () => toggleSide(false);
$("chats").onclick = () => toggleSide(false); // a click on the open chat does not change the address
$("side").onkeydown = (event) => { if (event.key === "Escape") toggleSide(false); };
narrow.onchange = () => toggleSide(false);
