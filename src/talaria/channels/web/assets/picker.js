/* Choosing the model of the open chat. */

import { call } from "./api.js";
import { Problem } from "./blocks.js";
import { $ } from "./elements.js";
import { html, render, useState } from "./preact.js";

const EFFORTS = ["none", "low", "medium", "high"];

/** Shows the models that can answer, and how much they think. `say(command)` is called for what the person chooses. */
export async function pickModel(current, effort, say) {
  const send = (command) => { $("models").close(); say(command); };
  const take = (name) => send(`/model ${name}`);
  render(html`<label for="effort">Reasoning</label><select id="effort" value=${effort} onChange=${({ target }) => send(`/reasoning ${target.value}`)}>
    ${!effort && html`<option value="">as configured</option>`}${EFFORTS.map((each) => html`<option value=${each}>${each}</option>`)}</select>`, $("models-effort"));
  const draw = (more) => render(html`<${Models} current=${current} take=${take} ...${more} />`, $("models-list"));
  draw({ names: null });
  $("models").showModal();
  try {
    const { data } = await call("GET", "/v1/models");
    draw({ names: data.map(({ id }) => id).filter((id) => id.includes("/")) });
  } catch (error) {
    draw({ error });
  }
}

function Models({ names, error, current, take }) {
  const [wanted, want] = useState("");
  if (error) return html`<${Problem} error=${error} />`;
  if (!names) return html`<p class="quiet">Reading …</p>`;
  const found = names.filter((name) => name.toLowerCase().includes(wanted.toLowerCase()));
  const submit = (event) => { event.preventDefault(); if (found.length) take(found[0]); };
  return html`<form class="row" onSubmit=${submit}><input type="search" aria-label="Find a model" placeholder="Find a model" autocomplete="off" spellcheck="false" value=${wanted} onInput=${({ target }) => want(target.value)} /></form>
    <ul class="choices">${found.map((name) => html`<li key=${name}><button type="button" class="plain" aria-current=${name === current ? "true" : undefined} onClick=${() => take(name)}>${name}</button></li>`)}</ul>
    ${found.length === 0 && html`<p class="quiet">No model has this name.</p>`}`;
}

$("models-close").onclick = () => $("models").close();
