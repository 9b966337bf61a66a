// One run: its curves, what of the network trains, whether frozen stayed frozen, where the time goes, and its words.

import { ask, bytes, compact, duration, empty, h, keep, link, number } from "./dom.js";
import { axisName, css, downloads, draw, looks } from "./charts.js";
import { picker, press } from "./compare.js";
import { network } from "./network.js";
import { pill, progress, score } from "./overview.js";
import { metricName, t, word } from "./words.js";

const CURVES_EVERY = 3000; // milliseconds between two looks at the curves of a run at work

export function run(view, board, state, [id]) {
  let found = null;
  let drawn = {};
  let logEnd = null;
  let closed = false;
  let lastCurves = 0;

  const head = h("div", { class: "run-head" });
  const chart = h("div", { class: "chart", role: "img", "aria-label": t("curves") });
  const choice = h("div", { class: "controls" });
  const log = h("pre", { class: "log", tabindex: 0, "aria-label": t("log") });
  const cards = h("div", { class: "cards" });

  async function load() {
    try {
      found = await ask(`/api/run/${encodeURIComponent(id)}`);
      if (closed) return;
      layOut();
      await Promise.all([loadCurves(), loadLog()]);
    } catch (error) {
      if (closed) return;
      const row = board.runs.get(id);
      if (row && row.state === "unreadable") view.replaceChildren(crumbs(row), empty(t("broken"), row.error || error.message, t("broken_do", { path: row.name })));
      else if (error.status === 404) view.replaceChildren(empty(t("gone"), t("gone_do")));
      else view.replaceChildren(empty(t("failed", { why: error.message })));
    }
  }

  async function loadCurves() {
    lastCurves = Date.now();
    drawn = await ask(`/api/run/${id}/curves`, { x: state.x, smooth: state.smooth });
    if (!closed) await drawCurves();
  }

  async function loadLog() {
    const more = await ask(`/api/run/${id}/log`, { from: logEnd });
    if (closed) return;
    const follow = log.scrollTop + log.clientHeight >= log.scrollHeight - 30;
    if (logEnd === null || more.from !== logEnd) log.textContent = "";
    log.append(more.text);
    logEnd = more.end;
    if (!log.textContent) log.textContent = t("no_log");
    log.classList.toggle("long", log.textContent.length > 1200);
    if (follow) log.scrollTop = log.scrollHeight;
  }

  // Curves: one metric, training and validation together

  const metrics = () => [...new Set(Object.keys(drawn).map((key) => key.slice(key.indexOf(".") + 1)))].sort((a, b) => (b === "loss") - (a === "loss") || a.localeCompare(b));
  const metric = () => (metrics().includes(state.y) ? state.y : metrics()[0]);
  const set = (key, value, then) => { state[key] = value; keep(`run/${id}`, state); then(); };

  function drawCurves() {
    const name = metric();
    const axes = ["step", "tokens", "flops", "seconds"].map((key) => h("button", { type: "button", "aria-pressed": String((state.x || "step") === key), onclick: (event) => { press(event.currentTarget); set("x", key, loadCurves); } }, t(key === "seconds" ? "time" : key)));
    const toggle = (label, key) => h("button", { type: "button", class: "toggle", "aria-pressed": String(state[key] === "on"), onclick: () => set(key, state[key] === "on" ? "" : "on", drawCurves) }, t(label));
    const weight = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: state.smooth || 0, "aria-label": t("smoothing"), onchange: () => set("smooth", weight.value === "0" ? "" : weight.value, loadCurves) });
    const busy = choice.contains(document.activeElement) && document.activeElement.matches("select, input");
    if (!busy) choice.replaceChildren(name ? picker("", metrics().map((key) => [key, metricName(key)]), name, (value) => set("y", value, drawCurves), t("metric")) : "", h("div", { class: "segments", role: "group", "aria-label": t("axis") }, axes), toggle("log_x", "logx"), toggle("log_y", "logy"), h("label", { class: "slider" }, t("smoothing"), weight));
    chart.hidden = !name;
    if (!name) return null;
    const [, other] = looks([{ is_baseline: true }, {}]);
    const traces = ["train", "validation"].filter((kind) => drawn[`${kind}.${name}`]).map((kind) => {
      const line = drawn[`${kind}.${name}`];
      const color = kind === "validation" ? other.color : css("--muted");
      return { x: line.x, y: line.y, name: t(kind), mode: kind === "validation" ? "lines+markers" : line.x.length > 1 ? "lines" : "markers", line: { color, width: kind === "validation" ? 2 : 1.3 }, marker: { size: 4, color }, hovertemplate: "%{y:.5~g}" };
    });
    return draw(chart, traces, { x: axisName(state.x || "step"), y: metricName(name), legend: true, logX: state.logx === "on", logY: state.logy === "on", revision: JSON.stringify([name, state.x, state.logx, state.logy]) });
  }

  // Parts

  function drawHead() {
    const row = board.runs.get(id) || found.row;
    const facts = [["method", row.method], ["dataset", row.dataset], ["seed", row.seed], ["loss", number(row.loss ?? null)], [row.metric || "score", score(row)], ["speed", row.state === "running" ? compact(row.speed) : null], ["eta", row.eta ? duration(row.eta) : null], ["device", row.device]];
    head.replaceChildren(crumbs(row), h("div", { class: "title" }, h("h1", {}, row.name), pill(row), row.max_steps ? progress(row) : ""), row.error ? h("p", { class: "error" }, row.error) : "", row.state === "unreadable" ? h("p", {}, t("broken_do", { path: found ? found.path : row.name })) : "",
      h("dl", { class: "facts" }, facts.filter(([, value]) => value !== null && value !== undefined && value !== "–").map(([key, value]) => h("div", {}, h("dt", {}, word(key)), h("dd", {}, value)))));
  }

  function layOut() {
    drawHead();
    const problems = Object.entries(found.problems).map(([part, why]) => h("p", { class: "error" }, t("problem", { part, why })));
    const logCard = h("section", { class: "card long" }, h("h2", {}, t("log")), log);
    const sections = [networkCard(), verificationCard(), timingCard(), logCard, checkpointsCard(), samplesCard()];
    cards.replaceChildren(...sections.filter(Boolean));
    view.replaceChildren(head, ...problems,
      h("section", {}, h("div", { class: "section-head" }, h("h2", {}, t("curves")), choice, downloads(chart, found.row.name.replace(/[^\w+=.-]/g, "_"))), chart),
      cards,
      configCard(), environmentCard());
  }

  function networkCard() {
    if (!found.freeze || !found.freeze.sites.length) return null;
    const states = ["trained", "frozen", "weightless", "thaws"].map((name) => h("span", { class: `key ${name}` }, h("i"), t(name)));
    return h("section", { class: "card wide" }, h("h2", {}, t("network")), found.freeze.summary ? h("p", { class: "muted" }, found.freeze.summary) : null, network(found.freeze), h("div", { class: "keys" }, states));
  }

  function verificationCard() {
    const { freeze, result } = found;
    if (!freeze) return null;
    const weightless = freeze.sites.some((site) => site.projection && site.projection !== "dense");
    const verdict = !freeze.frozen ? ["muted", weightless ? "verified_weightless" : "verified_none"] : !result ? ["muted", "verified_not_yet"] : result.frozen_verified === true ? ["good", "verified"] : ["error", "verified_missing"];
    const errors = freeze.sites.filter((site) => site.frozen && site.error !== null).map((site) => site.error);
    const hashed = freeze.sites.reduce((sum, site) => sum + site.hashed, 0);
    const shares = [["trained", freeze.trainable], ["frozen", freeze.frozen]].filter(([, n]) => n > 0);
    return h("section", { class: "card" }, h("h2", {}, t("verification")), h("p", { class: verdict[0] }, (verdict[0] === "good" ? "✓ " : "") + t(verdict[1])),
      stack(shares.map(([name, n]) => [t(name), n / freeze.total, name])),
      list([["parameters", compact(freeze.total)], ["trained", number(freeze.trainable, 0)], ["frozen", number(freeze.frozen, 0)], ["hashes", hashed || null], ["worst", errors.length ? Math.max(...errors) ? Math.max(...errors).toExponential(1) : "0" : null]]));
  }

  function timingCard() {
    const { timing, result } = found;
    const parts = ["data", "forward", "backward", "optimizer", "other"];
    if (!timing) return h("section", { class: "card" }, h("h2", {}, t("timing")), h("p", { class: "muted" }, t("no_timing")));
    const shares = parts.map((name, i) => [t(name), timing[`${name}_share`] || 0, `tone${i}`]).filter(([, share]) => share > 0);
    const milli = (seconds) => (typeof seconds === "number" ? `${number(1000 * seconds, 1)} ms` : null);
    return h("section", { class: "card" }, h("h2", {}, t("timing")), stack(shares),
      list([["median", milli(timing.median_step_time)], ["p95", milli(timing.p95_step_time)], ["wall", duration(timing.total_wall_time)], ["validation_time", duration(timing.validation_time_total)], ["memory", result ? bytes(result.peak_memory_bytes) : null]]));
  }

  function checkpointsCard() {
    const rows = (found.checkpoints || []).map((one) => h("tr", {}, h("td", {}, one.name, " ", one.marks.map((mark) => h("span", { class: "tag" }, t(mark)))), h("td", { class: "right" }, bytes(one.bytes))));
    return h("section", { class: "card" }, h("h2", {}, t("checkpoints")), rows.length ? h("table", {}, h("tbody", {}, rows)) : h("p", { class: "muted" }, t("no_checkpoints")));
  }

  function samplesCard() {
    if (!found.samples || !found.samples.length) return null;
    return h("section", { class: "card wide" }, h("h2", {}, t("samples")), h("div", { class: "samples" }, found.samples.map((one) => h("figure", {}, h("figcaption", {}, `${t("step")} ${one.step === null ? "–" : number(one.step, 0)}`), h("blockquote", {}, h("b", {}, one.prompt), one.text)))));
  }

  function environmentCard() {
    if (!found.environment || !Object.keys(found.environment).length) return "";
    return h("section", {}, h("h2", {}, t("environment")), settings(found.environment));
  }

  function configCard() {
    if (!found.config) return "";
    const copy = h("button", { type: "button", class: "small", onclick: async () => { await navigator.clipboard.writeText(found.config.text); copy.textContent = t("copied"); } }, t("copy"));
    return h("section", {}, h("div", { class: "section-head" }, h("h2", {}, t("config")), copy), settings(found.config.settings), h("details", {}, h("summary", {}, t("raw")), h("pre", {}, found.config.text)));
  }

  load();
  return {
    redraw: drawCurves,
    update({ rows }) {
      if (!found) return;
      const row = board.runs.get(id);
      if (!rows.has(id)) return;
      if (row && row.state !== found.row.state) { load(); return; }
      drawHead();
      loadLog().catch(() => {});
      if (Date.now() - lastCurves > CURVES_EVERY) loadCurves().catch(() => {});
    },
    close() { closed = true; },
  };
}

function crumbs(row) {
  return h("p", { class: "crumbs" }, h("a", { href: link("") }, t("overview")), " / ", h("a", { href: link("", { q: row.experiment }) }, row.experiment || "–"));
}

function stack(shares) {
  return h("div", { class: "stack" }, h("div", { class: "stack-bar" }, shares.map(([name, share, look]) => h("span", { class: look, style: { "flex-grow": share }, title: `${name} ${number(100 * share, 1)} %` }))), h("div", { class: "stack-keys" }, shares.map(([name, share, look]) => h("span", {}, h("i", { class: look }), `${name} ${number(100 * share, share < 0.01 ? 1 : 0)} %`))));
}

function settings(values) {
  const shown = (value) => (value === null || value === "" || (Array.isArray(value) && !value.length) ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  return h("div", { class: "settings" }, list(Object.entries(values).map(([key, value]) => [key, shown(value)]), false));
}

function list(pairs, translate = true) {
  return h("dl", { class: "list" }, pairs.filter(([, value]) => value !== null && value !== undefined).flatMap(([key, value]) => [h("dt", {}, translate ? t(key) : key), h("dd", {}, value)]));
}
