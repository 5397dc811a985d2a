/* The delegates of a call, a line for each. Loaded with the first one. */

import { call } from "./api.js";
import { useSeconds } from "./blocks.js";
import { openInspector } from "./elements.js";
import { html, useState } from "./preact.js";
import { dollars, duration, plain, shorten } from "./texts.js";

const STATES = { accepted: "waiting to start", running: "running", waiting: "waiting", done: "done", failed: "failed", cancelled: "stopped" };
const order = new Intl.Collator("en", { numeric: true });

export function Delegates({ rows, isLive }) {
  const sorted = Object.values(rows).sort((one, other) => order.compare(one.delegate_id, other.delegate_id));
  return html`<ul class="delegates">${sorted.map((row) => html`<${Delegate} key=${row.delegate_id} row=${row} isLive=${isLive} />`)}</ul>`;
}

/** Opens to show what the delegate did last. */
function Delegate({ row, isLive }) {
  const isOver = ["done", "failed", "cancelled"].includes(row.state);
  const passed = useSeconds(isOver || !isLive ? 0 : row.began);
  const [said, say] = useState("");
  const depth = row.delegate_id.split(".").length - 2;
  const facts = [STATES[row.state] ?? row.state, duration(isOver ? row.seconds : passed)];
  if (Number(row.cost_usd) > 0) facts.push(dollars(row.cost_usd));
  const stop = () => call("POST", `/api/turns/${row.turn_id}/cancel`).then(() => say("Stopped"), (error) => say(error.message));
  return html`<li style=${{ marginInlineStart: `${depth}rem` }}><details class="tool delegate" data-outcome=${row.state === "done" ? "ok" : row.state === "failed" ? "error" : undefined}>
    <summary><b>${plain(row.title)}</b> <code class="brief">${shorten(row.line)}</code> <span class="outcome">${facts.join(" · ")}</span></summary>
    ${row.lines.length > 0 && html`<pre class="result" tabindex="0" aria-label="Last lines">${plain(row.lines.join("\n"))}</pre>`}
    ${row.turn_id && html`<p class="row"><button type="button" class="plain" onClick=${() => openInspector(row.turn_id)}>Details</button>
      ${!isOver && isLive && html`<button type="button" class="plain" onClick=${stop}>Stop</button>`} <span role="status">${said}</span></p>`}
  </details></li>`;
}
