/* DOM elements: finding them by id and making them with their children. The name of the program. */

export const $ = (id) => document.getElementById(id);

/** `children` are nodes, or strings, which become text. */
export function make(tag, more = {}, ...children) {
  const node = Object.assign(document.createElement(tag), more);
  node.append(...children);
  return node;
}

/** Replaces `talaria VERB` in backticks by what is typed on the gateway's machine. */
export function spoken(text) {
  return text.replaceAll("`talaria ", `\`${document.documentElement.dataset.program} `);
}
