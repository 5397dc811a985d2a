/* What the page knows about all chats, as data: the sessions, the turns that are not over, and what is open. Pure
   functions; `reading.js` brings the changes and reads the lists. */

/**
 * @typedef {{ sessions: any[], more: boolean, turns: Record<string, any>, last: Record<string, any>, questions: any[],
 *   replies: any[], jobs: any[], jobsAt: number, over: string[], isRead: boolean }} Store
 *   `isRead` tells whether the sessions were read at all; `last` has the last turn of each session that is known; `jobsAt` grows with each change of a job; `over` are the ids of
 *   turns that ended, questions that were decided and sessions that were deleted, which an answer that was under way may
 *   still have
 */

/** @type {Store} */
export const NOTHING = { sessions: [], more: false, turns: {}, last: {}, questions: [], replies: [], jobs: [], jobsAt: 0, over: [], isRead: false };
const FINAL = ["done", "failed", "cancelled"];
const MOST_OVER = 500;
const DAY_MS = 86_400_000;

/** @typedef {{ sessions: string[], inbox: boolean, lists: boolean }} Reads what has to be read after a change */

/** Applies a change that the gateway told. Returns the new store and what to read.
 * @returns {[Store, Reads]} */
export function applyChange(store, name, data) {
  const reads = { sessions: [], inbox: false, lists: false };
  if (data.state) return [withTurn(store, data, reads), reads];
  switch (name) {
    case "ready": case "reset": case "lagged":
      return [store, { ...reads, lists: true }];
    case "session.created": case "session.written": case "session.marked":
      return [store, { ...reads, sessions: [data.id] }];
    case "session.ended": case "session.titled":
      return [withSession(store, data.id, name === "session.titled" ? { title: data.title } : { ended_at: data.at }), reads];
    case "session.deleted":
      return [withoutSession(store, data.id), { ...reads, inbox: true }];
    case "reply.sent": case "reply.failed": case "reply.delayed":
      return [store, { ...reads, inbox: true }];
    case "question.asked":
      return [store, { ...reads, inbox: true }];
    case "question.decided":
      return [{ ...store, questions: store.questions.filter(({ id }) => id !== data.id), over: [...store.over, data.id].slice(-MOST_OVER) }, reads];
    case "job.saved": case "job.removed":
      return [{ ...store, jobsAt: store.jobsAt + 1 }, { ...reads, inbox: true }];
    default:
      return [store, reads];
  }
}

function withTurn(store, turn, reads) {
  const isOver = FINAL.includes(turn.state);
  const known = store.turns[turn.id];
  const turns = { ...store.turns };
  if (isOver) delete turns[turn.id];
  else turns[turn.id] = turn;
  const questions = turn.state === "waiting" ? store.questions : store.questions.filter(({ turn_id: id, kind }) => id !== turn.id || kind === "host");
  if (isListed(turn) && (isOver || !store.sessions.some(({ id }) => id === turn.session_id))) reads.sessions = [turn.session_id];
  if (isOver && turn.channel === "jobs") reads.lists = true; // its result is in another chat
  if (turn.state === "waiting" || (isOver && turn.channel !== "http")) reads.inbox = true;
  const isLater = !known && (store.last[turn.session_id]?.accepted_at ?? 0) > turn.accepted_at;
  const last = isLater || !isListed(turn) ? store.last : { ...store.last, [turn.session_id]: turn };
  const over = isOver ? [...store.over, turn.id].slice(-MOST_OVER) : store.over;
  const jobsAt = store.jobsAt + (turn.channel === "jobs" ? 1 : 0);
  return { ...store, turns, questions, last, jobsAt, over };
}

/** Whether a session, or that of a turn, is in the list of chats. Jobs have an inner session for each run, and each call
 * without a session has one too. */
export function isListed({ chat_key: key }) {
  return channelOf(key) !== "jobs" && !key.includes(":ephemeral:");
}

/** Changes a session, or adds it unless it was deleted. A session is listed by when it was used last. */
export function withSession(store, id, more) {
  const known = store.sessions.find((session) => session.id === id);
  if (!known && (!more.id || store.over.includes(id))) return store;
  const rest = store.sessions.filter((session) => session.id !== id);
  const sessions = [...rest, { ...known, ...more }].sort((one, other) => other.updated_at - one.updated_at);
  return { ...store, sessions };
}

