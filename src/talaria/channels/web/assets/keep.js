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

/** An upload and a blob's address die with the page. */
function bare(item) {
  return { ...item, files: item.files.map(({ id, name, size }) => ({ id, name, size })) };
}

/** Messages from the moment they are sent until their turn is over: { key, chat, text, files, at, turn? }. */
export const outbox = {
  is: (key) => key === `${PREFIX}outbox`, // the name of what another tab has changed
  all: () => read("outbox", []),
  of: (chat) => outbox.all().filter((item) => item.chat === chat),
  /** Those that may go out: nothing that belongs to them is still being uploaded. */
  unsent: () => outbox.all().filter((item) => !item.turn && item.files.every((file) => file.id)),
  add: (item) => write("outbox", [...outbox.all(), bare(item)]),
  /** One that is gone stays so: another tab has seen its end. */
  update: (item) => write("outbox", outbox.all().map((other) => (other.key === item.key ? bare(item) : other))),
  drop: (item) => write("outbox", outbox.all().filter((other) => other.key !== item.key)),
  /** Gives up what is too old to be sent again, or lost a file with the page; told are those the gateway has not. */
  retire() {
    const isLate = (item) => Date.now() - item.at > STALE_MS || !(item.turn || item.files.every((file) => file.id));
    const late = outbox.all().filter(isLate);
    late.forEach(outbox.drop);
    return late.filter((item) => !item.turn);
  },
};

const known = read("titles", {}); // all that were learned; the browser keeps the last of them

export const titles = {
  /** Empty: nothing was said there yet. Undefined: not known. */
  of: (session) => known[session],
  learn(session, entries) {
    const said = entries.find(({ body }) => body.type === "user")?.body.parts.find((part) => part.type === "text");
    known[session] ||= (said?.text ?? "").trim().slice(0, 80);
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
