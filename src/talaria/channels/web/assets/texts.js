/* Texts of tool calls: output as it stands on a screen, arguments, and changes of files as lines. */

import { parse } from "./conversation.js";

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