export function withoutSession(store, id) {
  const { [id]: _, ...last } = store.last;
  const sessions = store.sessions.filter((session) => session.id !== id);
  const questions = store.questions.filter(({ session_id: of }) => of !== id);
  return { ...store, sessions, questions, last, over: [...store.over, id].slice(-MOST_OVER) };
}

/** Takes over the sessions that were read. `before` are those of the store when the reading began: a session that changed
 * since then, appeared or was deleted is newer in the store than in the answer. */
export function withSessions(store, before, read, more) {
  const former = new Map(before.map((session) => [session.id, session]));
  const current = new Map(store.sessions.map((session) => [session.id, session]));
  const isChanged = (id) => current.get(id) !== former.get(id);
  const changed = store.sessions.filter(({ id }) => isChanged(id));
  const sessions = [...read.filter(({ id }) => !isChanged(id) && !store.over.includes(id)), ...changed].sort((one, other) => other.updated_at - one.updated_at);
  return { ...store, sessions, more, isRead: true };
}

/** Takes over the inbox as the gateway lists it. Its turns are all that are not over. `before` are the turns of the store
 * when the reading began: a turn that was told since then is newer in the store than in the answer. */
export function withInbox(store, before, { questions: asked, turns: unfinished, replies, jobs }) {
  const isTold = (id) => store.turns[id] !== before[id];
  const turns = [...unfinished.filter(({ id }) => !store.over.includes(id) && !isTold(id)), ...Object.values(store.turns).filter(({ id }) => isTold(id))];
  const questions = asked.filter(({ id, turn_id: turn, kind }) => !store.over.includes(id) && (kind === "host" || !store.over.includes(turn)));
  const open = Object.fromEntries(turns.map((turn) => [turn.id, { ...store.turns[turn.id], ...turn, channel: channelOf(turn.chat_key) }]));
  const last = { ...store.last };
  for (const turn of turns) if ((last[turn.session_id]?.accepted_at ?? 0) <= turn.accepted_at) last[turn.session_id] = open[turn.id];
  return { ...store, questions, replies, jobs, turns: open, last };
}

/** Adds the last turns of sessions, newest first. */
export function withRecent(store, turns) {
  const last = { ...store.last };
  for (const turn of turns) if ((last[turn.session_id]?.accepted_at ?? 0) < turn.accepted_at) last[turn.session_id] = turn;
  return { ...store, last };
}

export function channelOf(key) {
  return key.split(":")[2] ?? "";
}

/** The chat for which a delegate works that asks something. */
function askedFor(key = "") {
  const [, , channel, kind, , chat] = key.split(":");
  return channel === "jobs" && kind === "delegate" ? decodeURIComponent(chat ?? "") : null;
}

/** What a session's row shows: it "needs" a person, is "running", its last turn "failed", or none of these. */
export function markOf(store, session, isUnread) {
  if (store.questions.some(({ session_id: id, chat_key: key }) => id === session.id || askedFor(key) === session.chat_key)) return "needs";
  const turns = Object.values(store.turns).filter(({ session_id: id }) => id === session.id);
  if (turns.length) return "running";
  return isUnread && store.last[session.id]?.state === "failed" ? "failed" : "";
}

/** Sessions in sections: those that need somebody, running and pinned ones, the others by day, and archived ones.
 * @returns {{ name: string, sessions: any[] }[]} */
export function sectionsOf(store, unread, now) {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  const names = ["Needs you", "Running", "Pinned", "Today", "Yesterday", "Last 7 days", "Older", "Archived"];
  const sections = names.map((name) => ({ name, sessions: [] }));
  for (const session of store.sessions) {
    const mark = markOf(store, session, unread.has(session.id));
    const at = session.updated_at * 1000;
    const day = at >= midnight ? 3 : at >= midnight - DAY_MS ? 4 : at >= midnight - 6 * DAY_MS ? 5 : 6;
    const place = mark === "needs" ? 0 : mark === "running" ? 1 : { pinned: 2, archived: 7 }[session.mark] ?? day;
    sections[place].sessions.push(session);
  }
  return sections.filter(({ sessions }) => sessions.length);
}

/** How many things wait for a person. */
export function needsCount(store) {
  return store.questions.length + store.replies.filter(({ state }) => state === "failed").length;
}
