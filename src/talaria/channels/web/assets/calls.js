/* The page that shows /openapi.json: the calls with their parameters, bodies and answers, and the types. */

import { BASE } from "./api.js";
import { $, copier, make } from "./elements.js";
import { login } from "./storage.js";

const TYPES = "#/components/schemas/";

/** Returns the nodes for a text, in which `backticks` mark code. */
function words(text) {
  return (text ?? "").split(/`([^`]*)`/).map((part, n) => (n % 2 ? make("code", {}, part) : part));
}

/** Returns the nodes that name the type of a schema; a type of its own is a link to its description. */
function kind(schema) {
  if (schema.$ref) {
    const name = schema.$ref.replace(TYPES, "");
    return [make("a", { href: `#type-${name}` }, name)];
  }
  if (schema.const !== undefined) return [make("code", {}, JSON.stringify(schema.const))];
  if (schema.enum) return joined(schema.enum.map((value) => [make("code", {}, JSON.stringify(value))]), " or ");
  const any = schema.anyOf ?? schema.oneOf;
  if (any) return joined(any.map(kind), " or ");
  if (schema.type === "array") return ["list of ", ...kind(schema.items ?? {})];
  if (schema.type === "object" && typeof schema.additionalProperties === "object") {
    return ["object of ", ...kind(schema.additionalProperties)];
  }
  return [schema.type ?? "anything"];
}

function joined(lists, between) {
  return lists.flatMap((nodes, n) => (n ? [between, ...nodes] : nodes));
}

/** Returns the bounds and the default of a schema as text. */
function bounds(schema) {
  const parts = [];
  if (schema.minimum !== undefined) parts.push(`at least ${schema.minimum}`);
  if (schema.maximum !== undefined) parts.push(`at most ${schema.maximum}`);
  if (schema.maxLength !== undefined) parts.push(`at most ${schema.maxLength} characters`);
  if (schema.default !== undefined && schema.default !== null) parts.push(`default ${JSON.stringify(schema.default)}`);
  return parts.length ? `, ${parts.join(", ")}` : "";
}

function table(rows) {
  return make("table", {}, make("tbody", {}, ...rows.map(([name, ...rest]) => make("tr", {}, make("td", {}, name), make("td", {}, ...rest)))));
}

/** Returns rows for the members of an object. */
function members(schema) {
  const required = new Set(schema.required ?? []);
  return Object.entries(schema.properties ?? {}).map(([name, member]) => [
    make("code", {}, name), ...kind(member), bounds(member), required.has(name) ? ", required" : "",
  ]);
}

/** Returns what a shell would run. The token is in a variable, so that no copy of it is on the page. */
function example(method, path, call) {
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const lines = [`curl ${quote(location.origin + path)}`];
  if (method !== "get") lines[0] += ` -X ${method.toUpperCase()}`;
  if (call.security.length) lines.push('-H "Authorization: Bearer $TOKEN"');
  const content = Object.entries(call.requestBody?.content ?? {})[0];
  if (content) {
    const [media, { schema, example: given }] = content;
    lines.push(media === "application/json" ? `-d ${quote(JSON.stringify(given ?? sample(schema)))}` : "--data-binary @FILE");
  }
  if (call.responses["200"]?.content?.["text/event-stream"] && !content) lines[0] = lines[0].replace("curl", "curl -N");
  return lines.join(" \\\n  ");
}

let types = {};

/** Returns a small value that fits a schema: its required members only. */
function sample(schema) {
  if (schema.$ref) return sample(types[schema.$ref.replace(TYPES, "")]);
  if (schema.enum) return schema.enum[0];
  if (schema.anyOf) return sample(schema.anyOf[0]);
  if (schema.type === "object") {
    return Object.fromEntries((schema.required ?? []).map((name) => [name, sample(schema.properties[name])]));
  }
  return { array: [], integer: 1, number: 1, boolean: true, string: "…" }[schema.type] ?? null;
}

