// All runs as a table that sorts, filters and follows what they do.

import { compact, duration, empty, h, keep, link, number } from "./dom.js";
import { t, word } from "./words.js";

const CHUNK = 150; // rows that are made at once; more come with scrolling
const STATES = ["running", "queued", "finished", "interrupted", "failed", "dead", "unreadable"];
const COLUMNS = [
  { key: "run", of: (row) => row.name },
  { key: "experiment", of: (row) => row.experiment },
  { key: "method", of: (row) => row.method },
  { key: "dataset", of: (row) => row.dataset },
  { key: "seed", of: (row) => row.seed, right: true },
  { key: "state", of: (row) => STATES.indexOf(row.state) },
  { key: "progress", of: (row) => share(row) },
  { key: "loss", of: (row) => row.loss, right: true },
  { key: "score", of: (row) => row.score, right: true },
  { key: "gap", of: (row) => row.gap && row.gap.value, right: true, hint: "gap_hint" },
  { key: "speed", of: (row) => (row.state === "running" ? row.speed : null), right: true },
  { key: "eta", of: (row) => row.eta, right: true },
  { key: "device", of: (row) => row.device },
];

export function overview(view, board, state) {
  const chosen = new Set();
  const made = new Map();
  let order = [];
  let limit = CHUNK;
  let sorting = state.sort || "";

  const narrow = () => {
    state.q = field.value;
    limit = CHUNK;
    remember();
    draw();
  };
  const field = h("input", { type: "search", placeholder: t("filter"), "aria-label": t("filter"), value: state.q || "", oninput: narrow });
  const counts = h("div", { class: "chips", role: "group" });
  const total = h("span", { class: "muted", role: "status", id: "total" });
  const chooseAll = () => {
    for (const row of order.slice(0, limit)) if (all.checked) chosen.add(row.id); else chosen.delete(row.id);
    draw(true);
  };
  const all = h("input", { type: "checkbox", "aria-label": t("select_all"), onchange: chooseAll });
  const head = h("tr", {}, h("th", { class: "tick" }, all), COLUMNS.map(heading));
  const body = h("tbody");
  const table = h("table", { class: "runs" }, h("thead", {}, head), body);
  const more = h("p", { class: "muted more" });
  const tray = h("div", { class: "tray", hidden: true });
  const blank = h("div");
  const watcher = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting) && limit < order.length) { limit += CHUNK; draw(); }
  }, { rootMargin: "600px" });
  watcher.observe(more);

  function heading(column) {
    const button = h("button", { type: "button", title: t(column.hint || "sort", { what: t(column.key) }), onclick: () => {
      sorting = sorting === column.key ? `-${column.key}` : sorting === `-${column.key}` ? "" : column.key;
      state.sort = sorting;
      remember();
      draw();
    } }, t(column.key));
    return h("th", { class: column.right ? "right" : "", "data-key": column.key, scope: "col" }, button);
  }

  function remember() {
    keep("", { q: state.q, state: state.state, sort: state.sort });
  }

  function matching() {
    const words = (state.q || "").toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...board.runs.values()].filter((row) => !words.length || words.every((w) => text(row).includes(w)));
    return [found.filter((row) => !state.state || row.state === state.state), found];
  }

  function sorted(rows) {
    const column = COLUMNS.find((c) => c.key === sorting.replace("-", ""));
    if (!column) return rows.sort((a, b) => busy(b) - busy(a) || plain(a).localeCompare(plain(b), "en", { numeric: true }));
    const sign = sorting.startsWith("-") ? -1 : 1;
    return rows.sort((a, b) => {
      const [x, y] = [column.of(a), column.of(b)];
      if (x === y || (missing(x) && missing(y))) return 0;
      if (missing(x) || missing(y)) return missing(x) ? 1 : -1; // what is not known stands last either way
      return sign * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
    });
  }

  function draw(afresh = false) {
    if (afresh) made.clear();
    const [rows, among] = matching();
    order = sorted(rows);
    drawCounts(among);
    total.textContent = order.length === board.runs.size ? t("runs", { n: order.length }) : t("some_runs", { n: order.length, all: board.runs.size });
    for (const cell of head.querySelectorAll("th[data-key]")) {
      const by = sorting.replace("-", "") === cell.dataset.key;
      cell.setAttribute("aria-sort", !by ? "none" : sorting.startsWith("-") ? "descending" : "ascending");
    }
    const lines = order.slice(0, limit).map(rowOf);
    if (lines.length !== body.childElementCount || lines.some((line, i) => body.children[i] !== line)) body.replaceChildren(...lines);
    more.textContent = order.length > limit ? t("narrow", { n: order.length - limit }) : "";
    table.hidden = !order.length;
    blank.replaceChildren(...(order.length ? [] : [nothing()]));
    for (const run of chosen) if (!board.runs.has(run)) chosen.delete(run);
    all.checked = order.length > 0 && order.slice(0, limit).every((row) => chosen.has(row.id));
    tray.hidden = !chosen.size;
    tray.replaceChildren(
      h("a", { class: "button primary", href: link("compare", { scope: `runs:${[...chosen].join(",")}` }) }, t("compare_n", { n: chosen.size })),
      h("button", { type: "button", onclick: () => { chosen.clear(); draw(true); } }, t("deselect")),
    );
  }

  function rowOf(row) {
    const known = made.get(row.id);
    if (known && known.row === row) return known.line;
    const line = known ? known.line : makeRow(row, chosen.has(row.id), (on) => { if (on) chosen.add(row.id); else chosen.delete(row.id); draw(); });
    fill(line, row);
    made.set(row.id, { row, line });
    return line;
  }

  function drawCounts(among) {
    const count = (name) => among.filter((row) => row.state === name).length;
    const choose = (name) => {
      state.state = state.state === name ? "" : name;
      limit = CHUNK;
      remember();
      draw();
    };
    const chip = (name) => h("button", { type: "button", class: `chip ${name}`, "aria-pressed": String(state.state === name), onclick: () => choose(name) },
      h("i", { class: "dot" }), ` ${count(name)} ${word(name)}`);
    counts.replaceChildren(...STATES.filter((name) => count(name) || state.state === name).map(chip));
  }

  function nothing() {
    if (!board.runs.size) return empty(t("none"), t("none_where", { roots: board.roots.join(", ") }), t("none_do"));
    const clear = () => {
      field.value = state.state = "";
      narrow();
    };
    return h("div", { class: "empty" }, h("h2", {}, t("none_match")), h("button", { type: "button", onclick: clear }, t("clear")));
  }

  view.replaceChildren(h("div", { class: "bar" }, field, counts, total), table, blank, more, tray);
  draw();
  return { update: () => draw(), close: () => watcher.disconnect() };
}

