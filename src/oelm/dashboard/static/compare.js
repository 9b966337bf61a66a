// Runs against each other: curves, the report's verdicts, and any fact against any other.

import { ask, empty, h, keep } from "./dom.js";
import { css, downloads, draw, faded, looks, plain } from "./charts.js";
import { curveControls, curveName, picker, toggle } from "./controls.js";
import { language, metricName, t } from "./words.js";

const MOST_LINES = 12; // arms that are shown unasked
const FEW = 8; // notes that are shown unasked
const OPEN_EVERY = 3000; // milliseconds between two looks at runs that are still going

export function compare(view, board, state) {
  let found = null; // the server's comparisons
  let chosen = null; // the one that is shown
  let lines = [];
  let asked = 0; // answers that come late are dropped
  let last = 0;
  const curveChart = h("div", { class: "chart", role: "img", "aria-label": t("curves") });
  const pointChart = h("div", { class: "chart", role: "img", "aria-label": t("against") });
  const legend = h("div", { class: "legend" });
  const said = h("p", { class: "muted" });

  function set(key, value, then) {
    state[key] = value;
    keep("compare", state);
    then();
  }

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

  async function loadLines() {
    last = Date.now();
    const mine = asked;
    const answer = await ask("/api/curves", query());
    if (mine !== asked) return;
    lines = answer.lines;
    await drawAll();
  }

  async function drawAll() {
    drawLegend();
    await drawLines();
    if (chosen) await drawPoints();
  }

  const metric = () => state.y || (chosen ? `validation.${chosen.metric}` : "validation.loss");
  const query = () => ({ scope: state.scope, c: chosen ? chosen.id : "", y: metric(), x: state.x, smooth: state.smooth });
  const everyone = () => [...(chosen ? chosen.arms : []), ...lines.filter((line) => line.open)];

  // Which arms are shown: those in the address; else the baseline and the best, if there are too many to tell apart.
  function isShown(label) {
    if (state.arms !== undefined) return state.arms.split("|").includes(label);
    if (!chosen || chosen.arms.length <= MOST_LINES) return true;
    const sign = chosen.higher_is_better ? -1 : 1;
    const rank = (arm) => (arm.is_baseline ? -Infinity : sign * arm.facts.score.value);
    const best = [...chosen.arms].sort((a, b) => rank(a) - rank(b)).slice(0, MOST_LINES);
    return !chosen.arms.some((arm) => arm.label === label) || best.some((arm) => arm.label === label);
  }

  function styles() {
    const all = everyone();
    const made = looks(all);
    return new Map(all.map((arm, i) => [arm.label, arm.open ? { ...made[i], dash: "dot" } : made[i]]));
  }

  // Drawing

  function drawLegend() {
    const style = styles();
    const labels = everyone().map((arm) => arm.label);
    const show = (chosenLabels) => set("arms", chosenLabels.join("|"), drawAll);
    const item = (arm) => {
      const flip = () => show(labels.filter((label) => (label === arm.label ? tick.checked : isShown(label))));
      const tick = h("input", { type: "checkbox", checked: isShown(arm.label), onchange: flip });
      const name = h("span", { class: "name" }, arm.label);
      return h("label", { title: arm.label }, tick, swatch(style.get(arm.label)), name, h("span", { class: "value" }, arm.shown || ""));
    };
    const button = (name, chosenLabels) => h("button", { type: "button", class: "small", onclick: () => show(chosenLabels) }, t(name));
    const open = lines.filter((line) => line.open);
    legend.replaceChildren(
      h("div", { class: "legend-head" }, h("h3", {}, t("arms")), button("all", labels), button("no_arms", [])),
      ...(chosen ? chosen.arms.map(item) : []),
      ...(open.length ? [h("h3", {}, t("open_runs")), ...open.map(item)] : []),
    );
  }

  function drawLines() {
    const style = styles();
    const shown = lines.filter((line) => isShown(line.label));
    const traces = shown.flatMap((line) => lineTraces(line, style.get(line.label), state.bands !== "off"));
    const range = state.logy === "on" ? null : frame(shown);
    said.textContent = range ? t("clipped") : "";
    if (!lines.length) said.textContent = `${t("no_curve")} ${state.x === "flops" ? t("flops_hint") : ""}`;
    curveChart.hidden = !lines.length;
    return draw(curveChart, traces, {
      x: t(state.x || "step"), y: curveName(metric()), frame: range, logX: state.logx === "on", logY: state.logy === "on",
      revision: JSON.stringify([state.c, state.x, metric(), state.logx, state.logy]),
    });
  }

  function drawPoints() {
    const [a, b] = pair();
    const style = styles();
    const shown = chosen.arms.filter((arm) => isShown(arm.label) && arm.facts[a] && arm.facts[b]);
    const named = shown.length <= 16;
    return draw(pointChart, shown.map((arm) => pointTrace(arm, style.get(arm.label), a, b, named)), {
      x: factName(a), y: factName(b), hover: "closest", logX: state.plogx === "on", logY: state.plogy === "on",
      revision: JSON.stringify([state.c, a, b]),
    });
  }

  // Layout

  function layOut() {
    if (!chosen && !board.runs.size) {
      view.replaceChildren(empty(t("nothing"), t("nothing_do")));
      return;
    }
    const parts = [h("div", { class: "bar controls" }, scopes(), chosen ? comparisons() : null), curves()];
    if (chosen) {
      parts.splice(1, 0, h("ul", { class: "said" }, chosen.lines.filter(Boolean).map((line) => h("li", {}, line))));
      parts.push(verdicts(), against());
      if (chosen.notes.length) parts.push(notes());
    } else parts.splice(1, 0, h("p", { class: "muted said" }, t("nothing_do")));
    view.replaceChildren(...parts);
  }

  function scopes() {
    const folders = new Set();
    for (const row of board.runs.values()) {
      const parts = (row.experiment || "").split("/");
      parts.forEach((_, i) => folders.add(parts.slice(0, i + 1).join("/")));
    }
    const options = [["", t("everything")], ...[...folders].sort().map((name) => [`in:${name}`, name])];
    const scope = state.scope || "";
    if (scope.startsWith("runs:")) options.push([scope, t("selected", { n: scope.slice(5).split(",").length })]);
    return picker(t("scope"), options, scope, (value) => { delete state.c; another("scope", value); });
  }

  function comparisons() {
    const options = found.comparisons.map((one) => [one.id, `${one.dataset} · ${one.model} (${one.arms.length})`]);
    return picker(t("comparison"), options, chosen.id, (value) => another("c", value));
  }

  function another(key, value) {
    delete state.arms;
    delete state.y;
    set(key, value, load);
  }

  function curves() {
    const own = chosen ? chosen.curves : ["loss", "perplexity"];
    const keys = [...own.map((key) => `validation.${key}`), "train.loss", "train.grad_norm", "train.lr"];
    const change = (key, value, afresh) => set(key, value, afresh ? loadLines : drawLines);
    const controls = curveControls(state, keys.map((key) => [key, curveName(key)]), metric(), change, true);
    const head = [h("h2", {}, t("curves")), h("div", { class: "controls" }, controls), downloads(curveChart, "curves", () => `/api/curves.csv?${words(query())}`)];
    const row = h("div", { class: "chart-row" }, h("div", { class: "chart-box" }, curveChart, said), legend);
    return h("section", {}, h("div", { class: "section-head" }, head), row);
  }

  function verdicts() {
    const style = styles();
    const cellOf = (arm, cell, j) => {
      const judged = j === chosen.verdict_column && arm.verdict;
      const text = judged ? h("span", { class: `verdict ${arm.verdict.replaceAll(" ", "-")}` }, pieces(cell)) : pieces(cell);
      return h("td", { class: chosen.right[j] ? "right" : "" }, j === 0 ? swatch(style.get(arm.label)) : null, text);
    };
    const rows = chosen.rows.map((cells, i) => h("tr", {}, cells.map((cell, j) => cellOf(chosen.arms[i], cell, j))));
    const head = chosen.header.map((name, j) => h("th", { class: chosen.right[j] ? "right" : "", scope: "col" }, name));
    const csv = `/api/compare.csv?${words({ scope: state.scope, c: chosen.id })}`;
    const save = h("div", { class: "downloads" }, h("a", { class: "button small", href: csv, download: "comparison.csv" }, "CSV"));
    const table = h("table", { class: "verdicts" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
    return h("section", {}, h("div", { class: "section-head" }, h("h2", {}, t("verdicts")), save),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("verdicts") }, table));
  }

  function against() {
    const options = facts().map((key) => [key, factName(key)]);
    const [a, b] = pair();
    const scale = (label, key) => toggle(t(label), state[key] === "on", () => {
      set(key, state[key] === "on" ? "" : "on", drawPoints);
      return state[key] === "on";
    });
    const controls = h("div", { class: "controls" },
      picker("y", options, b, (value) => set("py", value, drawPoints)), picker("x", options, a, (value) => set("px", value, drawPoints)),
      scale("log_x", "plogx"), scale("log_y", "plogy"));
    const csv = () => `data:text/csv;charset=utf-8,${encodeURIComponent(pointsCsv(...pair()))}`;
    return h("section", {}, h("div", { class: "section-head" }, h("h2", {}, t("against")), controls, downloads(pointChart, "pareto", csv)),
      pointChart, h("p", { class: "muted" }, t("interval")));
  }

  function notes() {
    const list = (texts) => h("ul", { class: "notes" }, texts.map((text) => h("li", {}, text)));
    const [first, rest] = [chosen.notes.slice(0, FEW), chosen.notes.slice(FEW)];
    const more = rest.length ? h("details", {}, h("summary", {}, t("more_notes", { n: rest.length })), list(rest)) : null;
    return h("section", {}, h("h2", {}, t("notes")), list(first), more);
  }

  const facts = () => [...new Set(chosen.arms.flatMap((arm) => Object.keys(arm.facts)))];
  const factName = (key) => (key === "score" ? metricName(chosen.metric) : t(`fact_${key}`));

  // The two facts that are drawn; unasked, quality against what it costs.
  function pair() {
    const known = facts();
    const of = (key, fallback) => (known.includes(state[key]) ? state[key] : known.includes(fallback) ? fallback : known[0]);
    return [of("px", chosen.arms.some((arm) => arm.facts.time && !arm.is_baseline) ? "time" : "trainable"), of("py", "score")];
  }

  function pointsCsv(a, b) {
    const cell = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
    const three = (fact) => (fact ? [fact.value, fact.low, fact.high] : ["", "", ""]);
    const head = ["arm", a, `${a}_low`, `${a}_high`, b, `${b}_low`, `${b}_high`];
    const rows = chosen.arms.map((arm) => [arm.label, ...three(arm.facts[a]), ...three(arm.facts[b])]);
    return [head, ...rows].map((row) => row.map(cell).join(",")).join("\n");
  }

  load();
  return {
    redraw: load,
    update({ results, rows }) {
      const moved = () => lines.some((line) => line.open && line.runs.some((run) => rows.has(run)));
      if (results) load();
      else if (moved() && Date.now() - last > OPEN_EVERY) loadLines().catch(() => {});
    },
    close() { asked += 1; },
  };
}

