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

/** Nobody answered, or something in between did. */
class Away extends Error {}

const CALL_MS = 30_000;
const SILENCE_MS = 40_000; // the gateway says something every 15 seconds
const SHORTEST_MS = 250;
const LONGEST_MS = 4_000;

/** Tells "away" and "back". */
export const line = new EventTarget();
let isAway = false;

function note(away) {
  if (away === isAway) return;
  isAway = away;
  line.dispatchEvent(new Event(away ? "away" : "back"));
}

async function open(method, path, { body, headers, signal } = {}) {
  let answer;
  try {
    answer = await fetch(path, { method, body, headers, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    note(true);
    throw new Away(error.message);
  }
  const error = answer.ok ? null : (await answer.json().catch(() => null))?.error;
  if ([502, 503, 504].includes(answer.status) && (!error || error.type === "draining")) {
    note(true);
    throw new Away(String(answer.status));
  }
  note(false);
  if (!answer.ok) throw new Refused(answer.status, error);
  return answer;
}

/** One try. Raises `Refused`, `Away`, and an AbortError when `signal` says so. */
async function attempt(method, path, { signal, ms = CALL_MS, ...more } = {}) {
  const limit = AbortSignal.timeout(ms);
  const answer = await open(method, path, { ...more, signal: signal ? AbortSignal.any([signal, limit]) : limit });
  if (answer.status === 204) return null;
  return answer.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Away(error.message);
  });
}

/** `work` until it is answered, however long the gateway is away. */
async function patiently(signal, work) {
  for (let ms = SHORTEST_MS; ; ms = Math.min(2 * ms, LONGEST_MS)) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof Away)) throw error;
    }
    await pause(ms * (0.75 + Math.random() / 2), signal);
  }
}

export function call(method, path, more = {}) {
  return patiently(more.signal, () => attempt(method, path, more));
}

export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
  });
}

/** Gives `take` the turn's events to the last one, over breaks of the line and restarts of the gateway. */
export async function follow(turn, take, signal) {
  let after = 0;
  let isOver = false;
  const listen = async () => {
    for await (const [id, event] of stream(`/api/turns/${encodeURIComponent(turn)}/events`, after, signal)) {
      after = id;
      isOver = ["done", "failed", "cancelled"].includes(event.type);
      await take(event);
    }
    if (!isOver) throw new Away("the stream ended early");
  };
  await patiently(signal, listen);
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
    if (signal.aborted || error instanceof Refused) throw error;
    note(true);
    throw new Away(error.message);
  } finally {
    clearTimeout(timer);
    silence.abort(); // gives the connection back when nobody listens any more
  }
}
