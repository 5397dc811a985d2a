/* DOM elements: finding them by id and making them with their children. */

export const $ = (id) => document.getElementById(id);

/** `children` are nodes, or strings, which become text. */
export function make(tag, more = {}, ...children) {
  const node = Object.assign(document.createElement(tag), more);
  node.append(...children);
  return node;
}