function lineTraces(line, look, withBand) {
  const middle = {
    x: line.x, y: line.y, name: plain(line.label), mode: line.x.length > 1 ? "lines" : "markers",
    line: { color: look.color, dash: look.dash, width: 1.8 }, hovertemplate: "%{y:.4~g}",
  };
  if (line.runs.length < 2 || !withBand) return [middle];
  const edge = { x: line.x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
  return [{ ...edge, y: line.low }, { ...edge, y: line.high, fill: "tonexty", fillcolor: faded(look.color, 0.16) }, middle];
}

function pointTrace(arm, look, a, b, named) {
  const bar = (fact) => ({
    type: "data", symmetric: false, array: [fact.high === null ? 0 : fact.high - fact.value],
    arrayminus: [fact.low === null ? 0 : fact.value - fact.low], color: faded(look.color, 0.6), thickness: 1.4, width: 3,
  });
  const interval = (fact) => (fact.low === null ? "" : ` [${fact.low.toPrecision(4)}, ${fact.high.toPrecision(4)}]`);
  const [x, y] = [arm.facts[a], arm.facts[b]];
  return {
    x: [x.value], y: [y.value], error_x: bar(x), error_y: bar(y), name: plain(arm.label), cliponaxis: false,
    mode: "markers+text", text: [named ? plain(arm.label) : ""], textposition: "top right", textfont: { size: 10.5, color: css("--muted") },
    marker: { color: look.color, size: 9, symbol: arm.is_baseline ? "diamond" : "circle" },
    hovertemplate: `<b>%{fullData.name}</b><br>%{x:.5~g}${interval(x)}<br>%{y:.5~g}${interval(y)}<extra></extra>`,
  };
}

// The huge values of the first steps would squash the rest: they may leave the frame. Null if nothing has to.
function frame(lines) {
  const end = Math.max(...lines.map((line) => line.x.at(-1)));
  const late = lines.flatMap((line) => line.y.filter((_, i) => line.x[i] >= 0.15 * end));
  const all = lines.flatMap((line) => line.y);
  const [low, high, top] = [Math.min(...all), Math.max(...late), Math.max(...all)];
  const squashed = late.length > 0 && high > low && top - low > 1.5 * (high - low);
  return squashed ? [low - 0.05 * (high - low), high + 0.08 * (high - low)] : null;
}

// A cell breaks where the report would break it, if it has to.
const pieces = (cell) => cell.split("\n").flatMap((piece, i) => [i ? " " : "", h("span", { class: "piece" }, piece)]);
const swatch = (look) => h("i", { class: `swatch line-${look.dash}`, style: { "--color": look.color } });
const words = (query) => new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined && value !== ""));
