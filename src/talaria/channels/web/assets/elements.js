/* DOM elements: finding them by id and making them with their children. How commands are typed. The inspector, which is
   loaded when it is first opened. */

export const $ = (id) => document.getElementById(id);

/** `children` are nodes, or strings, which become text. */
export function make(tag, more = {}, ...children) {
  const node = Object.assign(document.createElement(tag), more);
  node.append(...children);
  return node;
}

/** A button that copies the text of a node. */
export function copier(node) {
  const copy = make("button", { type: "button", className: "plain", textContent: "Copy" });
  copy.onclick = async () => {
    try {
      await navigator.clipboard.writeText(node.textContent);
      copy.textContent = "Copied";
    } catch { // there is no clipboard without TLS: select the text, so that Ctrl-C copies it
      getSelection().selectAllChildren(node);
      copy.textContent = "Press Ctrl-C";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 2_000);
  };
  return copy;
}

/** Replaces `talaria VERB` in backticks by what is typed on the gateway's machine. */
export function spoken(text) {
  return text.replaceAll("`talaria ", `\`${document.documentElement.dataset.program} `);
}

let loaded = null;

/** Shows the story of a turn beside the chat. */
export async function openInspector(id) {
  loaded ??= await import("./inspector.js");
  await loaded.open(id);
}

/** Reads the open story again, for example when its turn has a new state. What is shown stays meanwhile. */
export const renewInspector = (id) => loaded?.renew(id);

export const closeInspector = () => loaded?.close();
