/* The browser's storage: the login, drafts, messages without an answer yet, labels of chats, and
 * how far each was read. */

const PREFIX = "talaria.";
const MAX_TITLES = 300;
const MAX_SEEN = 2000; // sessions
const STALE_MS = 20 * 3600 * 1000; // the gateway keeps a key for 24 hours; later it would answer twice

let isForgotten = false; // after a logout nothing is stored until the page is loaded again

function read(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** The page goes on without storage if the browser has none or it is full. */
function write(key, value) {
  if (isForgotten) return;
  try {
    if (value) localStorage.setItem(PREFIX + key, JSON.stringify(value));
    else localStorage.removeItem(PREFIX + key);
  } catch { /* see above */ }
}

let secretOfPage = ""; // only in a browser without storage: the login then ends with the page

/** The second secret of the login. A browser sends the cookie to every port of this host, and this to none. */
export const login = {
  is: (key) => key === `${PREFIX}login`, // whether a storage event of another tab is about the login
  secret: () => read("login", secretOfPage),
  keep(secret) {
    write("login", secret);
    secretOfPage = read("login", "") === secret ? "" : secret;
  },
};

export const preferences = {
  theme: () => read("theme", "auto"),
  keepTheme: (theme) => write("theme", theme),
};

export const drafts = {
  any: () => Object.keys(localStorage).some((key) => key.startsWith(`${PREFIX}draft.`)),
  of: (chat) => read(`draft.${chat}`, ""),
  set: (chat, text) => write(`draft.${chat}`, text),
};

/** Leaves out the upload and the blob URL of a file: both end with the page. */
function storable(item) {
  return { ...item, files: item.files.map(({ id, name, size }) => ({ id, name, size })) };
}

/** Messages from the moment they are sent until their turn has ended: { key, chat, text, files, at, turn? }. */
export const outbox = {
  is: (key) => key === `${PREFIX}outbox`, // whether a storage event of another tab is about the outbox
  all: () => read("outbox", []),
  of: (chat) => outbox.all().filter((item) => item.chat === chat),
  /** Messages that can be sent: all their files are uploaded. */
  unsent: () => outbox.all().filter((item) => !item.turn && item.files.every((file) => file.id)),
  add: (item) => write("outbox", [...outbox.all(), storable(item)]),
  /** Does nothing for a message that is gone: another tab has seen the end of its turn. */
  update: (item) => write("outbox", outbox.all().map((other) => (other.key === item.key ? storable(item) : other))),
  drop: (item) => write("outbox", outbox.all().filter((other) => other.key !== item.key)),
  /** Drops messages that are too old to be sent again or lost a file with the page. Returns the unsent ones. */
  dropStale() {
    const isStale = (item) => Date.now() - item.at > STALE_MS || !(item.turn || item.files.every((file) => file.id));
    const stale = outbox.all().filter(isStale);
    stale.forEach(outbox.drop);
    return stale.filter((item) => !item.turn);
  },
};

const known = read("titles", {}); // all labels of this page; the browser stores the newest of them

export const titles = {
  /** The first words of a session: empty if it has no message yet, undefined if they are not known. */
  of: (session) => known[session],
  forget(session) {
    delete known[session];
    write("titles", known);
  },
  learn(session, entries) {
    const said = entries.find(({ body }) => body.type === "user")?.body.parts.find((part) => part.type === "text");
    known[session] ||= (said?.text ?? "").trim().slice(0, 80);
    write("titles", Object.fromEntries(Object.entries(known).slice(-MAX_TITLES)));
  },
};

/** The number of the last entry of each session that this browser has shown. `since` is the time of the first
 * visit, by the gateway's clock. */
const kept = () => read("seen", { since: null, entries: {} });
const lastEntry = ({ revision }) => Number(revision.split(".")[1]);

export const seen = {
  /** Takes sessions that were there before the first visit, or that were not listed since, as read. */
  begin(sessions) {
    const { since, entries } = kept();
    const start = since ?? Math.max(0, ...sessions.map((session) => session.created_at));
    const old = sessions.filter(({ id, created_at: created }) => entries[id] === undefined && created <= start);
    if (!old.length && since !== null) return;
    write("seen", { since: start, entries: { ...entries, ...Object.fromEntries(old.map((session) => [session.id, lastEntry(session)])) } });
  },
  /** Returns the ids of open sessions with entries that this browser has not shown. */
  unread(sessions) {
    const { entries } = kept();
    const isUnread = (session) => !session.ended_at && lastEntry(session) > (entries[session.id] ?? 0);
    return new Set(sessions.filter(isUnread).map(({ id }) => id));
  },
  mark(id, entry) {
    const { since, entries } = kept();
    if (entries[id] === entry) return;
    const newest = Object.entries({ ...entries, [id]: entry }).slice(-MAX_SEEN);
    write("seen", { since, entries: Object.fromEntries(newest) });
  },
};

let place = 0;

/** The id of the last event of the gateway's feed that this page was told. */
export const feedPlace = {
  get: () => place,
  set(id) {
    place = Math.max(place, id);
  },
};

export function forgetAll() {
  isForgotten = true;
  for (const key of Object.keys(localStorage)) if (key.startsWith(PREFIX)) localStorage.removeItem(key);
}

export function randomHex(bytes) {
  const random = crypto.getRandomValues(new Uint8Array(bytes));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A name that no other chat has: `web-20261116-021741-4f1c`. */
export function newName(now = new Date()) {
  const two = (number) => String(number).padStart(2, "0");
  const day = `${now.getFullYear()}${two(now.getMonth() + 1)}${two(now.getDate())}`;
  return `web-${day}-${two(now.getHours())}${two(now.getMinutes())}${two(now.getSeconds())}-${randomHex(2)}`;
}
