/* The lists of all chats: what the gateway tells about them as it happens, and reading what it does not tell. */

import { ApiError, attempt, call, followAll, pause } from "./api.js";
import { signal } from "./preact.js";
import { feedPlace, seen, titles } from "./storage.js";
import { NOTHING, applyChange, isListed, withInbox, withRecent, withSession, withSessions, withoutSession } from "./store.js";

const PAGE = 50;
const MOST_RECENT = 200;
const MOST_OPEN = 500;
const MAX_LEARNED = 20; // labels that are looked up at a time
const BRIEF_MS = 50; // changes within this time lead to one reading
export const store = signal(NOTHING);
let shown = PAGE; // chats that are listed
let due = null; // what is read next
let reading = null; // the promise of what is being read
let learning = null; // the promise of the labels that are looked up
let skew = -Infinity; // how far the gateway's clock is ahead of ours, in ms; unknown before the first change

export const now = () => Date.now() + (Number.isFinite(skew) ? skew : 0);

/** When a turn began, by this browser's clock, as far as it is known. */
export function began(turn) {
  const accepted = store.peek().turns[turn]?.accepted_at;
  return accepted ? Math.min(Date.now(), accepted * 1000 - (now() - Date.now())) : Date.now();
}

/** Takes a change of the feed, and reads what it does not tell. `at` is when it was told, in ms of the gateway's clock.
 * Changes that were missed are told late, so a clock is ahead by the most that was seen. */
export function hear(name, data, at, fail) {
  if (at) skew = Math.max(name === "ready" ? -Infinity : skew, at - Date.now());
  const [next, reads] = applyChange(store.peek(), name, data);
  store.value = next;
  const isFirst = !reading; // a failure is told once
  const read = readSoon(reads);
  if (isFirst) read.catch(fail);
}

/** Reads again what a change does not tell. Returns once it was read. One reading follows the other, so an older answer never
 * replaces a newer one. Throws what `call` throws. */
export function readSoon({ lists = false, inbox = false, sessions = [] }) {
  if (!lists && !inbox && !sessions.length) return Promise.resolve();
  due = { lists: lists || due?.lists, inbox: inbox || due?.inbox, sessions: [...new Set([...sessions, ...(due?.sessions ?? [])])] };
  reading ??= readDue(lists ? 0 : BRIEF_MS);
  return reading;
}

/** Reads a longer list of chats. */
export function readMore() {
  shown += PAGE;
  return readSoon({ lists: true });
}

async function readDue(ms) {
  await pause(ms);
  const failed = [];
  while (due) {
    const { lists, inbox, sessions } = due;
    due = null;
    const work = lists ? [readChats(), readInbox(), readRecent()] : [...sessions.map(readSession), ...(inbox ? [readInbox()] : [])];
    failed.push(...(await Promise.allSettled(work)).filter(({ status }) => status === "rejected"));
  }
  reading = null;
  learning ??= learnTitles().finally(() => { learning = null; });
  if (failed.length) throw failed[0].reason;
}

/** Sessions of jobs and of stateless calls are not in the list, so they are not added to it. */
async function readSession(id) {
  const known = () => store.peek().sessions.find((session) => session.id === id);
  try {
    let [before, session] = [];
    do { // again if it changed meanwhile: the answer may be older
      before = known();
      session = await call("GET", `/api/sessions/${id}`);
    } while (before !== known());
    if (isListed(session)) store.value = withSession(store.peek(), id, session);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    store.value = withoutSession(store.peek(), id);
  }
}

async function readInbox() {
  const { turns } = store.peek();
  const inbox = await call("GET", `/api/inbox?limit=${MOST_OPEN}`); // before the store is read, which may change meanwhile
  store.value = withInbox(store.peek(), turns, inbox);
}

async function readRecent() {
  const recent = await call("GET", `/api/turns?limit=${MOST_RECENT}`);
  store.value = withRecent(store.peek(), recent.items.filter(isListed));
}

async function readChats() {
  const before = store.peek().sessions;
  const read = (more) => call("GET", `/api/sessions?limit=${PAGE}${more}`);
  let [{ items: found, next }, { items: pinned }] = await Promise.all([read(""), read("&mark=pinned")]); // however old they are
  while (next && found.length < shown) {
    const part = await read(`&after=${encodeURIComponent(next)}`);
    found.push(...part.items);
    next = part.next;
  }
  found.push(...pinned.filter(({ id }) => !found.some((session) => session.id === id)));
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

export function day(date) {
  return date.toLocaleDateString([], { day: "numeric", month: "short" });
}

/** How the address bar names a session: the newest of a name by its name, earlier ones by their ids. */
export function referenceOf(session) {
  const newest = session.name && store.value.sessions.find(({ name }) => name === session.name);
  return newest && newest.id === session.id ? session.name : session.id;
}

// -- the feed. One tab of the browser listens and tells the others, because a browser opens only a few connections to one host

const LOCK = "talaria.feed";

/** Passes each change to `take(name, data, id)` until `signal` is aborted. Throws what `followAll` throws. */
export async function followFeed(take, signal) {
  const others = "BroadcastChannel" in window ? new BroadcastChannel(LOCK) : null;
  if (others) others.onmessage = ({ data: [name, data, id] }) => { feedPlace.set(id); take(name, data, id); };
  const lead = () => followAll(feedPlace.get(), (name, data, id) => {
    feedPlace.set(id);
    others?.postMessage([name, data, id]);
    take(name, data, id);
  }, signal);
  try {
    if (!navigator.locks) { // without TLS a browser has no locks, so each tab listens
      await lead();
      return;
    }
    const isFirst = await navigator.locks.request(LOCK, { ifAvailable: true }, async (lock) => { if (lock) await lead(); return lock !== null; });
    if (isFirst) return;
    take("ready", {}); // another tab listens: the lists are read now, and changes come from there
    await navigator.locks.request(LOCK, { signal }, lead);
  } finally {
    others?.close();
  }
}
