/* Texts as people read them: times, amounts and sizes; and of tool calls their output as it stands on a screen, their
   arguments, and changes of files as lines. */

const BRIEF = 96; // characters
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])/g;
const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069\ufeff]/g; // also what reverses a line
const MOST_DIFF = 400; // lines of a diff

/** Output of a program as it stands on a screen: without escape sequences, and of a line that was written anew only
 * its last state. */
export function plain(text) {
  const rows = text.replace(ESCAPES, "").split("\n").map((row) => {
    const end = row.endsWith("\r") ? row.length - 1 : row.length;
    return row.slice(row.lastIndexOf("\r", end - 1) + 1, end); // no pattern: this one takes linear time
  });
  return rows.join("\n").replace(UNSEEN, "");
}

/** "Exit code 1. More." becomes "exit code 1". */
export function brief(note) {
  const first = plain(note).split(". ")[0].replace(/\.$/, "");
  return first.charAt(0).toLowerCase() + first.slice(1);
}

/** The arguments in one line: of a command only the command. */
export function shorten(given) {
  const parsed = parse(given);
  const short = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const text = typeof parsed?.command === "string" ? parsed.command : parsed ? Object.values(parsed).map(short).join(", ") : given;
  return plain(text.replace(/\s+/g, " ")).slice(0, BRIEF);
}

/** Arguments one below the other. Texts of several lines stand as they are, and a command behind a dollar sign. */
export function pretty(given) {
  const parsed = parse(given);
  if (!parsed) return plain(given);
  const names = Object.keys(parsed);
  if (typeof parsed.command === "string") {
    const rest = names.filter((name) => name !== "command").map((name) => `${name}: ${JSON.stringify(parsed[name])}`);
    return plain([`$ ${parsed.command}`, ...rest].join("\n"));
  }
  return plain(names.map((name) => `${name}:${spread(parsed[name])}`).join("\n"));
}

function spread(value) {
  if (typeof value !== "string") return ` ${JSON.stringify(value, null, 2)}`;
  return value.includes("\n") ? `\n  ${value.replaceAll("\n", "\n  ")}` : ` ${value}`;
}

/** The lines of a change, for calls that replace one text by another: ["-" or "+" or " ", line]. Equal lines at the
 * beginning and the end are kept; what is between them is removed and added. Null for other calls. */
export function diffOf(parsed) {
  const [before, after] = [["old_text", "new_text"], ["old", "new"], ["old_string", "new_string"]]
    .map(([from, to]) => [parsed?.[from], parsed?.[to]]).find(([from, to]) => typeof from === "string" && typeof to === "string") ?? [];
  if (before === undefined) return null;
  const [old, fresh] = [before.split("\n"), after.split("\n")];
  let head = 0;
  while (head < Math.min(old.length, fresh.length) && old[head] === fresh[head]) head += 1;
  let tail = 0;
  while (tail < Math.min(old.length, fresh.length) - head && old.at(-1 - tail) === fresh.at(-1 - tail)) tail += 1;
  const lines = [
    ...old.slice(0, head).map((line) => [" ", line]),
    ...old.slice(head, old.length - tail).map((line) => ["-", line]),
    ...fresh.slice(head, fresh.length - tail).map((line) => ["+", line]),
    ...old.slice(old.length - tail).map((line) => [" ", line]),
  ];
  return lines.length > MOST_DIFF ? [...lines.slice(0, MOST_DIFF), [" ", `… ${lines.length - MOST_DIFF} more lines`]] : lines;
}

/** Arguments are text that the model wrote, so they may be invalid JSON. */
export function parse(given) {
  try {
    const parsed = JSON.parse(given);
    return parsed && typeof parsed === "object" ? parsed : null;
  } catch {
    return null;
  }
}

// -- times, amounts and sizes

// Making a formatter takes as long as hundreds of its uses.
const [ofDay, whole] = [{ timeStyle: "short" }, { dateStyle: "medium", timeStyle: "medium" }].map((style) => new Intl.DateTimeFormat([], style));

/** "2:16 AM" */
export const clock = (date) => ofDay.format(date);

/** The day and the time. */
export const moment = (date) => whole.format(date);

export function duration(seconds) {
  if (seconds < 0.095) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 59.5) return `${seconds < 9.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  if (hours >= 36) return `${Math.round(hours / 24)} days`;
  return minutes >= 600 || minutes % 60 === 0 ? `${hours} h` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function wait(seconds) {
  if (seconds < 1.5) return "in a moment";
  return seconds < 120 ? `about ${Math.round(seconds)} s` : `about ${Math.round(seconds / 60)} min`;
}

export function megabytes(bytes) {
  return Math.round(bytes / 1e6);
}

export function tokens(count) {
  return count < 1000 ? String(count) : count < 99_950 ? `${(count / 1000).toFixed(1)}k` : `${Math.round(count / 1000)}k`;
}

export function dollars(text) {
  const amount = Number(text);
  return amount >= 0.01 || amount === 0 ? `$${amount.toFixed(2)}` : `$${amount.toPrecision(2)}`;
}

export function size(bytes) {
  if (bytes < 1e3) return `${bytes} B`;
  return bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
