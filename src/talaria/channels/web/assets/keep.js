/* What the browser keeps: drafts, messages that are not answered yet, first words of chats without a title. */

const PREFIX = "talaria.";
const MOST_TITLES = 300;
const STALE_MS = 20 * 3600 * 1000; // the gateway knows a key for a day, after which it would answer twice

let isForgotten = false; // nothing more is kept until the page is loaded again

function read(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** A browser that keeps nothing, or has no room, is no reason to stop. */
function write(key, value) {
  if (isForgotten) return;
  try {
    if (value) localStorage.setItem(PREFIX + key, JSON.stringify(value));
    else localStorage.removeItem(PREFIX + key);
  } catch { /* as said */ }
}

export const drafts = {
  of: (chat) => read(`draft.${chat}`, ""),
  set: (chat, text) => write(`draft.${chat}`, text),
};

/** Messages from the moment they are sent until their turn is over: { key, chat, text, files, at, turn? }. */
export const outbox = {
  all: () => read("outbox", []),
  of: (chat) => outbox.all().filter((item) => item.chat === chat),
  put(item) {
    const items = outbox.all();
    const place = items.findIndex((other) => other.key === item.key);
    const files = item.files.map(({ id, name, size }) => ({ id, name, size })); // a blob's address dies with us
    items.splice(place < 0 ? items.length : place, 1, { ...item, files });
    write("outbox", items);
  },
  drop: (item) => write("outbox", outbox.all().filter((other) => other.key !== item.key)),
  /** What is too old to be sent again becomes a draft, unless the gateway has it. */
  retire() {
    for (const item of outbox.all()) {
      if (Date.now() - item.at < STALE_MS) continue;
      if (!item.turn) drafts.set(item.chat, drafts.of(item.chat) || item.text);
      outbox.drop(item);
    }
  },
};

export const titles = {
  /** Empty: nothing was said there yet. Undefined: not known. */
  of: (session) => read("titles", {})[session],
  learn(session, entries) {
    const said = entries.find(({ body }) => body.type === "user")?.body.parts.find((part) => part.type === "text");
    const known = { ...read("titles", {}), [session]: titles.of(session) || (said?.text ?? "").trim().slice(0, 80) };
    write("titles", Object.fromEntries(Object.entries(known).slice(-MOST_TITLES)));
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

/** `web-20261116-021741-4f1c`: a name nobody has. */
export function newName(now = new Date()) {
  const two = (number) => String(number).padStart(2, "0");
  const day = `${now.getFullYear()}${two(now.getMonth() + 1)}${two(now.getDate())}`;
  return `web-${day}-${two(now.getHours())}${two(now.getMinutes())}${two(now.getSeconds())}-${randomHex(2)}`;
}