export function pill(row) {
  return h("span", { class: `pill ${row.state}`, title: row.error || "" }, h("i", { class: "dot" }), word(row.state));
}

export function progress(row) {
  const done = share(row);
  const whole = row.max_steps && row.step !== row.max_steps ? ` ${t("of")} ${compact(row.max_steps)}` : "";
  const label = `${row.step < 100000 ? number(row.step, 0) : compact(row.step)}${whole}`;
  return h("div", { class: `meter ${row.state}`, role: "progressbar", "aria-valuenow": Math.round(100 * (done || 0)), "aria-valuemin": 0, "aria-valuemax": 100, title: label },
    h("span", { class: "fill", style: { width: `${100 * (done || 0)}%` } }), h("span", { class: "label" }, label));
}

export function score(row) {
  if (row.score === null || row.score === undefined) return "–";
  return row.metric === "accuracy" ? `${number(100 * row.score, 2)} %` : number(row.score, row.score < 10 ? 3 : row.score < 1000 ? 2 : 0);
}

// A row is made once and filled anew: whoever has the focus in it, or is about to click, keeps it.
function makeRow(row, checked, choose) {
  const tick = h("input", { type: "checkbox", checked, "aria-label": t("select", { run: row.name }), onchange: () => choose(tick.checked) });
  const cells = COLUMNS.map((column) => h("td", { "data-label": t(column.key) }, column.key === "run" ? h("a", { href: link(`run/${row.id}`) }, row.name) : ""));
  return h("tr", {}, h("td", { class: "tick" }, tick), cells);
}

function fill(line, row) {
  const cells = {
    experiment: row.experiment, method: row.method, dataset: row.dataset, seed: row.seed, state: pill(row),
    progress: row.state === "unreadable" ? h("span", { class: "error", title: row.error }, row.error || "") : progress(row),
    loss: number(row.loss), score: score(row), gap: gap(row),
    speed: row.state === "running" ? compact(row.speed) : "–", eta: duration(row.eta), device: row.device || "–",
  };
  line.className = row.state;
  COLUMNS.forEach(({ key, right }, i) => {
    const cell = line.cells[i + 1];
    const content = key === "run" ? row.name : cells[key] ?? "";
    cell.className = [key, right ? "right" : "", content === "–" ? "unknown" : ""].join(" ");
    if (typeof content === "string") cell.title = content.length > 18 ? content : "";
    if (key !== "run") cell.replaceChildren(content);
  });
}

function gap(row) {
  if (!row.gap) return "–";
  const value = `${row.gap.value >= 0 ? "+" : "−"}${number(Math.abs(row.gap.value), 1)}${row.gap.points ? " pt" : " %"}`;
  return h("span", { class: row.gap.worse ? "worse" : "better" }, value);
}

const share = (row) => (row.max_steps ? Math.min(1, row.step / row.max_steps) : null);
const missing = (value) => value === null || value === undefined;
const busy = (row) => (row.state === "running" ? 1 : 0);
const plain = (row) => `${row.experiment}/${row.name}`;
const text = (row) => [row.name, row.experiment, row.method, row.dataset, row.model, row.device, row.state, word(row.state), `seed=${row.seed}`].join(" ").toLowerCase();
