// One run: its curves, what of the network trains, whether frozen stayed frozen, where the time goes, and its words.

import { ask, bytes, compact, duration, empty, h, keep, link, number } from "./dom.js";
import { css, downloads, draw, looks } from "./charts.js";
import { curveControls } from "./controls.js";
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
    const change = (key, value, afresh) => set(key, value, afresh && key !== "y" ? loadCurves : drawCurves);
    const busy = choice.contains(document.activeElement) && document.activeElement.matches("select, input");
    if (!busy) choice.replaceChildren(...curveControls(state, metrics().map((key) => [key, metricName(key)]), name, change, false));
    chart.hidden = !name;
    if (!name) return null;
    const color = { train: css("--muted"), validation: looks([{}])[0].color };
    const traces = ["train", "validation"].filter((kind) => drawn[`${kind}.${name}`]).map((kind) => {
      const { x, y } = drawn[`${kind}.${name}`];
      const mode = kind === "validation" ? "lines+markers" : x.length > 1 ? "lines" : "markers";
      const line = { color: color[kind], width: kind === "validation" ? 2 : 1.3 };
      return { x, y, name: t(kind), mode, line, marker: { size: 4, color: color[kind] }, hovertemplate: "%{y:.5~g}" };
    });
    return draw(chart, traces, {
      x: t(state.x || "step"), y: metricName(name), legend: true, logX: state.logx === "on", logY: state.logy === "on",
      revision: JSON.stringify([name, state.x, state.logx, state.logy]),
    });
  }

  // Parts

  function drawHead() {
    const row = board.runs.get(id) || found.row;
    const facts = [
      ["method", row.method], ["dataset", row.dataset], ["seed", row.seed], ["loss", number(row.loss)], [row.metric || "score", score(row)],
      ["speed", row.state === "running" ? compact(row.speed) : null], ["eta", row.eta ? duration(row.eta) : null], ["device", row.device],
    ].filter(([, value]) => value !== null && value !== undefined && value !== "–");
    head.replaceChildren(...[
      crumbs(row),
      h("div", { class: "title" }, h("h1", {}, row.name), pill(row), row.max_steps ? progress(row) : null),
      row.error ? h("p", { class: "error" }, row.error) : null,
      row.state === "unreadable" ? h("p", {}, t("broken_do", { path: found.path })) : null,
      h("dl", { class: "facts" }, facts.map(([key, value]) => h("div", {}, h("dt", {}, word(key)), h("dd", {}, value)))),
    ].filter(Boolean));
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
    const errors = freeze.sites.filter((site) => site.frozen && site.error !== null).map((site) => site.error);
    const worst = errors.length ? Math.max(...errors) : null;
    const hashed = freeze.sites.reduce((sum, site) => sum + site.hashed, 0);
    const shares = [["trained", freeze.trainable], ["frozen", freeze.frozen]].filter(([, n]) => n > 0);
    const [look, said] = verdictOn(freeze, result);
    return card("verification", h("p", { class: look }, (look === "good" ? "✓ " : "") + t(said)),
      stack(shares.map(([name, n]) => [t(name), n / freeze.total, name])),
      list([
        ["parameters", compact(freeze.total)], ["trained", number(freeze.trainable, 0)], ["frozen", number(freeze.frozen, 0)],
        ["hashes", hashed || null], ["worst", worst === 0 ? "0" : worst && worst.toExponential(1)],
      ]));
  }

  function timingCard() {
    const { timing, result } = found;
    if (!timing) return card("timing", h("p", { class: "muted" }, t("no_timing")));
    const parts = ["data", "forward", "backward", "optimizer", "other"];
    const shares = parts.map((name, i) => [t(name), timing[`${name}_share`] || 0, `tone${i}`]).filter(([, share]) => share > 0);
    const milli = (seconds) => (typeof seconds === "number" ? `${number(1000 * seconds, 1)} ms` : null);
    return card("timing", stack(shares), list([
      ["median", milli(timing.median_step_time)], ["p95", milli(timing.p95_step_time)], ["wall", duration(timing.total_wall_time)],
      ["validation_time", duration(timing.validation_time_total)], ["memory", result ? bytes(result.peak_memory_bytes) : null],
    ]));
  }

  function checkpointsCard() {
    const marks = (one) => one.marks.map((mark) => h("span", { class: "tag" }, t(mark)));
    const row = (one) => h("tr", {}, h("td", {}, one.name, marks(one)), h("td", { class: "right" }, bytes(one.bytes)));
    const rows = (found.checkpoints || []).map(row);
    return card("checkpoints", rows.length ? h("table", {}, h("tbody", {}, rows)) : h("p", { class: "muted" }, t("no_checkpoints")));
  }

  function samplesCard() {
    if (!found.samples || !found.samples.length) return found.result && "accuracy" in found.result.final ? null : card("samples", h("p", { class: "muted" }, t("no_samples")));
    const sample = (one) => h("figure", {},
      h("figcaption", {}, `${t("step")} ${one.step === null ? "–" : number(one.step, 0)}`), h("blockquote", {}, h("b", {}, one.prompt), one.text));
    return h("section", { class: "card wide" }, h("h2", {}, t("samples")), h("div", { class: "samples" }, found.samples.map(sample)));
  }

  function environmentCard() {
    if (!found.environment || !Object.keys(found.environment).length) return "";
    return h("section", {}, h("h2", {}, t("environment")), settings(found.environment));
  }

  function configCard() {
    if (!found.config) return "";
    const copy = h("button", { type: "button", class: "small", onclick: async () => {
      await navigator.clipboard.writeText(found.config.text);
      copy.textContent = t("copied");
    } }, t("copy"));
    return h("section", {}, h("div", { class: "section-head" }, h("h2", {}, t("config")), copy),
      settings(found.config.settings), h("details", {}, h("summary", {}, t("raw")), h("pre", {}, found.config.text)));
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

const card = (name, ...content) => h("section", { class: "card" }, h("h2", {}, t(name)), content);

// How it looks and what to say of the frozen weights.
function verdictOn(freeze, result) {
  const weightless = freeze.sites.some((site) => site.projection && site.projection !== "dense");
  if (!freeze.frozen) return ["muted", weightless ? "verified_weightless" : "verified_none"];
  if (!result) return ["muted", "verified_not_yet"];
  return result.frozen_verified === true ? ["good", "verified"] : ["error", "verified_missing"];
}

// Shares of a whole as one bar with its key.
function stack(shares) {
  const percent = (share) => `${number(100 * share, share < 0.01 ? 1 : 0)} %`;
  const bar = shares.map(([name, share, look]) => h("span", { class: look, style: { "flex-grow": share }, title: `${name} ${percent(share)}` }));
  const keys = shares.map(([name, share, look]) => h("span", {}, h("i", { class: look }), `${name} ${percent(share)}`));
  return h("div", { class: "stack" }, h("div", { class: "stack-bar" }, bar), h("div", { class: "stack-keys" }, keys));
}

function settings(values) {
  const isNothing = (value) => value === null || value === "" || (Array.isArray(value) && !value.length);
  const shown = (value) => (isNothing(value) ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));
  return h("div", { class: "settings" }, list(Object.entries(values).map(([key, value]) => [key, shown(value)]), false));
}

function list(pairs, translate = true) {
  const there = pairs.filter(([, value]) => value !== null && value !== undefined);
  return h("dl", { class: "list" }, there.flatMap(([key, value]) => [h("dt", {}, translate ? t(key) : key), h("dd", {}, value)]));
}
