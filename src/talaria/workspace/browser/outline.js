/* Runs in a world of its own inside each page: what is on the page as text, and where its elements are. The page's
   scripts cannot see or change it. It returns plain data and is bounded in time, elements and characters. */
(() => {
  if (globalThis.talaria) return;
  const MAX_NODES = 150_000, MAX_MS = 150, MAX_LINES = 1000, MAX_ALL = 3000, MAX_NAME = 90, MAX_TEXT = 600, MAX_LINKS = 256, MAX_OPTIONS = 20;
  const SECRET = /^(current-password|new-password|one-time-code|cc-.*)$/;
  const CODE = /\b(one[- ]?time|verification|security|login|access|confirmation|auth\w*)\b.{0,40}\b(code|pin|password|token)\b|\botp\b|\b2fa\b/i;
  const PAYMENT = /card.?(number|no)\b|\bcvc|\bcvv|\biban\b|security code/i;
  const PASSWORD = /pass.?(word|wd|phrase|code)|\bpwd\b|\b(otp|one.?time)\b|verification.?code/i;
  const TOKEN = /\b(?=[\w-]*\d)[A-Z0-9][A-Z0-9-]{3,11}\b/gi;
  const OTHER_INPUTS = /^(checkbox|radio|button|submit|reset|image|range|color|date|time|month|week|datetime-local|file|hidden)$/;
  // Fields and pictures replace properties of their form and of the page that have the same name.
  const childNodes = Object.getOwnPropertyDescriptor(Node.prototype, "childNodes").get;
  const body = () => Object.getOwnPropertyDescriptor(Document.prototype, "body").get.call(document) ?? document.documentElement;
  const attribute = (element, name) => Element.prototype.getAttribute.call(element, name);
  const passwords = new WeakSet(); // also those that are shown by now
  const numbers = new WeakMap(), elements = new Map();
  let last = 0;

  const numberOf = (element) => {
    if (!numbers.has(element)) { numbers.set(element, ++last); elements.set(last, new WeakRef(element)); }
    return numbers.get(element);
  };
  const find = (number) => {
    const element = elements.get(number)?.deref();
    return element?.isConnected ? element : null;
  };
  const clean = (text, most = MAX_NAME) => {
    if (typeof text !== "string") return "";
    const short = text.slice(0, 4 * most).replace(/\s+/g, " ").trim();
    return short.length > most ? `${short.slice(0, most).replace(/[\ud800-\udbff]$/, "")}…` : short;
  };
  /** Hides codes, if the text or a short passage around it is about one: a code often stands in a line of its own. */
  const hide = (text, node) => {
    if (text.search(TOKEN) < 0) return text;
    let about = text;
    for (let up = node, step = 0; up && up.tagName !== "BODY" && step < 4; up = up.parentElement, step += 1) {
      if (up.childElementCount > 8 || up.textContent.length > 400) break;
      about = up.textContent;
    }
    return CODE.test(about.replace(/\s+/g, " ")) ? text.replace(TOKEN, "••••") : text;
  };

  const INPUTS = { button: "button", submit: "button", reset: "button", image: "button", checkbox: "checkbox", radio: "radio",
    range: "slider", number: "spinbutton", search: "searchbox", file: "file field", color: "color field" };
  const TAGS = { BUTTON: "button", TEXTAREA: "textbox", SUMMARY: "button", OPTION: "option", DIALOG: "dialog", IMG: "image", NAV: "navigation",
    MAIN: "main", TABLE: "table", IFRAME: "frame", FRAME: "frame", H1: "heading", H2: "heading", H3: "heading", H4: "heading", H5: "heading", H6: "heading" };
  const CLICKABLE = new Set(["button", "link", "checkbox", "radio", "switch", "tab", "menuitem", "menuitemcheckbox", "menuitemradio", "option",
    "treeitem", "slider", "spinbutton", "textbox", "searchbox", "combobox", "listbox", "file field", "color field", "password field", "date field"]);

  const USABLE = "a[href],button,input,select,textarea,summary,[onclick],[tabindex],[role=option],[role=treeitem],[role=tab],[role^=menuitem],[role=radio]";

  const roleOf = (element) => {
    const given = attribute(element, "role")?.trim().split(/\s+/)[0];
    if (given && given !== "presentation" && given !== "none") return given;
    const tag = element.tagName;
    if (tag === "INPUT") {
      const type = element.type;
      if (type === "hidden") return "";
      if (type === "password") return "password field";
      if (/^(date|time|month|week|datetime-local)$/.test(type)) return "date field";
      return INPUTS[type] ?? "textbox";
    }
    if (tag === "A" || tag === "AREA") return element.hasAttribute("href") ? "link" : "";
    if (tag === "SELECT") return element.multiple || element.size > 1 ? "listbox" : "combobox";
    if (element.isContentEditable && !element.parentElement?.isContentEditable) return "textbox";
    return TAGS[tag] ?? "";
  };
  const isSecret = (element) => {
    if (element.tagName !== "INPUT") return false;
    if (element.type === "password") passwords.add(element);
    if (passwords.has(element)) return true;
    if (OTHER_INPUTS.test(element.type)) return false;
    const labels = [...element.labels ?? []].map((each) => each.textContent).join(" ");
    const words = `${element.name} ${element.id} ${element.placeholder} ${element.getAttribute("aria-label") ?? ""} ${labels}`.slice(0, 500);
    return SECRET.test(element.autocomplete) || PASSWORD.test(words) || PAYMENT.test(words) || isDigitOfCode(element);
  };
  /** Codes are often typed into a row of fields, each for one character. */
  const isDigitOfCode = (element) => element.maxLength === 1 && element.parentElement?.parentElement?.querySelectorAll("input[maxlength='1']").length >= 4;
  const textOf = (element, most) => clean(element.innerText ?? element.textContent, most);
  const nameOf = (element, role) => {
    const by = element.getAttribute("aria-labelledby");
    if (by) {
      const root = element.getRootNode();
      const names = by.split(/\s+/).map((id) => root.getElementById?.(id)?.textContent ?? "").join(" ");
      if (clean(names)) return clean(names);
    }
    const label = clean(element.getAttribute("aria-label"));
    if (label) return label;
    if (element.labels?.length) {
      const names = clean([...element.labels].map((each) => each.textContent).join(" "));
      if (names) return names;
    }
    const tag = element.tagName;
    if (tag === "INPUT" && /^(button|submit|reset)$/.test(element.type)) return clean(element.value) || element.type;
    if (tag === "INPUT" || tag === "TEXTAREA" || tag === "SELECT") return clean(element.placeholder || element.title || element.name);
    const alt = clean(element.getAttribute("alt") ?? "");
    if (alt) return alt;
    if (tag === "IFRAME" || role === "dialog" || role === "table" || role === "navigation" || role === "main") return clean(element.title);
    return textOf(element) || clean(element.title) || clean(element.querySelector("img[alt]")?.alt) || clean(element.querySelector("svg title")?.textContent);
  };
  const valueOf = (element, role) => {
    const tag = element.tagName;
    if (tag === "SELECT") return [...element.selectedOptions].map((each) => clean(each.label)).join(", ");
    if (role === "checkbox" || role === "radio" || role === "switch" || tag === "BUTTON") return "";
    if (role === "file field") return [...element.files ?? []].map((each) => each.name).join(", ");
    if (tag === "INPUT" || tag === "TEXTAREA") return element.value === "" ? "" : isSecret(element) ? "••••" : clean(element.value);
    if (element.isContentEditable) return textOf(element);
    return clean(element.getAttribute("aria-valuetext") ?? element.getAttribute("aria-valuenow") ?? "");
  };
  const statesOf = (element, role) => {
    const states = [];
    const has = (name) => element.getAttribute(`aria-${name}`);
    if (element.disabled || has("disabled") === "true") states.push("disabled");
    if (element.checked || has("checked") === "true") states.push("checked");
    if (element.required || has("required") === "true") states.push("required");
    if (element.readOnly) states.push("read-only");
    if (has("expanded") !== null) states.push(has("expanded") === "true" ? "expanded" : "collapsed");
    else if (element.tagName === "SUMMARY") states.push(element.parentElement?.open ? "expanded" : "collapsed");
    if (has("selected") === "true" || has("current") === "page") states.push(has("current") ? "current" : "selected");
    if (has("invalid") === "true" || (element.value && element.validity?.valid === false)) states.push("invalid");
    if (role === "heading") states.push(`level ${has("level") ?? element.tagName[1]}`);
    return states;
  };
  const isVisible = (element) => Element.prototype.checkVisibility.call(element, { visibilityProperty: true, opacityProperty: false });
  const isClickable = (element, role) => CLICKABLE.has(role) || element.hasAttribute("onclick") || (element.tabIndex >= 0 && element.hasAttribute("tabindex"));

  function* childrenOf(node) {
    if (node.tagName === "SLOT") { yield* node.assignedNodes({ flatten: true }); return; }
    if (node.tagName === "IFRAME" || node.tagName === "FRAME") {
      const inner = innerOf(node);
      if (inner?.body) yield inner.body;
      return;
    }
    yield* childNodes.call(node.shadowRoot?.nodeType === Node.DOCUMENT_FRAGMENT_NODE ? node.shadowRoot : node);
  }
  const innerOf = (frame) => { try { return frame.contentDocument; } catch { return null; } };

  const isFilled = (each) => (each.type === "file" ? each.files.length > 0 : isSecret(each) && each.value !== "");
  const inputsOf = (nodes) => [...nodes].filter((each) => each.tagName === "INPUT" && !/^(hidden|submit|button|reset|image)$/.test(each.type));
  /** What using an element may send: its form with a secret or a file, or the page, if such fields are filled in. Null if it only
      opens another page. Returns the host, the fields, and what the element is. */
  const guard = (element, filled = new Map()) => {
    const isField = /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName) && !/^(submit|button|image)$/.test(element.type);
    const link = element.tagName === "A" ? element : null;
    if (link && /^https?:$/.test(link.protocol) && !link.hasAttribute("onclick") && link.href.split("#")[0] !== location.href.split("#")[0]) return null;
    const form = element.form ?? element.closest("form");
    let fields;
    if (form) fields = inputsOf(Object.getOwnPropertyDescriptor(HTMLFormElement.prototype, "elements").get.call(form));
    else {
      const root = element.getRootNode();
      if (!filled.has(root)) filled.set(root, inputsOf(root.querySelectorAll("input")));
      fields = filled.get(root);
    }
    if (!fields.some((each) => isFilled(each) || (form && isField && isSecret(each)))) return null;
    const sending = fields.find(isFilled)?.form ?? form;
    const action = attribute(element, "formaction") ?? (sending ? attribute(sending, "action") : "") ?? "";
    let host = "";
    try { host = new URL(action, element.ownerDocument.baseURI).host; } catch { /* not an address: a script sends it */ }
    const text = fields.slice(0, 12).map((each) => `${nameOf(each, "")}: ${valueOf(each, roleOf(each)) || "(empty)"}`).join("; ");
    return [host || location.host, text, `${roleOf(element) || "element"} ${JSON.stringify(nameOf(element, roleOf(element)))}`];
  };
  /** The same for the element with this number, or that around it which takes clicks. */
  const guardOf = (number) => {
    const element = find(number);
    return element ? guard(element.closest(`${USABLE},[role]`) ?? element) : null;
  };

  /** All: texts too. `within`: the number of the element to begin with. `deep`: how many levels. */
  const outline = ({ all = false, within = 0, deep = 100 } = {}) => {
    const root = within ? find(within) : body();
    if (within && !root) return null;
    const began = performance.now(), lines = [], links = new Set(), guarded = {}, secret = [], filled = new Map();
    let visited = 0, cut = false;
    const put = (level, text) => { if (lines.length < (all ? MAX_ALL : MAX_LINES)) lines.push("  ".repeat(Math.min(level, 12)) + text); else cut = true; };
    const note = (element) => {
      const number = numberOf(element), found = guard(element, filled);
      if (found) guarded[number] = found;
      return number;
    };
    /** Writes an element. Returns the level of what is in it, and whether its name says that already; null if it is hidden. */
    const write = (node, level, inside) => {
      const tag = node.tagName;
      if (/^(SCRIPT|STYLE|NOSCRIPT|TEMPLATE|HEAD|META|LINK)$/.test(tag) || !isVisible(node)) {
        if (tag !== "SLOT" && getComputedStyle(node).display !== "contents") return null;
      }
      const role = roleOf(node);
      if (inside) return [level, true];
      if (!role) {
        if (!isClickable(node, "")) return [level, false];
        put(level, `clickable ${JSON.stringify(hide(textOf(node), node))} @${note(node)}`);
        return [level, !node.querySelector(USABLE)];
      }
      const clickable = isClickable(node, role), alert = role === "alert" || role === "status" || attribute(node, "aria-live") === "assertive";
      const named = role === "heading" || alert || (role === "image" && all) || role === "dialog" || role === "frame" || (role === "table" && all);
      if (!clickable && !named) return [level, false];
      let next = level;
      const name = alert ? textOf(node, MAX_TEXT) : nameOf(node, role);
      const value = clickable ? valueOf(node, role) : "";
      if (clickable || name || role === "dialog" || role === "frame") {
        const parts = [role];
        if (name) parts.push(JSON.stringify(hide(name, node)));
        if (clickable) parts.push(`@${note(node)}`);
        if (value) parts.push(`= ${JSON.stringify(hide(value, node))}`);
        const states = statesOf(node, role);
        if (states.length) parts.push(`(${states.join(", ")})`);
        if (role === "frame" && !innerOf(node)) parts.push(`of another site: ${clean(node.src)}, not shown`);
        put(level, parts.join(" "));
        next = level + 1;
        if (tag === "SELECT") {
          const labels = [...node.options].slice(0, MAX_OPTIONS).map((each) => clean(each.label));
          const more = node.options.length > MAX_OPTIONS ? ` … ${node.options.length} in all` : "";
          put(next, `options: ${labels.join(" | ")}${more}`);
        }
        if (role === "link" && /^https?:$/.test(node.protocol) && links.size < MAX_LINKS) links.add(node.href);
        if (isSecret(node)) secret.push(numberOf(node));
      }
      // What is said by the name is not said again.
      return [next, clickable ? !node.querySelector(USABLE) : role === "heading" || alert];
    };
    const stack = root ? [[root, 0, false]] : []; // depth first, without recursion: a page may be nested deeply
    while (stack.length) {
      const [node, level, isInside] = stack.pop();
      if (++visited > MAX_NODES || (visited % 256 === 0 && performance.now() - began > MAX_MS) || cut) { cut = true; break; }
      if (node.nodeType === Node.TEXT_NODE) {
        const words = all && !isInside ? clean(node.data, MAX_TEXT) : "";
        if (words) put(level, hide(words, node.parentElement));
        continue;
      }
      if (node.nodeType !== Node.ELEMENT_NODE && !(node instanceof Element)) continue;
      let step = [level, isInside];
      try { step = write(node, level, isInside); } catch { /* a form whose fields are named like what it has */ }
      if (!step || node.tagName === "SELECT" || step[0] - level > deep || level >= deep) continue;
      const below = [...childrenOf(node)];
      for (let at = below.length - 1; at >= 0; at -= 1) stack.push([below[at], ...step]);
    }
    return { title: clean(document.title), lines, links: [...links], guarded, secret, cut };
  };

  /** Where to click: the middle of the element in the window, after it was scrolled there. */
  const locate = (number) => {
    const element = find(number);
    if (!element) return null;
    element.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
    const rect = [...element.getClientRects()].find(({ width, height }) => width && height) ?? element.getBoundingClientRect();
    let x = rect.x + rect.width / 2, y = rect.y + rect.height / 2;
    const here = { x, y };
    const top = element.getRootNode().elementFromPoint?.(here.x, here.y) ?? element.ownerDocument.elementFromPoint(here.x, here.y);
    const isHit = !top || top === element || element.contains(top) || top.contains(element) || [...element.labels ?? []].some((each) => each.contains(top)) || element.shadowRoot?.contains(top);
    for (let view = element.ownerDocument.defaultView; view?.frameElement; view = view.parent) {
      const frame = view.frameElement.getBoundingClientRect();
      x += frame.x + view.frameElement.clientLeft;
      y += frame.y + view.frameElement.clientTop;
    }
    const covering = isHit ? "" : `${roleOf(top) || top.tagName.toLowerCase()} ${JSON.stringify(textOf(top))}`;
    return { x, y, covering, hidden: !rect.width || !rect.height, disabled: Boolean(element.disabled) };
  };

  /** Makes a field ready for typing. Returns why it cannot be typed into, or whether its value was set as a whole. */
  const prepare = (number, text, clear) => {
    const element = find(number);
    if (!element) return null;
    const role = roleOf(element);
    if (element.disabled || element.readOnly) return { problem: "The field is disabled or read-only." };
    const takesText = element.tagName === "TEXTAREA" || element.isContentEditable || (element.tagName === "INPUT" && !/^(button|checkbox|radio|switch|file field)$/.test(role));
    if (!takesText) return { problem: `This is a ${role || "part of the page"}, not a field.` };
    element.scrollIntoView({ block: "center", behavior: "instant" });
    element.focus();
    if (/date field|color field|slider/.test(role)) {
      Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(element, text);
      for (const name of ["input", "change"]) element.dispatchEvent(new Event(name, { bubbles: true }));
      return element.value === "" && text !== "" ? { problem: `The field takes no such value. Its type is ${element.type}: write dates as 2026-12-24 and times as 18:00.` } : { isSet: true };
    }
    if (clear && element.select) element.select();
    else if (clear) getSelection().selectAllChildren(element);
    else if (element.setSelectionRange) { try { element.setSelectionRange(element.value.length, element.value.length); } catch { /* a number field */ } }
    return { isSet: false };
  };

  const select = (number, wanted) => {
    const element = find(number);
    if (!element) return null;
    if (element.tagName !== "SELECT") return { problem: "This is not a list of options. Click it, and click the option that appears." };
    const options = [...element.options];
    const chosen = wanted.map((word) => options.find((each) => clean(each.label) === word || each.value === word) ?? options.find((each) => clean(each.label).toLowerCase().includes(word.toLowerCase())));
    if (chosen.includes(undefined)) return { problem: `There is no such option. The options are: ${options.slice(0, 50).map((each) => clean(each.label)).join(" | ")}` };
    for (const each of options) each.selected = chosen.includes(each);
    for (const name of ["input", "change"]) element.dispatchEvent(new Event(name, { bubbles: true }));
    return {};
  };

  const scroll = (number, direction) => {
    const element = number ? find(number) : document.scrollingElement;
    if (!element) return null;
    const place = () => [element.scrollLeft, element.scrollTop];
    const [left, top] = place();
    const step = 0.9 * (number ? element.clientHeight : innerHeight);
    const to = { up: -step, down: step, top: -1e9, bottom: 1e9 }[direction];
    element.scrollBy({ top: to, behavior: "instant" });
    return { moved: left !== element.scrollLeft || top !== element.scrollTop, top: Math.round(element.scrollTop), height: element.scrollHeight };
  };

  /** Elements whose text or name has the words, each with its number. */
  const search = (words) => {
    const wanted = words.toLowerCase(), found = [], began = performance.now();
    const stack = [body()];
    let visited = 0, cut = false;
    while (stack.length && found.length < 40) {
      const node = stack.pop();
      if (++visited > MAX_NODES || (visited % 256 === 0 && performance.now() - began > MAX_MS)) { cut = true; break; }
      if (!node) continue;
      if (node.nodeType === Node.TEXT_NODE) {
        const parent = node.parentElement;
        if (parent && node.data.toLowerCase().includes(wanted) && !/^(SCRIPT|STYLE|NOSCRIPT)$/.test(parent.tagName) && isVisible(parent)) {
          const near = parent.closest("a[href],button,label,[role],summary") ?? parent;
          const target = near.control ?? near, role = roleOf(target) || target.tagName.toLowerCase();
          found.push(`${role} @${numberOf(target)}: ${hide(clean(parent.innerText ?? node.data, 200), parent)}`);
        }
        continue;
      }
      if (node.nodeType !== Node.ELEMENT_NODE) continue;
      const label = ["aria-label", "placeholder", "title", "alt"].map((name) => attribute(node, name) ?? "").join(" ");
      if (label.toLowerCase().includes(wanted) && isVisible(node)) found.push(`${roleOf(node) || node.tagName.toLowerCase()} @${numberOf(node)}: ${clean(label)}`);
      const below = [...childrenOf(node)];
      for (let at = below.length - 1; at >= 0; at -= 1) stack.push(below[at]);
    }
    return { lines: [...new Set(found)], cut };
  };

  const hasText = (words) => {
    const wanted = words.toLowerCase();
    const has = (root) => {
      if ((root.body ?? root)?.innerText?.toLowerCase().includes(wanted)) return true;
      return [...root.querySelectorAll("iframe")].some((frame) => { const inner = innerOf(frame); return inner && has(inner); });
    };
    return has(document) || search(words).lines.length > 0;
  };

  /** Waits until the page has (or has no longer) these words. Without words: until it is quiet. */
  const wait = (words, isGone, ms) => new Promise((done) => {
    const end = performance.now() + ms;
    if (words) {
      const look = () => {
        if (hasText(words) !== isGone) done(true);
        else if (performance.now() > end) done(false);
        else setTimeout(look, 100);
      };
      look();
      return;
    }
    let timer;
    const quiet = () => { observer.disconnect(); clearTimeout(timer); clearTimeout(limit); done(true); };
    const observer = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(quiet, 120); });
    const limit = setTimeout(quiet, ms);
    observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    timer = setTimeout(quiet, 120);
  });

  const masked = new Map(); // fields, with the styles that they had
  /** Shows dots in secret fields while a picture is taken. Returns whether there are any. */
  const mask = (isOn) => {
    for (const [field, style] of masked) field.style.webkitTextSecurity = style;
    masked.clear();
    const stack = isOn ? [body()] : [];
    for (let visited = 0; stack.length && visited < MAX_NODES; visited += 1) {
      const node = stack.pop();
      if (node?.nodeType === Node.ELEMENT_NODE) stack.push(...childrenOf(node));
      if (node?.tagName !== "INPUT" || !isSecret(node)) continue;
      masked.set(node, node.style.webkitTextSecurity);
      node.style.webkitTextSecurity = "disc";
    }
    return masked.size > 0;
  };

  /** What is lost when the tab is closed. */
  const state = (most) => {
    const stored = (storage) => { try { const all = JSON.stringify({ ...storage }); return all.length > most ? null : JSON.parse(all); } catch { return null; } };
    return { url: location.href, x: scrollX, y: scrollY, session: stored(sessionStorage), local: stored(localStorage) };
  };

  globalThis.talaria = { outline, guard: guardOf, mask, locate, prepare, select, scroll, search, wait, state, element: find, number: numberOf };
})();
