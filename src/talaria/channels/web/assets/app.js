/* The page: getting in, which chat is open, bringing messages to the gateway, and the state of things. */

import { drawChats, label, learnTitles, narrow, readChats, showMore, toggleSide } from "./chats.js";
import { Composer } from "./composer.js";
import { $, make } from "./elements.js";
import { forgetAll, newName, outbox } from "./keep.js";
import { show } from "./markdown.js";
import { call, line, pause, Refused } from "./net.js";
import { Room } from "./room.js";
import { megabytes, Transcript, trouble } from "./transcript.js";

const LOOK_MS = 10_000;
const SOON_MS = 2_000;
const transcript = new Transcript($("log"), $("live"));
const composer = new Composer(send, fail);
const page = {
  transcript,
  fail,
  refresh,
  draw,
  announce: (text) => { $("said").textContent = text; },
};
let room = null;
let status = null;
const posting = new Map(); // of each chat, in the order in which they were sent, whatever chat is open meanwhile
const underway = new Set(); // the keys of those
let isPinned = true; // the end of the conversation stays in view

function fail(error) {
  if (error.name === "AbortError") return; // the chat was left
  if (!(error instanceof Refused)) reportError(error); // a fault of this page, which goes on
  else if (error.status === 401) ask(null);
  else transcript.remark(null, trouble(error));
}

// -- getting in

/** The code of a link, taken out of the address bar and its history before anything is sent. */
function takeCode() {
  const code = /^#code=(.+)$/.exec(location.hash)?.[1];
  if (code) history.replaceState(null, "", location.pathname);
  return code;
}

async function begin(code) {
  let refusal = null;
  try {
    const body = JSON.stringify({ code });
    if (code) await call("POST", "/api/login", { body }).catch((error) => { refusal = error; });
    status = await call("GET", "/api/status");
  } catch (error) {
    ask(error.status === 401 ? refusal : error);
    return;
  }
  $("login").hidden = true;
  $("app").hidden = false;
  outbox.retire().forEach((item) => composer.giveBack(item));
  route();
  await refresh();
}

/** The card that says how to get in, and why the last try did not work. */
function ask(refusal) {
  room?.leave();
  room = null;
  $("app").hidden = true;
  $("login").hidden = false;
  const error = { message: "You are not logged in.", hint: `${refusal?.message} ${refusal?.hint}` };
  $("login-error").replaceChildren(...(refusal ? [trouble(error)] : []));
  $("code").value = "";
  $("code").focus();
}

