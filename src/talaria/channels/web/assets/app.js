/* The page: the login, the open chat, sending messages, and polling the gateway's status. */

import { ApiError, call, connection, pause } from "./api.js";
import { Chat } from "./chat.js";
import { drawChats, label, learnTitles, listed, narrow, readChats, showMore, toggleSide } from "./chats.js";
import { Composer } from "./composer.js";
import { askToDelete } from "./deletion.js";
import { $, make, spoken } from "./elements.js";
import { show } from "./markdown.js";
import "./jobs.js";
import "./memory.js";
import { drawModel, fetchLarger, isDownloading } from "./model.js";
import { drawOpen } from "./questions.js";
import { drafts, forgetAll, login, newName, outbox, titles } from "./storage.js";
import "./search.js";
import { Transcript, trouble } from "./transcript.js";

const POLL_MS = 10_000;
const FAST_POLL_MS = 2_000; // while a built-in model is downloaded
const transcript = new Transcript($("log"), $("live"));
const composer = new Composer(send, fail);
const page = {
  transcript,
  fail,
  refresh,
  draw,
  announce: (text) => { $("said").textContent = text; },
};
let chat = null;
let status = null;
let polled = 0;
const posting = new Map(); // for each chat the promise of its last message, so that messages keep their order
const underway = new Set(); // the keys of messages that are being sent
let isPinned = true; // whether the page scrolls along with the end of the conversation

function fail(error) {
  if (error.name === "AbortError") return; // the chat was left
  if (!(error instanceof ApiError)) reportError(error); // a bug of this page, which goes on
  else if (error.status === 401) showLogin(null);
  else transcript.remark(null, trouble(error));
}

// -- the login

/** Returns the code of a link, and removes it from the address bar and the history before anything is sent. */
function takeCode() {
  const code = /^#code=(.+)$/.exec(location.hash)?.[1];
  if (code) history.replaceState(null, "", location.pathname);
  return code;
}

async function begin(code) {
  let refusal = null;
  try {
    const body = JSON.stringify({ code });
    const keep = ({ secret }) => login.keep(secret);
    if (code) await call("POST", "/api/login", { body }).then(keep, (error) => { refusal = error; });
    status = await call("GET", "/api/status");
  } catch (error) {
    showLogin(error.status === 401 ? refusal : error);
    return;
  }
  $("login").hidden = true;
  $("app").hidden = false;
  outbox.dropStale().forEach((item) => composer.giveBack(item));
  route();
  await refresh();
}

