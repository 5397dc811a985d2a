/* Light, dark, or as the system has it. */

import { $ } from "./elements.js";
import { preferences } from "./storage.js";

const THEMES = ["auto", "light", "dark"];
const NAMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };

function use(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = NAMES[theme];
}

$("theme").onclick = () => {
  const next = THEMES[(THEMES.indexOf(preferences.theme()) + 1) % THEMES.length];
  preferences.keepTheme(next);
  use(next);
};
use(preferences.theme());
