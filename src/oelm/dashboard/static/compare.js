// Runs against each other: curves, the report's verdicts, and any fact against any other.

import { ask, empty, h, keep } from "./dom.js";
import { axisName, css, downloads, draw, faded, looks, plain } from "./charts.js";
import { language, metricName, t } from "./words.js";

const MOST_LINES = 12; // that are shown unasked
const FEW = 8; // notes that are shown unasked
const OPEN_EVERY = 3000; // milliseconds between two looks at runs that are still going

export function compare(view, board, state) {
  const path = "compare";
  let found = null; // the server's comparisons
  let chosen = null; // the one that is shown
  let lines = [];
  let asked = 0; // answers that come late are dropped
  let last = 0;

  const remember = () => keep(path, state);
  const set = (key, value, then) => { state[key] = value; remember(); then(); };

  async function load() {
    const mine = ++asked;
    try {
      const answer = await ask("/api/compare", { scope: state.scope, lang: language() });
      if (mine !== asked) return;
      found = answer;
      chosen = found.comparisons.find((one) => one.id === state.c) || found.comparisons[0] || null;
      layOut();
      await loadLines();
    } catch (error) {
      if (mine === asked) view.replaceChildren(empty(t("failed", { why: error.message })));
    }
  }

  const curveChart = h("div", { class: "chart", role: "img", "aria-label": t("curves") });
  const pointChart = h("div", { class: "chart", role: "img", "aria-label": t("against") });
  const legend = h("div", { class: "legend" });
  const said = h("p", { class: "muted" });

  const metric = () => state.y || (chosen ? `validation.${chosen.metric}` : "validation.loss");
  const query = () => ({ scope: state.scope, c: chosen ? chosen.id : "", y: metric(), x: state.x, smooth: state.smooth });

  async function loadLines() {
    last = Date.now();
    const mine = asked;
    const answer = await ask("/api/curves", query());
    if (mine !== asked) return;
    lines = answer.lines;
    drawLegend();
    await drawLines();
    if (chosen) await drawPoints();
  }

  // Which arms are shown: those in the address; else the baseline and the best, if there are too many to tell apart.
  function isShown(label) {
    if (state.arms !== undefined) return state.arms.split("|").includes(label);
    if (!chosen || chosen.arms.length <= MOST_LINES) return true;
    const sign = chosen.higher_is_better ? -1 : 1;
    const rank = (arm) => (arm.is_baseline ? -Infinity : sign * arm.facts.score.value);
    const best = [...chosen.arms].sort((a, b) => rank(a) - rank(b)).slice(0, MOST_LINES);
    return !chosen.arms.some((arm) => arm.label === label) || best.some((arm) => arm.label === label);
  }

  const everyone = () => [...(chosen ? chosen.arms : []), ...lines.filter((line) => line.open)];

  function styles() {
    const all = everyone();
    const made = looks(all);
    return new Map(all.map((arm, i) => [arm.label, arm.open ? { ...made[i], dash: "dot" } : made[i]]));
  }

  function drawLegend() {
    const style = styles();
    const show = (labels) => set("arms", labels.join("|"), () => { drawLegend(); drawLines(); if (chosen) drawPoints(); });
    const labels = everyone().map((arm) => arm.label);
    const item = (arm) => {
      const tick = h("input", { type: "checkbox", checked: isShown(arm.label), onchange: () => show(labels.filter((l) => (l === arm.label ? tick.checked : isShown(l)))) });
      return h("label", { title: arm.label }, tick, swatch(style.get(arm.label)), h("span", { class: "name" }, arm.label), h("span", { class: "value" }, arm.shown || ""));
    };
    const open = lines.filter((line) => line.open);
    legend.replaceChildren(
      h("div", { class: "legend-head" }, h("h3", {}, t("arms")), h("button", { type: "button", class: "small", onclick: () => show(labels) }, t("all")), h("button", { type: "button", class: "small", onclick: () => show([]) }, t("no_arms"))),
      ...(chosen ? chosen.arms.map(item) : []),
      ...(open.length ? [h("h3", {}, t("open_runs")), ...open.map(item)] : []),
    );
  }

  function drawLines() {
    const style = styles();
    const shown = lines.filter((line) => isShown(line.label));
    const traces = shown.flatMap((line) => {
      const look = style.get(line.label) || { color: css("--ink"), dash: "solid" };
      const middle = { x: line.x, y: line.y, name: plain(line.label), mode: line.x.length > 1 ? "lines" : "markers", line: { color: look.color, dash: look.dash, width: 1.8 }, hovertemplate: "%{y:.4~g}" };
      if (line.runs.length < 2 || state.bands === "off") return [middle];
      const edge = { x: line.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
      return [{ ...edge, y: line.low }, { ...edge, y: line.high, fill: "tonexty", fillcolor: faded(look.color, 0.16) }, middle];
    });
    const clipped = state.logy !== "on" && frame(shown) ? t("clipped") : "";
    said.textContent = !lines.length ? `${t("no_curve")} ${state.x === "flops" ? t("flops_hint") : ""}` : clipped;
    curveChart.hidden = !lines.length;
    const [kind, ...name] = metric().split(".");
    return draw(curveChart, traces, { x: axisName(state.x || "step"), y: `${t(kind)} ${metricName(name.join("."))}`, frame: state.logy === "on" ? null : frame(shown), logX: state.logx === "on", logY: state.logy === "on", revision: JSON.stringify([state.c, state.x, metric(), state.logx, state.logy]) });
  }

  function drawPoints() {
    const [a, b] = pair();
    const style = styles();
    const traces = chosen.arms.filter((arm) => isShown(arm.label) && arm.facts[a] && arm.facts[b]).map((arm) => {
      const look = style.get(arm.label);
      const bar = (fact) => ({ type: "data", symmetric: false, array: [fact.high === null ? 0 : fact.high - fact.value], arrayminus: [fact.low === null ? 0 : fact.value - fact.low], color: faded(look.color, 0.6), thickness: 1.4, width: 3 });
      return { x: [arm.facts[a].value], y: [arm.facts[b].value], error_x: bar(arm.facts[a]), error_y: bar(arm.facts[b]), name: plain(arm.label), mode: "markers+text", text: [chosen.arms.length <= 16 ? plain(arm.label) : ""], textposition: "top center", textfont: { size: 10.5, color: css("--muted") }, cliponaxis: false,
        marker: { color: look.color, size: 9, symbol: arm.is_baseline ? "diamond" : "circle" }, hovertemplate: `<b>%{fullData.name}</b><br>%{x:.5~g}${interval(arm.facts[a])}<br>%{y:.5~g}${interval(arm.facts[b])}<extra></extra>` };
    });
    return draw(pointChart, traces, { x: factName(a), y: factName(b), hover: "closest", logX: state.plogx === "on", logY: state.plogy === "on", revision: JSON.stringify([state.c, a, b]) });
  }

  // Layout

  function layOut() {
    if (!chosen && !board.runs.size) { view.replaceChildren(empty(t("nothing"), t("nothing_do"))); return; }
    const controls = h("div", { class: "bar controls" }, scopes(), found.comparisons.length ? comparisons() : null);
    const parts = [controls];
    if (!chosen) parts.push(h("p", { class: "muted" }, t("nothing_do")));
    if (chosen) parts.push(h("ul", { class: "said" }, chosen.lines.filter(Boolean).map((line) => h("li", {}, line))));
    parts.push(h("section", {}, h("div", { class: "section-head" }, h("h2", {}, t("curves")), curveControls(), downloads(curveChart, "curves", () => `/api/curves.csv?${new URLSearchParams(clean(query()))}`)), h("div", { class: "chart-row" }, h("div", { class: "chart-box" }, curveChart, said), legend)));
    if (chosen) parts.push(verdicts(), against());
    if (chosen && chosen.notes.length) parts.push(notes());
    view.replaceChildren(...parts);
  }

  function notes() {
    const list = (lines) => h("ul", { class: "notes" }, lines.map((line) => h("li", {}, line)));
    const [first, rest] = [chosen.notes.slice(0, FEW), chosen.notes.slice(FEW)];
    return h("section", {}, h("h2", {}, t("notes")), list(first), rest.length ? h("details", {}, h("summary", {}, t("more_notes", { n: rest.length })), list(rest)) : null);
  }

  function scopes() {
    const folders = new Set();
    for (const row of board.runs.values()) {
      const parts = (row.experiment || "").split("/");
      parts.forEach((_, i) => folders.add(parts.slice(0, i + 1).join("/")));
    }
    const options = [["", t("everything")], ...[...folders].sort().map((name) => [`in:${name}`, name])];
    if ((state.scope || "").startsWith("runs:")) options.push([state.scope, t("selected", { n: state.scope.slice(5).split(",").length })]);
    return picker(t("scope"), options, state.scope || "", (value) => { delete state.c; delete state.arms; delete state.y; set("scope", value, load); });
  }

  function comparisons() {
    const options = found.comparisons.map((one) => [one.id, `${one.dataset} · ${one.model} (${one.arms.length})`]);
    return picker(t("comparison"), options, chosen.id, (value) => { delete state.arms; delete state.y; set("c", value, load); });
  }

  function curveControls() {
    const kinds = chosen ? chosen.curves.map((key) => `validation.${key}`) : ["validation.loss", "validation.perplexity"];
    const options = [...kinds, "train.loss", "train.grad_norm", "train.lr"].map((key) => [key, `${t(key.split(".")[0])} ${metricName(key.split(".")[1])}`]);
    const axes = ["step", "tokens", "flops", "seconds"].map((key) => h("button", { type: "button", "aria-pressed": String((state.x || "step") === key), onclick: (event) => { press(event.currentTarget); set("x", key, loadLines); } }, t(key === "seconds" ? "time" : key)));
    const weight = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: state.smooth || 0, "aria-label": t("smoothing"), onchange: () => set("smooth", weight.value === "0" ? "" : weight.value, loadLines) });
    return h("div", { class: "controls" },
      picker("", options, metric(), (value) => set("y", value, loadLines), t("metric")),
      h("div", { class: "segments", role: "group", "aria-label": t("axis") }, axes),
      toggle("log_x", "logx", "on", drawLines), toggle("log_y", "logy", "on", drawLines), toggle("bands", "bands", "off", drawLines),
      h("label", { class: "slider" }, t("smoothing"), weight));
  }

  function toggle(name, key, value, then) {
    const on = () => (value === "on" ? state[key] === "on" : state[key] !== "off");
    const button = h("button", { type: "button", class: "toggle", "aria-pressed": String(on()), onclick: () => { set(key, state[key] === value ? "" : value, then); button.setAttribute("aria-pressed", String(on())); } }, t(name));
    return button;
  }

  function verdicts() {
    const style = styles();
    const rows = chosen.rows.map((cells, i) => h("tr", {}, cells.map((cell, j) => h("td", { class: chosen.right[j] ? "right" : "" }, j === 0 ? swatch(style.get(chosen.arms[i].label)) : null, j === chosen.verdict_column && chosen.arms[i].verdict ? h("span", { class: `verdict ${chosen.arms[i].verdict.replaceAll(" ", "-")}` }, pieces(cell)) : pieces(cell)))));
    const csv = () => `/api/compare.csv?${new URLSearchParams(clean({ scope: state.scope, c: chosen.id }))}`;
    return h("section", {}, h("div", { class: "section-head" }, h("h2", {}, t("verdicts")), h("div", { class: "downloads" }, h("a", { class: "button small", href: csv(), download: "comparison.csv" }, "CSV"))),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("verdicts") }, h("table", { class: "verdicts" }, h("thead", {}, h("tr", {}, chosen.header.map((name, j) => h("th", { class: chosen.right[j] ? "right" : "", scope: "col" }, name)))), h("tbody", {}, rows))));
  }

  const pair = () => {
    const known = facts();
    const of = (key, fallback) => (known.includes(state[key]) ? state[key] : known.includes(fallback) ? fallback : known[0]);
    return [of("px", chosen.arms.some((arm) => arm.facts.time && !arm.is_baseline) ? "time" : "trainable"), of("py", "score")];
  };
  const factName = (key) => (key === "score" ? metricName(chosen.metric) : t(`fact_${key}`));
  const facts = () => [...new Set(chosen.arms.flatMap((arm) => Object.keys(arm.facts).filter((key) => arm.facts[key])))];

  function against() {
    const options = facts().map((key) => [key, factName(key)]);
    const [a, b] = pair();
    const csv = () => `data:text/csv;charset=utf-8,${encodeURIComponent(pointsCsv(...pair()))}`;
    return h("section", {}, h("div", { class: "section-head" }, h("h2", {}, t("against")),
      h("div", { class: "controls" }, picker("y", options, b, (value) => set("py", value, drawPoints)), picker("x", options, a, (value) => set("px", value, drawPoints)), toggle("log_x", "plogx", "on", drawPoints), toggle("log_y", "plogy", "on", drawPoints)),
      downloads(pointChart, "pareto", csv)), pointChart, h("p", { class: "muted" }, t("interval")));
  }

  function pointsCsv(a, b) {
    const cell = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
    const line = (arm) => [arm.label, ...[arm.facts[a], arm.facts[b]].flatMap((fact) => (fact ? [fact.value, fact.low, fact.high] : ["", "", ""]))];
    return [["arm", a, `${a}_low`, `${a}_high`, b, `${b}_low`, `${b}_high`], ...chosen.arms.map(line)].map((row) => row.map(cell).join(",")).join("\n");
  }

  load();
  return {
    redraw: load,
    update({ results, rows }) {
      if (results) load();
      else if (lines.some((line) => line.open && line.runs.some((run) => rows.has(run))) && Date.now() - last > OPEN_EVERY) loadLines().catch(() => {});
    },
    close() { asked += 1; },
  };
}

export function picker(label, options, value, choose, name = label) {
  const list = h("select", { "aria-label": name, onchange: () => choose(list.value) }, options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  return h("label", { class: "picker" }, label, list);
}

export function press(button) {
  for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
}

// The huge values of the first steps would squash the rest: they may leave the frame. Null if nothing has to.
function frame(lines) {
  const late = lines.flatMap((line) => line.y.filter((_, i) => line.x[i] >= 0.15 * line.x.at(-1)));
  const all = lines.flatMap((line) => line.y);
  if (!late.length) return null;
  const [low, high] = [Math.min(...all), Math.max(...late)];
  return Math.max(...all) - low > 1.5 * (high - low) && high > low ? [low - 0.05 * (high - low), high + 0.08 * (high - low)] : null;
}

// A cell breaks where the report would break it, if it has to.
const pieces = (cell) => cell.split("\n").flatMap((piece, i) => [i ? " " : "", h("span", { class: "piece" }, piece)]);

function swatch(look) {
  return h("i", { class: `swatch ${look.dash}`, style: { "--color": look.color } });
}

const interval = (fact) => (fact.low === null ? "" : ` [${fact.low.toPrecision(4)}, ${fact.high.toPrecision(4)}]`);
const clean = (query) => Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
