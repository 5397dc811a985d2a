/* Colours for code: comments, texts, numbers and words of the language, as elements around text nodes. */

const MOST = 100_000; // characters; longer code stays plain
const C = "break case catch class const continue default do else enum extends final finally for if implements import in instanceof interface let new null private protected public return static super switch this throw true false try typeof var void while with yield async await function export from of package int long float double bool boolean char byte short string struct union unsigned signed template typename namespace using virtual override auto inline delete nullptr sizeof go func type map chan defer range select fallthrough nil fn impl trait pub mut match mod use crate self Self where loop move ref as dyn unsafe echo foreach elseif end def val object given sealed record";
const LANGUAGES = [
  { names: "js jsx mjs ts tsx javascript typescript java c h cpp c++ cc hpp cs csharp go golang rust rs php swift kotlin kt scala dart", line: "//", words: C },
  { names: "py python", line: "#", words: "and as assert async await break class continue def del elif else except False finally for from global if import in is lambda match case None nonlocal not or pass raise return True try while with yield self" },
  { names: "rb ruby", line: "#", words: "alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo rescue return self super then true unless until when while yield require" },
  { names: "sh bash zsh shell console dockerfile makefile make", line: "#", words: "if then else elif fi for while until do done case esac in function return exit export local echo cd set unset source alias FROM RUN COPY CMD ENTRYPOINT ENV WORKDIR EXPOSE ARG USER" },
  { names: "sql", line: "--", any: true, words: "select from where and or not in is null as on join left right inner outer full cross group by order having limit offset insert into values update set delete create table index view drop alter add column primary key foreign references unique default check constraint union all distinct case when then else end exists between like with returning begin commit rollback desc asc" },
  { names: "yaml yml toml ini conf", line: "#", words: "true false null yes no on off" },
  { names: "json jsonc", line: "//", words: "true false null" },
  { names: "css scss less", line: "", words: "" },
  { names: "lua", line: "--", words: "and break do else elseif end false for function goto if in local nil not or repeat return then true until while" },
];

const known = new Map(LANGUAGES.flatMap((language) => language.names.split(" ").map((name) => [name, { ...language, set: new Set(language.words.split(" ")) }])));

/** Returns [kind, text] pieces that together are the code, or null for an unknown language. */
export function pieces(code, name) {
  const language = known.get(name.toLowerCase());
  if (!language || code.length > MOST) return null;
  const comment = language.line ? `${language.line === "--" ? "--" : language.line === "#" ? "(?<![\\w$\"'&{])#" : "(?<!:)//"}[^\\n]*` : "(?!)";
  const block = ["//", ""].includes(language.line) ? "/\\*[^]*?(?:\\*/|$)" : "(?!)";
  const triple = language.names.includes("python") ? `"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|` : "";
  const token = new RegExp(`(?<comment>${comment}|${block})|(?<text>${triple}"(?:[^"\\\\\\n]|\\\\.)*"?|'(?:[^'\\\\\\n]|\\\\.)*'|\`(?:[^\`\\\\]|\\\\[^])*\`)|(?<number>\\b\\d[\\w.]*)|(?<word>[A-Za-z_$][\\w$-]*)`, "g");
  const made = [];
  let at = 0;
  const add = (kind, text) => {
    if (made.at(-1)?.[0] === kind) made.at(-1)[1] += text;
    else if (text) made.push([kind, text]);
  };
  for (const { 0: text, index, groups } of code.matchAll(token)) {
    add("", code.slice(at, index));
    const isWord = groups.word && language.set.has(language.any ? text.toLowerCase() : text);
    add(groups.word ? (isWord ? "word" : "") : Object.keys(groups).find((kind) => groups[kind] !== undefined), text);
    at = index + text.length;
  }
  add("", code.slice(at));
  return made;
}

/** Colours the text in `nodes`, which follow each other, by elements of the classes `code-…`. */
export function colour(nodes, name) {
  const found = pieces(nodes.map((node) => node.textContent).join(""), name);
  if (!found) return;
  let [kind, rest] = found.shift() ?? ["", ""];
  for (const node of nodes) {
    let left = node.textContent.length;
    const parts = [];
    while (left) {
      const text = rest.slice(0, left);
      parts.push(kind ? Object.assign(document.createElement("span"), { className: `code-${kind}`, textContent: text }) : text);
      left -= text.length;
      rest = rest.slice(text.length);
      if (!rest) [kind, rest] = found.shift() ?? ["", ""];
      if (!text) break;
    }
    node.replaceChildren(...parts);
  }
}
