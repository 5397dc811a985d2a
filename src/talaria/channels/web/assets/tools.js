/* Tool calls in the conversation: a card for each, with its output while it runs and its result afterwards. */

import { make } from "./elements.js";

const BRIEF = 96; // characters
const MOST = 128 << 10; // characters of a running call's output; the gateway sends less
const OUTCOMES = { ok: "done", error: "failed", unknown: "outcome unknown", cancelled: "stopped" };
const NOTE = /(?:^|\n)\[((?:Exit code|Ended) [^\n]{1,400})\]\s*$/; // how a command ended
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])/g;
const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028-\u202e\u2066-\u2069\ufeff]/g; // also what reverses a line

export class ToolCard {
  #words = "";
  #isDue = false;
  #isTouched = false; // a person has opened or closed it
  #began = Date.now();
  #passed; // the timer that counts the seconds of a running call

  constructor(name, given) {
    this.outcome = make("span", { className: "outcome", textContent: "running" });
    const brief = make("code", { className: "brief", textContent: shorten(given) });
    const line = make("summary", {}, make("b", { textContent: plain(name) }), " ", brief, " ", this.outcome);
    this.given = make("pre", { className: "given", textContent: pretty(given), tabIndex: 0 });
    this.given.ariaLabel = "Arguments";
    this.node = make("details", { className: "tool call" }, line, this.given);
    line.addEventListener("click", () => { this.#isTouched = true; });
  }

  get isOver() {
    return this.node.dataset.outcome !== undefined;
  }

  /** The call runs now. What an earlier connection showed of its output is streamed again. */
  start() {
    if (this.isOver) return;
    this.#words = "";
    this.result?.remove();
    this.result = undefined;
    this.#began = Date.now();
    clearInterval(this.#passed);
    this.#passed = setInterval(() => this.#tick(), 1000);
  }

  #tick() {
    if (this.isOver || !this.node.isConnected) clearInterval(this.#passed);
    else this.outcome.dataset.passed = `${Math.round((Date.now() - this.#began) / 1000)} s`;
  }

  /** Adds output of the running call. The card opens by itself, unless a person has closed it. */
  write(text) {
    if (this.isOver) return;
    this.#words = (this.#words + text).slice(-MOST);
    if (!this.result) this.#show("Output");
    if (!this.#isTouched) this.node.open = true;
    if (this.#isDue) return;
    this.#isDue = true;
    requestAnimationFrame(() => { // at most once per frame, however fast the output comes
      this.#isDue = false;
      if (this.isOver || !this.result) return;
      const { scrollTop, scrollHeight, clientHeight } = this.result;
      const isAtEnd = scrollHeight - scrollTop - clientHeight < 24;
      this.result.textContent = plain(this.#words);
      if (isAtEnd) this.result.scrollTop = this.result.scrollHeight;
    });
  }

  /** Shows the result in place of the output. The card folds, unless a person wants it otherwise. */
  finish(outcome, text, note = NOTE.exec(text)?.[1]) {
    clearInterval(this.#passed);
    delete this.outcome.dataset.passed;
    const isGood = outcome === "ok" && (!note || note.startsWith("Exit code 0."));
    this.node.dataset.outcome = isGood || outcome !== "ok" ? outcome : "error";
    this.outcome.textContent = outcome === "ok" && note ? brief(note) : OUTCOMES[outcome] ?? outcome;
    this.result?.remove();
    this.#show("Result").textContent = plain(text);
    if (!this.#isTouched) this.node.open = false;
  }

  #show(label) {
    this.result = make("pre", { className: "result", tabIndex: 0 });
    this.result.ariaLabel = label;
    this.node.append(this.result);
    return this.result;
  }
}

/** Name and arguments of a call. The log has a call through `tool_call` as the model wrote it; it is shown as the call
 * that it is about. */
export function inner(name, given) {
  const wrapped = name === "tool_call" ? parse(given) : null;
  if (typeof wrapped?.name !== "string") return [name, given];
  const { name: tool, arguments: passed } = wrapped;
  return [tool, typeof passed === "string" ? passed : JSON.stringify(passed ?? {})];
}

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
function brief(note) {
  const first = plain(note).split(". ")[0].replace(/\.$/, "");
  return first.charAt(0).toLowerCase() + first.slice(1);
}

/** The arguments in one line: of a command only the command. */
function shorten(given) {
  const parsed = parse(given);
  const short = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const text = typeof parsed?.command === "string" ? parsed.command : parsed ? Object.values(parsed).map(short).join(", ") : given;
  return plain(text.replace(/\s+/g, " ")).slice(0, BRIEF);
}

/** Arguments one below the other. Texts of several lines stand as they are, and a command behind a dollar sign. */
function pretty(given) {
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

/** Arguments are text that the model wrote, so they may be invalid JSON. */
function parse(given) {
  try {
    const parsed = JSON.parse(given);
    return parsed && typeof parsed === "object" ? parsed : null;
  } catch {
    return null;
  }
}
