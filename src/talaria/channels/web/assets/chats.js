/* The list of chats at the left, a drawer on a narrow screen, and the theme. */

import { $ } from "./elements.js";
import { effect, html, signal } from "./preact.js";
import { day, label, listed, now, readMore, referenceOf, store } from "./reading.js";
import { preferences, seen } from "./storage.js";
import { channelOf, markOf, needsCount, sectionsOf } from "./store.js";
import { clock } from "./texts.js";

export const narrow = matchMedia("(max-width: 46rem)");
export const open = signal(""); // the open chat's reference in the address bar

const MARKS = { needs: "Needs you", running: "Running", failed: "Failed" };

export function ChatList() {
  const state = store.value;
  const unread = seen.unread(state.sessions);
  if (open.value) unread.delete(listed(open.value)?.id);
  const rows = (sessions) => html`<ul>${sessions.map((session) => html`<${Row} key=${session.id} session=${session} reference=${referenceOf(session)} isUnread=${unread.has(session.id)} />`)}</ul>`;
  return html`${sectionsOf(state, unread, now()).map(({ name, sessions }) => html`<li key=${name} class="section">
    ${name === "Archived" ? html`<details><summary>${name} <small>${sessions.length}</small></summary>${rows(sessions)}</details>` : html`<h2>${name}</h2>${rows(sessions)}`}
  </li>`)}
  ${state.more && html`<li key="more"><button id="more" onClick=${readMore}>Older chats</button></li>`}`;
}

function Row({ session, reference, isUnread }) {
  const state = store.value;
  const today = new Date().toDateString();
  const mark = markOf(state, session, isUnread);
  const last = state.last[session.id];
  const when = new Date(session.updated_at * 1000);
  const isToday = when.toDateString() === today;
  const channel = channelOf(session.chat_key);
  return html`<li><a href=${`#chat=${reference}`} aria-current=${reference === open.value ? "page" : undefined} data-mark=${mark || undefined}>
    <span class="title" dir="auto" title=${label(session)}>${label(session)}</span>
    <span class="line">${mark && html`<b class="mark" data-state=${mark}>${MARKS[mark]}</b>`}${isUnread && !mark && html`<b class="unread">New</b>`}${channel !== "http" && html`<span class="channel">${channel}</span>`}
      <span class="last" dir="auto">${last?.text && last.text !== label(session) ? last.text : ""}</span>
      <time datetime=${when.toISOString()}>${isToday ? clock(when) : day(when)}</time></span>
  </a></li>`;
}

/** The number beside "Inbox": what waits for a person. */
export function Badge() {
  const count = needsCount(store.value);
  return count ? html`<span class="badge" aria-label=${`${count} waiting`}>${count > 99 ? "99+" : count}</span>` : null;
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

$("shade").onclick = () => toggleSide(false);
$("chats").onclick = ({ target }) => { if (target.closest("a")) toggleSide(false); }; // a click on the open chat does not change the address
$("side").onkeydown = (event) => { if (event.key === "Escape") toggleSide(false); };
narrow.onchange = () => toggleSide(false);
effect(() => { $("chats").ariaBusy = String(!store.value.isRead); });

// -- the theme: light, dark, or as the system has it

const THEMES = ["auto", "light", "dark"];
const NAMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

function use(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = NAMES[theme];
}

$("theme").onclick = () => {
  const next = THEMES[(THEMES.indexOf(preferences.theme()) + 1) % THEMES.length];
  preferences.keepTheme(next);
  use(next);
};
use(preferences.theme());
