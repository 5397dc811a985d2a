/* The model that answers in the open chat: a badge if it is built in, and the offer of the larger built-in one. */

import { call } from "./api.js";
import { $ } from "./elements.js";
import { megabytes, wait } from "./texts.js";

/** What keeps the default model from answering, in Markdown; empty if nothing is known to. */
export function modelProblem({ model }) {
  if (!model.default) return "No model is set up, so nothing can answer. Run `talaria setup` on the gateway's machine.";
  const [provider] = model.default.split("/", 1);
  const key = model.missing_keys[provider];
  return key ? `${model.default} cannot answer: its key is missing. Set \`${key}\`, or run \`talaria setup\`.` : "";
}

let before; // the state of the larger model when it was drawn last

/** `model` is that of the open chat, or null for a new chat, which gets the default. */
export function drawModel({ model: { default: usual }, built_in_model: { weights, larger } }, model) {
  const name = /^local\/(.*)/.exec(model ?? usual)?.[1];
  const isTiny = Boolean(name) && name !== larger?.name;
  const isComing = isUnderway(weights) && weights.model === name;
  const progress = isComing && `${weights.stage} ${megabytes(weights.done)}/${megabytes(weights.total)} MB`;
  $("badge").hidden = !name;
  $("badge").textContent = isTiny ? `tiny model: ${progress || "talks only, no tools"}` : `small model: ${progress || "makes mistakes"}`;
  const isOffered = isTiny && usual.startsWith("local/") && ["absent", "fetching", "ready"].includes(larger?.state);
  $("offer").hidden = !isOffered;
  if (isOffered) drawOffer(larger, usual === `local/${larger.name}`);
  if (before === "fetching" && larger.state === "ready") $("said").textContent = "The larger model is here.";
  before = larger?.state;
}

/** `isUsual`: new chats get the larger model. They do not if the configuration names the tiny one. */
function drawOffer({ state, size, memory, done, seconds_left: left, why }, isUsual) {
  const gigabytes = (bytes) => (bytes / 1e9).toFixed(1).replace(".0", "");
  const time = left === null ? "" : `, ${wait(left)}`;
  $("offer-text").textContent = {
    absent: why || "The tiny model only talks: no tools.",
    fetching: `Fetching the larger model: ${megabytes(done)} of ${megabytes(size)} MB${time}`,
    ready: isUsual ? "The larger model is here. New chats use it." : "The larger model is here.",
  }[state];
  const use = `Use the larger model (${gigabytes(size)} GB download, ${gigabytes(memory)} GB of memory)`;
  $("offer-take").textContent = state !== "ready" ? use : isUsual ? "Begin a new chat" : "Use it in this chat";
  $("offer-take").hidden = state === "fetching";
  $("offer-progress").hidden = state !== "fetching";
  $("offer-progress").max = size;
  $("offer-progress").value = done;
}

/** Lets the gateway download the larger model; the status then tells how far it is. */
export function fetchLarger({ built_in_model: { larger } }) {
  return call("POST", `/api/models/${larger.name}/fetch`);
}

/** Whether a built-in model is being downloaded, so that the status changes often. */
export function isDownloading(status) {
  return isUnderway(status?.built_in_model.weights) || status?.built_in_model.larger?.state === "fetching";
}

function isUnderway(weights) {
  return ["waiting", "fetching", "verifying"].includes(weights?.stage);
}
