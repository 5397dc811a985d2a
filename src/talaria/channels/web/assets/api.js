/* Requests to the gateway: errors, retries while it is unreachable, and the events of a turn. */

import { login } from "./storage.js";

/** An error of the gateway. `message` says what happened, `hint` says what to do. */
export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `The gateway answered with status ${status}.`);
    this.status = status;
    this.type = error?.type ?? "unknown";
    this.hint = error?.hint ?? "";
  }
}

/** No answer came, or a proxy answered, or the gateway failed (5xx). `reason` is the gateway's text, if any. */
class Unreachable extends Error {
  constructor(message, reason = "") {
    super(message);
    this.reason = reason;
  }
}

/** The path below which the gateway is published (`http.base_path`); usually empty. */
export const BASE = new URL(import.meta.url).pathname.replace(/\/assets\/.*$/, "");
const REQUEST_MS = 30_000;
const SILENCE_MS = 40_000; // the gateway sends at least a comment every 15 seconds
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 2_000;

/** Emits "change". `detail` is null if every request is answered, else the gateway's reason, which may be empty. */
export const connection = new EventTarget();
const unanswered = new Map(); // reasons by path

function note(path, reason) {
  if (reason === null ? !unanswered.delete(path) : unanswered.get(path) === reason) return;
  if (reason !== null) unanswered.set(path, reason);
  connection.dispatchEvent(new CustomEvent("change", { detail: [...unanswered.values()].at(-1) ?? null }));
}

async function open(method, path, { body, headers, signal } = {}) {
  let answer;
  const secret = login.secret();
  try {
    const all = { ...headers, ...(secret && { "X-Talaria-Login": secret }) };
    answer = await fetch(BASE + path, { method, body, headers: all, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (body instanceof File) await checkReadable(body);
    throw new Unreachable(error.message);
  }
  if (answer.status === 401 && login.secret() !== secret) { // another tab has logged in meanwhile
    return open(method, path, { body, headers, signal });
  }
  const error = answer.ok ? null : (await answer.json().catch(() => null))?.error;
  if (answer.status >= 500) throw new Unreachable(String(answer.status), error ? `${error.message} ${error.hint}` : "");
  note(path, null);
  if (!answer.ok) throw new ApiError(answer.status, error);
  return answer;
}

/** A browser reports an unreadable file and an unreachable gateway with the same error, so the file is tried. */
async function checkReadable(file) {
  const message = `${file.name} cannot be read.`;
  const hint = "It was moved or deleted, or it is a folder. Attach it again; a folder has to be packed into one file.";
  await file.slice(0, 1).arrayBuffer().catch(() => { throw new ApiError(0, { type: "unreadable", message, hint }); });
}

/** Sends a request once. Throws `ApiError`, `Unreachable`, or an AbortError when `signal` is aborted. */
export async function attempt(method, path, { signal, ms = REQUEST_MS, ...more } = {}) {
  const limit = AbortSignal.timeout(ms);
  const answer = await open(method, path, { ...more, signal: signal ? AbortSignal.any([signal, limit]) : limit });
  if (answer.status === 204) return null;
  return answer.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Unreachable(error.message);
  });
}

/** Returns the bytes of a file. Throws `ApiError` or `Unreachable`. */
export async function readFile(id, headers = {}) {
  const answer = await open("GET", `/api/files/${encodeURIComponent(id)}`, { headers });
  return answer.arrayBuffer().catch((error) => { throw new Unreachable(error.message); });
}

/** Runs `work`, which requests `path`, again and again until the gateway answers. */
async function retry(path, signal, work) {
  try {
    for (let ms = FIRST_PAUSE_MS; ; ms = Math.min(2 * ms, LONGEST_PAUSE_MS)) {
      try {
        return await work();
      } catch (error) {
        if (!(error instanceof Unreachable)) throw error;
        note(path, error.reason);
      }
      await pause(ms * (0.75 + Math.random() / 2), signal);
    }
  } finally {
    note(path, null);
  }
}

/** Sends a request until it is answered. Throws `ApiError`, or an AbortError when `signal` is aborted. */
export function call(method, path, more = {}) {
  return retry(path, more.signal, () => attempt(method, path, more));
}

export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => { clearTimeout(timer); reject(signal.reason); };
    const timer = setTimeout(() => { signal?.removeEventListener("abort", stop); resolve(); }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Passes each event of the gateway's feed to `take(name, data, id)`, until `signal` is aborted. A connection that breaks
 * is opened again where it ended. */
export async function followAll(after, take, signal) {
  const path = "/api/events";
  let last = after;
  const listen = async () => {
    for await (const [id, data, name] of stream(path, last, signal)) {
      last = Math.max(last, id);
      note(path, null);
      take(name, data, last);
    }
    throw new Unreachable("the stream ended");
  };
  await retry(path, signal, listen);
}

/** Passes each event of a turn to `take`, over lost connections and restarts of the gateway. */
export async function follow(turn, take, signal) {
  const path = `/api/turns/${encodeURIComponent(turn)}/events`;
  let after = 0;
  let isOver = false;
  const listen = async () => {
    for await (const [id, event] of stream(path, after, signal)) {
      after = id;
      isOver = ["done", "failed", "cancelled"].includes(event.type);
      await take(event);
    }
    if (!isOver) throw new Unreachable("the stream ended early");
  };
  await retry(path, signal, listen);
}

async function* stream(path, after, signal) {
  const silence = new AbortController();
  let timer;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(new Unreachable("silence")), SILENCE_MS);
  };
  heard();
  try {
    const headers = after ? { "Last-Event-ID": String(after) } : {};
    const answer = await open("GET", path, { headers, signal: AbortSignal.any([signal, silence.signal]) });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const fields = Object.fromEntries(block.split("\n").map((row) => row.split(/: (.*)/s, 2)));
        if (fields.data) yield [Number(fields.id), JSON.parse(fields.data), fields.event];
      }
    }
  } catch (error) {
    if (signal.aborted || error instanceof ApiError || error instanceof Unreachable) throw error;
    throw new Unreachable(error.message);
  } finally {
    clearTimeout(timer);
    silence.abort(); // closes the connection when the caller stops reading early
  }
}
