/* Jobs in a dialog: when each runs next, what its last runs cost and took, and a new one in plain words. */

import { call } from "./api.js";
import { $, make } from "./elements.js";
import { effect } from "./preact.js";
import { label, listed, store } from "./reading.js";
import { showProblem } from "./blocks.js";

const STRIP = { runs: 40, width: 8, height: 28 };
const FINISHED = 20; // finished jobs that are shown
let proposed = null; // what the gateway would save: the text, and when it was shown

/** Shows all jobs, and lets the person create one. */
export async function showJobs() {
  $("jobs").showModal();
  propose(null);
  await attempt(read);
}

/** Runs an action and shows why it failed, if it did. */
async function attempt(action) {
  showProblem($("jobs-error"), null);
  try {
    await action();
  } catch (error) {
    showProblem($("jobs-error"), error);
  }
}

async function read() {
  const [open, done] = await Promise.all(["limit=100&unfinished=1", `limit=${FINISHED}&finished=1`].map(cards));
  open.reverse(); // the newest first
  const none = make("p", { className: "quiet" }, "There are no jobs yet.");
  const isOpen = $("jobs-list").querySelector("details")?.open ?? false;
  const finished = make("details", { open: isOpen }, make("summary", {}, "Finished"), ...done);
  $("jobs-list").replaceChildren(...(open.length ? open : [none]), ...(done.length ? [finished] : []));
}

async function cards(query) {
  const { items } = await call("GET", `/api/jobs?${query}`);
  const histories = await Promise.all(items.map(({ id }) => call("GET", `/api/jobs/${id}/runs?limit=${STRIP.runs}`)));
  return items.map((job, n) => card(job, histories[n].items));
}

function card(job, runs) {
  const next = job.next.length ? `Next: ${job.next.join(" · ")}` : job.state;
  const act = (label, action) => make("button", { type: "button", textContent: label, onclick: () => attempt(async () => { await action(); await read(); }) });
  const change = (state) => () => call("PATCH", `/api/jobs/${job.id}`, { body: JSON.stringify({ state }) });
  const buttons = [
    act("Run now", () => call("POST", `/api/jobs/${job.id}/run`)),
    ...(job.state === "done" ? [] : [job.state === "paused" ? act("Resume", change("active")) : act("Pause", change("paused"))]),
    remover(job, act),
  ];
  return make("section", { className: "job" },
    make("h3", {}, job.name),
    make("p", {}, `${job.schedule} (${job.timezone})`),
    make("p", { className: "quiet" }, next, job.reason ? ` (${job.reason})` : ""),
    make("p", { className: "quiet" }, spokenLine(`Results go to: ${job.results_to}`)),
    ...(runs.length ? [strip(runs), make("p", { className: "quiet" }, last(runs[0]))] : []),
    make("div", { className: "row" }, ...buttons));
}

/** Asks once more: the history of the job goes with it. */
function remover(job, act) {
  const ask = make("button", { type: "button", textContent: "Remove" });
  ask.onclick = () => {
    const sure = act("Remove it with its history", () => call("DELETE", `/api/jobs/${job.id}`));
    sure.className = "danger";
    ask.replaceWith(sure, make("button", { type: "button", textContent: "Keep it", onclick: () => attempt(read) }));
    sure.focus();
  };
  return ask;
}

function last(run) {
  return `Last run: ${run.state}${seconds(run) === null ? "" : `, ${seconds(run).toFixed(1)} s`}, ${run.cost_usd} USD${run.reason ? `: ${run.reason}` : ""}`;
}

function seconds(run) {
  return run.started_at === null || run.ended_at === null ? null : Math.max(0, run.ended_at - run.started_at);
}

/** The last runs as bars, the oldest first: as high as they took long, in the colour of their state. */
function strip(runs) {
  const oldest = [...runs].reverse();
  const longest = Math.max(1, ...oldest.map((run) => seconds(run) ?? 0));
  const svg = svgNode("svg", { viewBox: `0 0 ${STRIP.runs * STRIP.width} ${STRIP.height}`, class: "strip", role: "img" });
  const count = (state) => oldest.filter((run) => run.state === state).length;
  svg.append(svgNode("title", {}, `The last ${oldest.length} runs: ${count("done")} done, ${count("failed")} failed, ${count("skipped")} skipped`));
  oldest.forEach((run, n) => {
    const height = 3 + (STRIP.height - 3) * ((seconds(run) ?? 0) / longest);
    const bar = svgNode("rect", { x: n * STRIP.width, y: STRIP.height - height, width: STRIP.width - 2, height, class: run.state });
    bar.append(svgNode("title", {}, `${run.slot}: ${last(run).slice(10)}`));
    svg.append(bar);
  });
  return svg;
}

function svgNode(name, attributes, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}

// -- a new job

/** The chat on the page by its name; none for a session that is only read. */
function openChat() {
  const chat = /^#chat=([\w.-]{1,128})/.exec(location.hash)?.[1];
  return chat?.startsWith("ses_") ? undefined : chat;
}

/** Names the chat that gets the results as the page does. Other lines stay as they are. */
function spokenLine(line) {
  return line.replace(/^(Results go to: )the chat ([\w.-]+)( \(.*\))?$/, (_, head, name) => {
    if (name === openChat()) return `${head}this chat`;
    return `${head}the chat “${listed(name) ? label(listed(name)) : name}”`;
  });
}

/** Shows what would be saved, or nothing. */
function propose(shown) {
  proposed = shown;
  $("jobs-proposal").replaceChildren(...(shown ? shown.lines.map((line) => make("p", {}, spokenLine(line))) : []));
  $("jobs-save").hidden = $("jobs-kind").hidden = !shown;
  if (shown) $("jobs-remind").checked = shown.reminder;
}

/** Asks the gateway what it would save. */
async function ask(body) {
  const shown = await call("POST", "/api/jobs", { body: JSON.stringify({ ...body, confirm: false }) });
  propose({ ...shown, body: { ...body, remind: shown.reminder } });
}

$("jobs-form").onsubmit = (event) => {
  event.preventDefault();
  const text = $("jobs-text").value.trim();
  if (!text) return;
  propose(null);
  attempt(() => ask({ text, chat: openChat() }));
};
$("jobs-remind").onchange = () => attempt(() => ask({ ...proposed.body, remind: $("jobs-remind").checked }));
$("jobs-text").oninput = () => propose(null);
$("jobs-save").onclick = () => attempt(async () => {
  const body = JSON.stringify({ ...proposed.body, asked_at: proposed.asked_at });
  propose(null);
  await call("POST", "/api/jobs", { body });
  $("jobs-text").value = "";
  await read();
});
/** Runs that begin and end, and jobs that others change, are shown as they happen. */
let known = 0;
effect(() => {
  const { jobsAt } = store.value;
  if (jobsAt === known) return;
  known = jobsAt;
  if ($("jobs").open) attempt(read);
});
$("jobs-close").onclick = () => $("jobs").close();
