/* Formulas as MathML nodes. Temml reads the TeX; of its tree only known elements and attributes become nodes. */

import { treeOf } from "./temml.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const ELEMENTS = new Set("math menclose merror mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover none semantics".split(" "));
const ATTRIBUTES = new Set("accent accentunder columnalign columnspacing depth dir display displaystyle fence form height largeop linethickness lspace mathvariant maxsize minsize movablelimits notation rowspacing rspace scriptlevel separator stretchy symmetric voffset width".split(" "));
const LIMITS = { trust: false, throwOnError: true, strict: false, maxExpand: 200, maxSize: [20, 20] };
const MOST_NODES = 2_000;

/** Replaces the source of a formula in `node`, with its delimiters, by the formula. One that cannot be read stays as it is. */
export function typeset(node) {
  const source = node.textContent;
  const [, tex] = /^(?:\$\$?|\\[([])([^]*?)(?:\$\$?|\\[)\]])$/.exec(source) ?? [];
  if (!tex) return;
  try {
    let left = MOST_NODES;
    const displayMode = source.startsWith("$$") || source.startsWith("\\[");
    const build = (part) => {
      if ((left -= 1) < 0) throw new RangeError("The formula is too large.");
      if (typeof part.text === "string" && !part.children) return [document.createTextNode(part.text)];
      const children = (part.children ?? []).flatMap(build);
      if (!part.type) return children;
      if (!ELEMENTS.has(part.type)) throw new TypeError(`${part.type} is not an element of formulas.`);
      const made = document.createElementNS(MATHML, part.type);
      for (const [name, value] of Object.entries(part.attributes ?? {})) if (ATTRIBUTES.has(name)) made.setAttribute(name, value);
      made.append(...children);
      return [made];
    };
    const made = build(treeOf(tex, { ...LIMITS, displayMode }));
    node.replaceChildren(...made);
    node.classList.add("typeset");
    node.title = source;
  } catch { /* it is shown as it was written */ }
}
