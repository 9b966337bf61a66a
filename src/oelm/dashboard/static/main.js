// Which view is shown, what changes by itself, and the tools at the top.

import { address, ask, empty, h, link } from "./dom.js";
import { language, nextLanguage, t } from "./words.js";
import { overview } from "./overview.js";
import { compare } from "./compare.js";
import { run } from "./run.js";
import { claims } from "./claims.js";

const EVERY = 1000; // milliseconds between two looks
const VIEWS = { "": overview, compare, run, claims };
const board = { runs: new Map(), version: "", results: -1, roots: [] };
const view = document.getElementById("view");
let shown = { update() {}, redraw() {}, close() {} };
let lastView = null;

function show() {
  shown.close();
  const { path, state } = address();
  const make = VIEWS[path[0]] || overview;
  view.replaceChildren(h("p", { class: "muted" }, t("loading")));
  for (const item of document.querySelectorAll("#nav a")) {
    if (item.dataset.view === path[0]) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  try {
    shown = { update() {}, redraw() {}, close() {}, ...make(view, board, state, path.slice(1)) };
  } catch (error) {
    view.replaceChildren(empty(t("failed", { why: error.message })));
  }
  if (lastView !== null && lastView !== path[0]) view.focus({ preventScroll: true });
  if (lastView !== path.join("/")) window.scrollTo(0, 0);
  lastView = path[0];
  document.title = ["oelm", ...path.filter(Boolean)].join(" · ");
}

function dress() {
  document.documentElement.lang = language() === "zh" ? "zh-CN" : "en";
  const views = { "": "overview", compare: "compare", claims: "claims" };
  document.getElementById("nav").replaceChildren(
    ...Object.entries(views).map(([path, name]) => h("a", { href: link(path), "data-view": path }, t(name))),
  );
  document.getElementById("skip").textContent = t("skip");
  document.getElementById("lang").textContent = t("language");
  const theme = localStorage.getItem("theme") || "auto";
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
  button.title = t(`theme_${theme}`);
  button.setAttribute("aria-label", button.title);
}

async function look() {
  const banner = document.getElementById("banner");
  const live = document.getElementById("live");
  try {
    const found = await ask("/api/runs", { since: board.version });
    if (found.whole) board.runs.clear();
    for (const row of found.rows) board.runs.set(row.id, row);
    for (const gone of found.gone) board.runs.delete(gone);
    const results = found.results !== board.results;
    const changed = found.whole || found.rows.length > 0 || found.gone.length > 0;
    Object.assign(board, { version: found.version, results: found.results, roots: found.roots });
    banner.hidden = true;
    live.textContent = t("live");
    live.className = "on";
    if (changed || results) shown.update({ results, rows: new Set(found.rows.map((row) => row.id)) });
  } catch (error) {
    banner.textContent = error.status === 401 ? t("no_token") : error.unreachable ? t("lost") : t("failed", { why: error.message });
    banner.hidden = false;
    live.textContent = t("late");
    live.className = "off";
  }
}

async function watch() {
  if (!document.hidden) await look();
  setTimeout(watch, EVERY);
}

document.getElementById("lang").addEventListener("click", () => {
  nextLanguage();
  dress();
  show();
  look();
});
document.getElementById("theme").addEventListener("click", () => {
  const next = { auto: "light", light: "dark", dark: "auto" }[localStorage.getItem("theme") || "auto"];
  localStorage.setItem("theme", next);
  dress();
  show();
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  view.focus();
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown.redraw());
window.addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => document.hidden || look());
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey) return;
  const field = view.querySelector("input[type=search]");
  if (field) {
    event.preventDefault();
    field.focus();
  }
});

dress();
look().finally(() => {
  show();
  setTimeout(watch, EVERY);
});