$("login-form").onsubmit = (event) => {
  event.preventDefault();
  const given = $("code").value.trim();
  begin(/#code=(\S+)/.exec(given)?.[1] ?? given);
};

$("logout").onclick = async () => {
  await call("POST", "/api/logout");
  forgetAll();
  location.replace(location.pathname);
};

// -- which chat is open

function route() {
  const ref = /^#chat=([\w.-]{1,128})$/.exec(location.hash)?.[1];
  toggleSide(false);
  if (!ref) openNew("replaceState");
  else if (ref !== room?.ref) enter(new Room(ref, page));
}

/** `way`: whether Back leads to where we are now. */
function openNew(way) {
  const name = newName();
  history[way](null, "", `#chat=${name}`);
  enter(new Room(name, page), true);
}

function enter(here, isNew = false) {
  room?.leave();
  room = here;
  isPinned = true;
  transcript.clear();
  transcript.endLive();
  composer.open(here.name);
  $("elsewhere").hidden = true;
  here.draw();
  drawChats(here.ref);
  if (!narrow.matches) $("text").focus();
  if (isNew) return;
  $("scroll").dataset.loading = "";
  const arrived = () => { if (room === here) delete $("scroll").dataset.loading; };
  here.catchUp().then(() => (here.name ? null : explain(here.session))).catch(fail).finally(arrived);
}

/** A session that is not its chat's current one, or not of this channel, can only be read. */
async function explain(session) {
  const current = session?.name ? await call("GET", `/api/sessions/${session.name}`) : null;
  if (room?.session !== session) return;
  const go = () => { location.hash = `#chat=${session.name}`; };
  const resume = () => { post(new Room(session.name, page).send(`/resume ${session.id}`, [])); go(); };
  if (current && current.id === session.id) go();
  else if (current) {
    const button = make("button", { textContent: "Continue it", onclick: resume });
    $("elsewhere").replaceChildren("An earlier conversation of this chat. ", button);
  } else {
    const place = session?.chat_key.split(":")[2];
    $("elsewhere").textContent = session ? `This chat is on ${place}. Answer it there.` : "There is no such chat.";
  }
  $("elsewhere").hidden = false;
}

$("new").onclick = () => {
  toggleSide(false);
  openNew("pushState");
  $("text").focus();
};

// -- messages

function send(text, files) {
  isPinned = true;
  post(room.send(text, files));
}

function post(item) {
  if (underway.has(item.key)) return;
  underway.add(item.key);
  const before = posting.get(item.chat) ?? Promise.resolve();
  posting.set(item.chat, before.then(() => bring(item)).catch(fail).finally(() => underway.delete(item.key)));
}

/** Brings a message to the gateway. The same key each time: it may have arrived although no answer did. */
async function bring(item) {
  const headers = { "Idempotency-Key": item.key };
  try {
    await Promise.all(item.files.map((file) => file.ready));
    outbox.update(item);
    const body = JSON.stringify({ text: item.text, files: item.files.map((file) => file.id) });
    item.turn = (await call("POST", `/api/sessions/${item.chat}/messages`, { body, headers })).turn_id;
  } catch (error) {
    if (error.status === 401) throw error; // it goes out after the next login
    outbox.drop(item);
    composer.giveBack(item);
    if (room?.name === item.chat) room.refused(item, error);
    return;
  }
  outbox.update(item);
  if (room?.name === item.chat) room.sent(item);
  refresh();
}

$("stop").onclick = () => { room.stop().catch(fail); $("text").focus(); };
$("skip").onclick = () => $("text").focus();

// -- the state of things, looked at again and again

async function look() {
  for (;;) {
    await pause(isComing() ? SOON_MS : LOOK_MS);
    if (room && !document.hidden) await refresh();
  }
}

async function refresh() {
  try {
    status = await call("GET", "/api/status");
    const chats = await readChats();
    if (!room) return;
    outbox.unsent().forEach(post); // also what a tab that was closed has left
    drawChats(room.ref);
    room.draw();
    if (!room.isBusy && chats.some((session) => room.isBehind(session))) await room.catchUp();
    if (await learnTitles()) drawChats(room?.ref);
  } catch (error) {
    fail(error);
  }
}

function draw(here, waiting) {
  if (here !== room) return;
  $("waiting").replaceChildren(...waiting);
  $("title").textContent = here.session ? label(here.session) : "New chat";
  document.title = `${$("title").textContent} · Talaria`;
  $("version").textContent = `Talaria ${status.version}`;
  $("stop").hidden = !here.watching;
  const { weights, pid } = status.built_in_model;
  const isTiny = here.provider ? here.provider === "local" : pid !== null;
  const progress = () => `${weights.stage} ${megabytes(weights.done)}/${megabytes(weights.total)} MB`;
  $("badge").hidden = !(isComing() || isTiny);
  $("badge").textContent = isComing() ? `tiny model: ${progress()}` : "tiny model, makes frequent mistakes";
}

/** Whether the weights of the built-in model are on their way. */
function isComing() {
  return ["waiting", "fetching", "verifying"].includes(status?.built_in_model.weights?.stage);
}

const grown = new ResizeObserver(() => { if (isPinned) $("scroll").scrollTop = $("scroll").scrollHeight; });
["log", "live", "waiting", "scroll"].forEach((id) => grown.observe($(id)));
$("scroll").onscroll = () => {
  isPinned = $("scroll").scrollHeight - $("scroll").scrollTop - $("scroll").clientHeight < 80;
};
$("more").onclick = () => { showMore(); refresh(); };
line.addEventListener("change", ({ detail }) => {
  const kept = "What you send is kept and goes out when it is back.";
  const text = detail ? `${detail} ${kept}` : `The gateway does not answer. ${kept} (Is it running? \`talaria serve\`)`;
  show($("line"), detail === null ? "" : text);
  document.body.toggleAttribute("data-away", detail !== null);
});
addEventListener("storage", ({ key }) => {
  if (!room || !outbox.is(key)) return;
  room.share();
  refresh();
});
addEventListener("hashchange", () => {
  const code = takeCode();
  if (code) begin(code);
  else if (room) route();
});
document.addEventListener("visibilitychange", () => { if (room && !document.hidden) refresh(); });
begin(takeCode());
look();
