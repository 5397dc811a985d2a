/* The chats of the page: reading their lists, hearing of changes, and the list at the left, a drawer on a narrow
   screen. */

import { ApiError, attempt, call } from "./api.js";
import { $ } from "./elements.js";
import { html, signal } from "./preact.js";
import { seen, titles } from "./storage.js";
import { NOTHING, applyChange, channelOf, markOf, needsCount, sectionsOf, withInbox, withRecent, withSession, withSessions, withoutSession } from "./store.js";

const PAGE = 50;
const MOST_RECENT = 200;
const MAX_LEARNED = 20; // labels that are looked up at a time
const BRIEF_MS = 50; // changes within this time lead to one reading
export const narrow = matchMedia("(max-width: 46rem)");
export const store = signal(NOTHING);
export const open = signal(""); // the open chat's reference in the address bar
let shown = PAGE;
let awaited = null; // what is read next
let skew = 0; // how far the gateway's clock is ahead of ours, in ms

export const now = () => Date.now() + skew;

/** When a turn began, by this browser's clock, as far as it is known. */
export function began(turn) {
  const accepted = store.peek().turns[turn]?.accepted_at;
  return accepted ? Math.min(Date.now(), accepted * 1000 - skew) : Date.now();
}

/** Takes a change of the feed, and reads what it does not tell. `fail(error)` is called if that fails. */
export function hear(name, data, fail) {
  if (data.at) skew = data.at * 1000 - Date.now();
  const [next, reads] = applyChange(store.peek(), name, data);
  store.value = next;
  if (!reads.lists && !reads.inbox && !reads.sessions.length) return;
  if (awaited) {
    awaited = { lists: awaited.lists || reads.lists, inbox: awaited.inbox || reads.inbox, sessions: [...new Set([...awaited.sessions, ...reads.sessions])] };
    return;
  }
  awaited = reads;
  setTimeout(() => {
    const due = awaited;
    awaited = null;
    (due.lists ? readLists() : readChanged(due)).catch(fail);
  }, BRIEF_MS);
}

async function readChanged({ sessions, inbox }) {
  await Promise.all([...sessions.map(readSession), ...(inbox ? [readInbox()] : [])]);
  await learnTitles();
}

/** Sessions of jobs and of stateless calls are not in the list, so they are not added to it. */
async function readSession(id) {
  try {
    const session = await call("GET", `/api/sessions/${id}`);
    const isListed = store.peek().sessions.some((each) => each.id === id);
    const isOfPerson = !["jobs"].includes(channelOf(session.chat_key)) && !session.chat_key.includes(":ephemeral:");
    if (isListed || isOfPerson) store.value = withSession(store.peek(), id, session);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    store.value = withoutSession(store.peek(), id);
  }
}

export async function readInbox() {
  const inbox = await call("GET", "/api/inbox"); // before the store is read, which may change meanwhile
  store.value = withInbox(store.peek(), inbox);
}

/** Reads all lists anew: the sessions of the pages that are open in the list, the inbox and the last turns. */
export async function readLists() {
  const [, inbox, recent] = await Promise.all([readChats(), call("GET", "/api/inbox"), call("GET", `/api/turns?limit=${MOST_RECENT}`)]);
  store.value = withRecent(withInbox(store.peek(), inbox), recent.items);
  await learnTitles();
}

async function readChats() {
  const before = store.peek().sessions;
  const found = [];
  let next = "";
  do {
    const after = next ? `&after=${encodeURIComponent(next)}` : "";
    const part = await call("GET", `/api/sessions?limit=${PAGE}${after}`);
    found.push(...part.items);
    next = part.next;
  } while (next && found.length < shown);
  seen.begin(found);
  store.value = withSessions(store.peek(), before, found, Boolean(next));
}

/** Looks up the first words of chats without a title, once for each. A chat that cannot be read is skipped. */
async function learnTitles() {
  const unknown = store.peek().sessions.filter((session) => !session.title && titles.of(session.id) === undefined).slice(0, MAX_LEARNED);
  for (const { id } of unknown) {
    const log = await attempt("GET", `/api/sessions/${id}/entries?limit=3`).catch(() => null);
    if (log) titles.learn(id, log.entries);
  }
  if (unknown.length) store.value = { ...store.peek() };
}

/** Returns the session in the list that a reference in the address bar names. */
export function listed(ref) {
  return store.peek().sessions.find((session) => session.name === ref || session.id === ref);
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

// -- the list

const MARKS = { needs: "Needs you", running: "Running", failed: "Failed" };

export function ChatList() {
  const state = store.value;
  const unread = seen.unread(state.sessions);
  if (open.value) unread.delete(listed(open.value)?.id);
  const newest = new Map(); // the newest session of a name is linked by its name, earlier ones by their ids
  for (const session of state.sessions) if (session.name && !newest.has(session.name)) newest.set(session.name, session.id);
  const refOf = (session) => (newest.get(session.name) === session.id ? session.name : session.id);
  return html`${sectionsOf(state, unread, now()).map(({ name, sessions }) => html`<li key=${name} class="section">
    <h2>${name}</h2>
    <ul>${sessions.map((session) => html`<${Row} key=${session.id} session=${session} reference=${refOf(session)} isUnread=${unread.has(session.id)} />`)}</ul>
  </li>`)}
  ${state.more && html`<li key="more"><button id="more" onClick=${() => { shown += PAGE; readChats(); }}>Older chats</button></li>`}`;
}

function Row({ session, reference, isUnread }) {
  const state = store.value;
  const mark = markOf(state, session, isUnread);
  const last = state.last[session.id];
  const when = new Date(session.updated_at * 1000);
  const isToday = when.toDateString() === new Date().toDateString();
  const channel = channelOf(session.chat_key);
  return html`<li><a href=${`#chat=${reference}`} aria-current=${reference === open.value ? "page" : undefined} data-mark=${mark || undefined}>
    <span class="title" dir="auto" title=${label(session)}>${label(session)}</span>
    <span class="line">${mark && html`<b class="mark" data-state=${mark}>${MARKS[mark]}</b>`}${isUnread && !mark && html`<b class="unread">New</b>`}${channel !== "http" && html`<span class="channel">${channel}</span>`}
      <span class="last" dir="auto">${last?.text && last.text !== label(session) ? last.text : ""}</span>
      <time datetime=${when.toISOString()}>${isToday ? when.toLocaleTimeString([], { timeStyle: "short" }) : day(when)}</time></span>
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