/** Shows how to log in, and why the last attempt failed. */
function showLogin(refusal) {
  chat?.leave();
  chat = null;
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

// -- the open chat

function route() {
  const [, ref, at] = /^#chat=([\w.-]{1,128})(?:&at=(\d{1,9}))?$/.exec(location.hash) ?? [];
  toggleSide(false);
  if (!ref) openNew("replaceState");
  else if (ref !== chat?.ref) enter(new Chat(ref, page), { at: Number(at) });
  else if (at) pointAt(Number(at));
}

/** Shows an entry of the open chat instead of its end. */
function pointAt(seq) {
  isPinned = false;
  transcript.point(seq);
}

/** `method` is `pushState` if Back shall lead to the chat before, else `replaceState`. */
function openNew(method) {
  const name = newName();
  history[method](null, "", `#chat=${name}`);
  enter(new Chat(name, page), { isNew: true });
}

/** `at` is the entry that is shown first, if it is not the last one. */
function enter(here, { isNew = false, at = 0 }) {
  chat?.leave();
  chat = here;
  isPinned = !at;
  transcript.clear();
  transcript.endLive();
  composer.open(here.name);
  $("elsewhere").hidden = true;
  $("asked").replaceChildren();
  here.draw();
  drawChats(here.ref);
  if (!narrow.matches) $("text").focus();
  if (isNew) return;
  $("scroll").dataset.loading = "";
  const arrived = () => { if (chat === here) delete $("scroll").dataset.loading; };
  const read = here.catchUp().then(() => { if (at && chat === here) pointAt(at); });
  read.then(drawAsked).then(() => (here.name ? null : explain(here.session))).catch(fail).finally(arrived);
}

/** Says why a session can only be read: it is not the current one of its chat, or of another channel. */
async function explain(session) {
  const current = session?.name ? await call("GET", `/api/sessions/${session.name}`) : null;
  if (chat?.session !== session) return;
  const at = /&at=\d+$/.exec(location.hash)?.[0] ?? "";
  const go = () => location.replace(`#chat=${session.name}${at}`); // Back leads to the chat before
  const resume = () => { post(new Chat(session.name, page).send(`/resume ${session.id}`, [])); go(); };
  if (current && current.id === session.id) go();
  else if (current) {
    const button = make("button", { textContent: "Continue it", onclick: resume });
    $("elsewhere").replaceChildren("This is an earlier conversation of this chat. ", button);
  } else {
    const [, , channel, kind, owner] = session?.chat_key.split(":") ?? [];
    const isOfToken = channel === "http" && kind === "token";
    const place = isOfToken ? `This chat belongs to the token ${owner}.` : `This chat is on ${channel}. Answer it there.`;
    $("elsewhere").textContent = session ? place : "There is no such chat.";
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
  post(chat.send(text, files));
}

function post(item) {
  if (underway.has(item.key)) return;
  underway.add(item.key);
  const before = posting.get(item.chat) ?? Promise.resolve();
  posting.set(item.chat, before.then(() => deliver(item)).catch(fail).finally(() => underway.delete(item.key)));
}

/** Sends a message until the gateway answers, always with the same key: an attempt without an answer may have
 * arrived. */
async function deliver(item) {
  const headers = { "Idempotency-Key": item.key };
  try {
    await Promise.all(item.files.map((file) => file.ready));
    outbox.update(item);
    const body = JSON.stringify({ text: item.text, files: item.files.map((file) => file.id) });
    item.turn = (await call("POST", `/api/sessions/${item.chat}/messages`, { body, headers })).turn_id;
  } catch (error) {
    if (error.status === 401) throw error; // it is sent after the next login
    outbox.drop(item);
    composer.giveBack(item);
    if (chat?.name === item.chat) chat.refused(item, error);
    return;
  }
  outbox.update(item);
  if (chat?.name === item.chat) chat.sent(item);
  refresh();
}

$("stop").onclick = () => { chat.stop().catch(fail); $("text").focus(); };
$("skip").onclick = () => $("text").focus();

// -- polling

async function poll() {
  for (;;) {
    await pause(FAST_POLL_MS);
    const isDue = Date.now() - polled >= POLL_MS || isDownloading(status);
    if (chat && !document.hidden && isDue) await refresh();
  }
}

async function refresh() {
  polled = Date.now();
  try {
    status = await call("GET", "/api/status");
    const chats = await readChats();
    if (!chat) return;
    outbox.unsent().forEach(post); // including messages of a closed tab
    drawChats(chat.ref);
    chat.draw();
    if (!chat.isBusy && chats.some((session) => chat.isBehind(session))) await chat.catchUp();
    await drawAsked();
    if (await learnTitles()) {
      drawChats(chat?.ref);
      chat?.draw();
    }
  } catch (error) {
    fail(error);
  }
}

function drawAsked() {
  return drawOpen($("asked"), () => chat?.session?.id, (id) => transcript.asks(id));
}

function draw(here, waiting) {
  if (here !== chat) return;
  $("waiting").replaceChildren(...waiting);
  const session = here.session ?? listed(here.ref); // the list has it before its first answer
  $("title").textContent = session ? label(session) : "New chat";
  document.title = `${$("title").textContent} · Talaria`;
  $("version").textContent = `Talaria ${status.version}`;
  $("stop").hidden = !here.watching;
  $("delete").hidden = !here.session && !here.isBusy;
  $("delete").disabled = !here.session;
  $("delete").title = here.session ? "Delete this chat" : "This chat can be deleted after its first answer";
  drawModel(status, here.model);
}

$("delete").onclick = () => {
  const { session, name } = chat;
  askToDelete(session, label(session), () => {
    if (name) drafts.set(name, "");
    titles.forget(session.id);
    if (chat?.session === session) openNew("replaceState");
    refresh();
  });
};

$("offer-take").onclick = () => {
  $("text").focus();
  const { name, state } = status.built_in_model.larger;
  if (state === "ready" && status.model.default !== `local/${name}`) send(`/model local/${name}`, []);
  else if (state === "ready") openNew("pushState");
  else fetchLarger(status).then(refresh, fail);
};

const grown = new ResizeObserver(() => { if (isPinned) $("scroll").scrollTop = $("scroll").scrollHeight; });
["log", "live", "asked", "waiting", "scroll"].forEach((id) => grown.observe($(id)));
let seen = { top: 0, height: 0 };
/** A reader leaves the end by scrolling up. The conversation also moves when it grows or shrinks. */
$("scroll").onscroll = () => {
  const { scrollTop: top, scrollHeight: height, clientHeight } = $("scroll");
  const left = height - top - clientHeight;
  if (top > seen.top && left < 80) isPinned = true;
  if (top < seen.top && left > 2 && height === seen.height) isPinned = false;
  seen = { top, height };
};
$("more").onclick = () => { showMore(); refresh(); };
connection.addEventListener("change", ({ detail }) => {
  const kept = "Messages are kept and sent when it is back.";
  const text = detail ? `${detail} ${kept}` : `The gateway does not answer. ${kept} (Is it running? \`talaria serve\`)`;
  show($("line"), detail === null ? "" : spoken(text));
  document.body.toggleAttribute("data-away", detail !== null);
});
addEventListener("storage", ({ key }) => {
  if (login.is(key)) { // another tab has logged in or out
    if (!login.secret()) showLogin(null);
    else if (!chat) begin();
    return;
  }
  if (!chat || !outbox.is(key)) return;
  chat.readOutbox();
  refresh();
});
addEventListener("hashchange", () => {
  const code = takeCode();
  if (code) begin(code);
  else if (chat) route();
});
document.addEventListener("visibilitychange", () => { if (chat && !document.hidden) refresh(); });
begin(takeCode());
poll();
