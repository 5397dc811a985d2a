/* Calls to the gateway: its errors in its own words, patience while it is away, and a turn's events. */

/** The gateway said no. `message` says what and why, `hint` what to do. */
export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `The gateway answered with status ${status}.`);
    this.status = status;
    this.type = error?.type ?? "unknown";
    this.hint = error?.hint ?? "";
  }
}

/** Nobody answered, or something in between did, or the gateway cannot now: `words` are its own, if it has any. */
class Away extends Error {
  constructor(message, words = "") {
    super(message);
    this.words = words;
  }
}

const CALL_MS = 30_000;
const SILENCE_MS = 40_000; // the gateway says something every 15 seconds
const SHORTEST_MS = 250;
const LONGEST_MS = 2_000;

/** Tells "change": `detail` is null when every call is answered, else what the gateway said of it, if anything. */
export const line = new EventTarget();
const unanswered = new Map();

function note(path, words) {
  if (words === null ? !unanswered.delete(path) : unanswered.get(path) === words) return;
  if (words !== null) unanswered.set(path, words);
  line.dispatchEvent(new CustomEvent("change", { detail: [...unanswered.values()].at(-1) ?? null }));
}

async function open(method, path, { body, headers, signal } = {}) {
  let answer;
  try {
    answer = await fetch(path, { method, body, headers, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (body instanceof File) await prove(body);
    throw new Away(error.message);
  }
  const error = answer.ok ? null : (await answer.json().catch(() => null))?.error;
  if (answer.status >= 500) throw new Away(String(answer.status), error ? `${error.message} ${error.hint}` : "");
  note(path, null);
  if (!answer.ok) throw new Refused(answer.status, error);
  return answer;
}

/** A browser tells a file that cannot be read and a gateway that is away by the same error. */
async function prove(file) {
  const message = `${file.name} cannot be read.`;
  const hint = "It was moved or deleted, or it is a folder. Attach it again; a folder has to be packed into one file.";
  await file.slice(0, 1).arrayBuffer().catch(() => { throw new Refused(0, { type: "unreadable", message, hint }); });
}

/** One try. Raises `Refused`, `Away`, and an AbortError when `signal` says so. */
export async function attempt(method, path, { signal, ms = CALL_MS, ...more } = {}) {
  const limit = AbortSignal.timeout(ms);
  const answer = await open(method, path, { ...more, signal: signal ? AbortSignal.any([signal, limit]) : limit });
  if (answer.status === 204) return null;
  return answer.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Away(error.message);
  });
}

/** `work`, which calls `path`, until it is answered, however long the gateway is away. */
async function patiently(path, signal, work) {
  try {
    for (let ms = SHORTEST_MS; ; ms = Math.min(2 * ms, LONGEST_MS)) {
      try {
        return await work();
      } catch (error) {
        if (!(error instanceof Away)) throw error;
        note(path, error.words);
      }
      await pause(ms * (0.75 + Math.random() / 2), signal);
    }
  } finally {
    note(path, null);
  }
}

export function call(method, path, more = {}) {
  return patiently(path, more.signal, () => attempt(method, path, more));
}

export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => { clearTimeout(timer); reject(signal.reason); };
    const timer = setTimeout(() => { signal?.removeEventListener("abort", stop); resolve(); }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Gives `take` the turn's events to the last one, over breaks of the line and restarts of the gateway. */
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
    if (!isOver) throw new Away("the stream ended early");
  };
  await patiently(path, signal, listen);
}

async function* stream(path, after, signal) {
  const silence = new AbortController();
  let timer;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(new Away("silence")), SILENCE_MS);
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
        if (fields.data) yield [Number(fields.id), JSON.parse(fields.data)];
      }
    }
  } catch (error) {
    if (signal.aborted || error instanceof Refused || error instanceof Away) throw error;
    throw new Away(error.message);
  } finally {
    clearTimeout(timer);
    silence.abort(); // gives the connection back when nobody listens any more
  }
}
