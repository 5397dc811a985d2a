/* The inbox: every open question of every chat, decided in place, and everything that the gateway still owes. */

import { call } from "./api.js";
import { Problem, Question, personOf } from "./blocks.js";
import { openInspector } from "./elements.js";
import { html, useEffect, useState } from "./preact.js";
import { label, listed, now, readSoon, referenceOf, store } from "./reading.js";
import { channelOf } from "./store.js";
import { duration } from "./texts.js";

const TICK_MS = 30_000;
const OPEN_STATES = { accepted: "Waits for its turn", running: "Running", waiting: "Waiting" };
const UNSENT_STATES = { pending: "Not delivered yet", sending: "Being delivered", failed: "Delivery failed" };

export function Inbox() {
  const { questions, turns, replies, jobs } = store.value;
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => { tick((n) => n + 1); readSoon({ inbox: true }).catch(() => {}); }, TICK_MS);
    return () => clearInterval(timer);
  }, []);
  const running = Object.values(turns).filter((turn) => !questions.some((each) => each.turn_id === turn.id));
  running.sort((one, other) => one.accepted_at - other.accepted_at);
  const isEmpty = !questions.length && !running.length && !replies.length && !jobs.length;
  return html`
    ${isEmpty && html`<p class="nothing"><strong>Nothing is waiting.</strong><br /><small>Questions of all chats, unfinished work and failed deliveries appear here.</small></p>`}
    <${Section} name="Waiting for you" items=${questions} row=${(asked) => html`<${Asked} key=${asked.id} asked=${asked} />`} />
    <${Section} name="Delivery" items=${replies} row=${(reply) => html`<${Reply} key=${reply.id} reply=${reply} />`} />
    <${Section} name="Running" items=${running} row=${(turn) => html`<${Turn} key=${turn.id} turn=${turn} />`} />
    <${Section} name="Paused jobs" items=${jobs} row=${(job) => html`<${Job} key=${job.id} job=${job} />`} />`;
}

function Section({ name, items, row }) {
  return items.length ? html`<section class="open"><h2>${name} <small>${items.length}</small></h2>${items.map(row)}</section>` : null;
}

function age(at) {
  const seconds = now() / 1000 - at;
  return seconds < 60 ? "just now" : `${duration(seconds)} ago`;
}

function Place({ session, chat }) {
  const known = listed(session);
  const name = known ? label(known) : channelOf(chat) === "jobs" ? "A job" : chat.split(":").slice(2).join(" ");
  return html`<a class="place" href=${`#chat=${known ? referenceOf(known) : session}`} dir="auto">${name}</a> ${channelOf(chat) !== "http" && html`<span class="channel">${channelOf(chat)}</span>`}`;
}

function Asked({ asked }) {
  const left = asked.expires_at - now() / 1000;
  return html`<article class="item">
    <p class="about-item"><${Place} session=${asked.session_id} chat=${asked.chat_key} />
      <small>${asked.requester.name && `${personOf(asked.requester.name)} · `}${age(asked.asked_at)} · ${left > 0 ? `expires in ${duration(left)}` : "expired"}</small></p>
    <${Question} question=${asked} />
  </article>`;
}

function Turn({ turn }) {
  return html`<article class="item line-item">
    <p class="about-item"><${Place} session=${turn.session_id} chat=${turn.chat_key} /> <b class="mark" data-state=${turn.state === "waiting" ? "needs" : "running"}>${OPEN_STATES[turn.state]}</b> <small>${age(turn.accepted_at)}</small></p>
    <p class="text" dir="auto">${turn.text}</p>
    <button type="button" class="plain" onClick=${() => openInspector(turn.id)}>Details</button>
  </article>`;
}

function Reply({ reply }) {
  return html`<article class="item line-item">
    <p class="about-item"><span class="channel">${reply.channel}</span> <b class="mark" data-state=${reply.state === "failed" ? "failed" : "running"}>${UNSENT_STATES[reply.state]}</b> <small>${age(reply.written_at)}${reply.attempts ? ` · ${reply.attempts} attempts` : ""}</small></p>
    <p class="text" dir="auto">${reply.text}</p>
    ${reply.error && html`<p class="why">${reply.error}</p>`}
    <button type="button" class="plain" onClick=${() => openInspector(reply.turn_id)}>Details</button>
  </article>`;
}

function Job({ job }) {
  const [error, setError] = useState(null);
  const resume = () => call("PATCH", `/api/jobs/${job.id}`, { body: JSON.stringify({ state: "active" }) }).then(() => readSoon({ inbox: true })).catch(setError);
  return html`<article class="item line-item">
    <p class="about-item"><strong dir="auto">${job.name}</strong> <b class="mark" data-state="job">Paused</b> <small>${job.schedule}</small></p>
    ${job.reason && html`<p class="text">${job.reason}</p>`}
    ${error && html`<${Problem} error=${error} />`}
    <button type="button" onClick=${resume}>Resume</button>
  </article>`;
}