function parts(method, path, call) {
  const nodes = [];
  const add = (title, ...more) => nodes.push(make("h3", {}, title), ...more);
  if (call.description) nodes.push(make("p", {}, ...words(call.description)));
  if (call.parameters.length) {
    add("Parameters", table(call.parameters.map((field) => [
      make("code", {}, field.name), `${field.in}, `, ...kind(field.schema), bounds(field.schema),
      field.required ? ", required. " : ". ", ...words(field.description),
    ])));
  }
  for (const [media, { schema }] of Object.entries(call.requestBody?.content ?? {})) {
    const own = types[(schema.$ref ?? "").replace(TYPES, "")];
    add("Body", make("p", {}, make("code", {}, media), " ", ...kind(schema)), ...(own ? [table(members(own))] : []));
  }
  add("Answers", table(Object.entries(call.responses).map(([status, answer]) => [
    status, ...words(answer.description), " ", ...content(answer),
  ])));
  for (const answer of Object.values(call.responses)) {
    const events = answer.content?.["text/event-stream"]?.["x-events"];
    if (events) add("Events", table(Object.entries(events).map(([name, schema]) => [make("code", {}, name || "(no name)"), ...kind(schema)])));
  }
  const code = make("code", {}, example(method, path, call));
  add("Example", make("pre", {}, code), copier(code));
  return nodes;
}

function content(answer) {
  return joined(Object.entries(answer.content ?? {}).map(([media, { schema }]) => (
    media === "application/json" ? kind(schema) : [make("code", {}, media)]
  )), " or ");
}

/** Returns the call as an element. Its inside is made when it is opened. */
function show(method, path, call) {
  const roles = call.security.length ? call["x-roles"].join(", ") : "no token";
  const node = make("details", {}, make("summary", {},
    make("code", { className: "method" }, method.toUpperCase()), make("code", {}, path),
    make("span", {}, ...words(call.summary)), make("small", {}, roles)));
  node.dataset.words = `${method} ${path} ${call.summary}`.toLowerCase();
  node.addEventListener("toggle", () => {
    if (node.open && node.childElementCount === 1) node.append(make("div", { className: "inside" }, ...parts(method, path, call)));
  });
  return node;
}

function showAll(description) {
  types = description.components.schemas;
  $("about").replaceChildren(`Talaria ${description.info.version}. `, ...words(description.info.description));
  const groups = new Map();
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, call] of Object.entries(methods)) {
      const group = groups.get(call.tags[0]) ?? groups.set(call.tags[0], []).get(call.tags[0]);
      group.push(show(method, path, call));
    }
  }
  const named = Object.entries(types).map(([name, schema]) => make("div", { className: "named", id: `type-${name}` },
    make("strong", {}, name), make("p", {}, ...words(schema.description)),
    ...(schema.properties ? [table(members(schema))] : [make("p", {}, ...kind(schema))])));
  $("calls").replaceChildren(
    ...[...groups].map(([tag, nodes]) => make("section", {}, make("h2", {}, tag), ...nodes)),
    make("section", { id: "types" }, make("h2", {}, "Types"), ...named));
  $("filter").hidden = false;
  if (location.hash) location.replace(location.hash);
}

$("filter").addEventListener("input", () => {
  const wanted = $("filter").value.trim().toLowerCase();
  for (const node of document.querySelectorAll("details")) node.hidden = !node.dataset.words.includes(wanted);
  for (const section of document.querySelectorAll("#calls > section")) {
    section.hidden = wanted !== "" && !section.querySelector("details:not([hidden])");
  }
});

async function load(token) {
  const headers = token ? { Authorization: `Bearer ${token}` } : { "X-Talaria-Login": login.secret() };
  const answer = await fetch(`${BASE}/openapi.json`, { headers, cache: "no-store" });
  const body = await answer.json();
  if (answer.ok) {
    $("token-form").hidden = true;
    $("problem").textContent = "";
    showAll(body);
  } else {
    $("token-form").hidden = answer.status !== 401;
    if (token || answer.status !== 401) $("problem").textContent = `${body.error.message} ${body.error.hint}`;
  }
}

function start(token) {
  load(token).catch(() => { $("problem").textContent = "The gateway does not answer. Load this page again when it runs."; });
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  start($("token").value.trim());
});
start("");
