/* Elements: found by their ids, and made with what is in them. */

export const $ = (id) => document.getElementById(id);

/** `children` are nodes, or strings that become text. */
export function make(tag, more = {}, ...children) {
  const node = Object.assign(document.createElement(tag), more);
  node.append(...children);
  return node;
}
