/* Setting up a model: a provider and its key, one call that tries a model, and the configuration that keeps it. */

import { attempt, call } from "./api.js";
import { Problem } from "./blocks.js";
import { $ } from "./elements.js";
import { html, render, useEffect, useState } from "./preact.js";

const TRY_MS = 40_000;

/** Opens the dialog. `done()` is called when a model has answered and is written to the configuration. */
export function setUp(done) {
  render(null, $("setup-body"));
  render(html`<${Setup} done=${done} />`, $("setup-body"));
  $("setup").showModal();
}

function Setup({ done }) {
  const [offers, setOffers] = useState(null);
  const [provider, setProvider] = useState("");
  const [key, setKey] = useState("");
  const [models, setModels] = useState(null);
  const [model, setModel] = useState("");
  const [said, say] = useState({});
  useEffect(() => { call("GET", "/api/models/offers").then(setOffers, (error) => say({ error })); }, []);
  const choose = (name) => { setProvider(name); setKey(""); setModels(null); say({}); }; // a key belongs to one provider
  const ask = async (body, take) => {
    say({ busy: true });
    try {
      take(await attempt("POST", "/api/models/choose", { body: JSON.stringify(body), ms: TRY_MS })); // once: a try costs money
    } catch (error) {
      say({ error });
    }
  };
  const list = (event) => {
    event.preventDefault();
    ask({ provider, key }, ({ models: found }) => { setModels(found); setModel(found[0] ?? ""); say({}); });
  };
  const use = (event) => {
    event.preventDefault();
    ask({ provider, key, model }, ({ text }) => { say({ text }); setKey(""); done(); });
  };
  if (said.text) return html`<p role="status">${said.text} New chats use it.</p>`;
  const found = offers?.found ?? [];
  return html`${found.length > 0 && html`<ul class="choices" inert=${said.busy}>${found.map((each) => html`<li><button type="button" class="plain" aria-current=${provider === (each.base_url || each.provider) ? "true" : undefined}
      onClick=${() => choose(each.base_url || each.provider)}>${each.provider} <small>${each.where}</small></button></li>`)}</ul>`}
    <form onSubmit=${list} inert=${said.busy}>
      <label for="setup-provider">Provider, or the address of a server</label>
      <input id="setup-provider" list="setup-known" autocomplete="off" spellcheck="false" required value=${provider} onInput=${({ target }) => choose(target.value)} />
      <datalist id="setup-known">${(offers?.known ?? []).map((name) => html`<option value=${name}></option>`)}</datalist>
      <label for="setup-key">Key</label>
      <input id="setup-key" type="password" autocomplete="off" value=${key} onInput=${({ target }) => { setKey(target.value); setModels(null); }} />
      <p class="quiet">Leave it empty if the server needs none, or if the gateway has the key in its environment.</p>
      ${!models && html`<div class="row"><button class="primary" disabled=${said.busy || !provider.trim()}>${said.busy ? "Asking …" : "Show models"}</button></div>`}
    </form>
    ${models && html`<form onSubmit=${use} inert=${said.busy}>
      <label for="setup-model">Model</label>
      ${models.length ? html`<select id="setup-model" value=${model} onChange=${({ target }) => setModel(target.value)}>${models.map((name) => html`<option>${name}</option>`)}</select>`
        : html`<input id="setup-model" autocomplete="off" spellcheck="false" required value=${model} onInput=${({ target }) => setModel(target.value)} />`}
      <p class="quiet">One small call tries it. The provider, the key and the model are written to config.toml on the gateway's machine.</p>
      <div class="row"><button class="primary" disabled=${said.busy || !model.trim()}>${said.busy ? "Trying …" : "Try it and use it"}</button></div>
    </form>`}
    <div role="alert">${said.error && html`<${Problem} error=${said.error} />`}</div>`;
}

$("setup-close").onclick = () => $("setup").close();
$("setup").addEventListener("close", () => render(null, $("setup-body"))); // the key stays nowhere
