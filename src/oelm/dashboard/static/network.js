// A picture of the network: which matrices train, which are frozen, which have no weights. Layers alike are drawn once.

import { svg } from "./dom.js";
import { t } from "./words.js";

const HEIGHT = 46;
const GAP = 12;
const WIDTH = 720;
const LEFT = 104;

export function network(freeze) {
  const groups = alike(freeze.sites);
  const rows = [{ bar: t("head") }, ...groups.toReversed(), { bar: t("embedding") }];
  const heights = rows.map((row) => (row.bar ? 28 : HEIGHT * row.lines.length + GAP));
  const total = heights.reduce((a, b) => a + b, 0) + GAP * (rows.length - 1) + 4;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${total}`, class: "network", role: "img", "aria-label": t("network") }, hatch());
  let y = 2;
  rows.forEach((row, i) => {
    picture.append(row.bar ? bar(row.bar, y, heights[i]) : block(row, y, heights[i]));
    if (i < rows.length - 1) picture.append(svg("line", { x1: LEFT + 20, x2: LEFT + 20, y1: y + heights[i], y2: y + heights[i] + GAP, class: "wire" }));
    y += heights[i] + GAP;
  });
  return picture;
}

// Consecutive layers with the same matrices in the same states.
function alike(sites) {
  const layers = new Map();
  for (const site of sites) {
    const key = `${site.path.replace(/\d+.*$/, "")}${site.layer}`;
    layers.set(key, [...(layers.get(key) || []), site]);
  }
  const groups = [];
  for (const own of layers.values()) {
    const lines = linesOf(own);
    const signature = JSON.stringify(lines);
    const last = groups.at(-1);
    if (last && last.signature === signature && own[0].layer === last.last + 1) Object.assign(last, { last: own[0].layer, worst: Math.max(last.worst, worst(own)) });
    else groups.push({ signature, lines, first: own[0].layer, last: own[0].layer, worst: worst(own) });
  }
  return groups;
}

const worst = (sites) => Math.max(0, ...sites.map((site) => site.error || 0));

// One line per attention (an encoder-decoder has two in a layer), the FFN behind the last.
function linesOf(sites) {
  const kinds = [...new Set(sites.filter((site) => site.role !== "ffn").map((site) => site.kind))];
  const ffn = sites.filter((site) => site.role === "ffn");
  return kinds.map((kind, i) => {
    const own = (role) => sites.find((site) => site.role === role && site.kind === kind);
    const boxes = [part("Q", own("query")), part("K", own("key")), part("V"), part("O")];
    return { kind, boxes: i === kinds.length - 1 ? [...boxes, ...(ffn.length ? ffn.map((site, n) => part(`${t("ffn")} ${n + 1}`, site)) : [part(t("ffn"))])] : boxes };
  });
}

function part(name, site) {
  if (!site) return { name, state: "trained", detail: "", adapters: [] };
  const state = site.projection && site.projection !== "dense" ? "weightless" : site.thaws ? "thaws" : site.frozen ? "frozen" : "trained";
  const shape = (site.shape || []).join("×");
  return { name, state, detail: site.init === "keep" ? shape : site.init.replaceAll("_", " "), shape, adapters: site.adapters || [] };
}

function block(group, y, height) {
  const frame = svg("g", {}, svg("rect", { x: LEFT, y, width: WIDTH - LEFT - 2, height, rx: 8, class: "layer" }));
  const name = group.first === group.last ? t("layer", { n: group.first }) : t("layers", { first: group.first, last: group.last });
  frame.append(text(LEFT - 12, y + height / 2 - (group.first === group.last ? 0 : 7), name, "name end"));
  if (group.first !== group.last) frame.append(text(LEFT - 12, y + height / 2 + 9, `× ${group.last - group.first + 1}`, "detail end"));
  group.lines.forEach((line, i) => {
    const space = WIDTH - LEFT - 2 - GAP;
    const units = line.boxes.map((box) => (box.name.startsWith(t("ffn")) ? 1.6 : "QK".includes(box.name) ? 1.5 : 1));
    const unit = space / Math.max(6.6, units.reduce((a, b) => a + b, 0));
    let x = LEFT + GAP;
    line.boxes.forEach((box, j) => {
      frame.append(drawBox(box, x, y + GAP / 2 + 4 + i * HEIGHT, unit * units[j] - GAP, HEIGHT - 8));
      x += unit * units[j];
    });
  });
  return frame;
}

function drawBox(box, x, y, width, height) {
  const title = svg("title");
  title.textContent = [box.name, t(box.state), box.detail, box.shape, ...box.adapters.map((one) => `${t("adapter")}: ${one}`)].filter(Boolean).join(" · ");
  const group = svg("g", { class: `part ${box.state}` }, title, svg("rect", { x, y, width, height, rx: 5 }));
  if (box.state === "frozen" || box.state === "thaws") group.append(svg("rect", { x, y, width, height, rx: 5, class: "hatch" }));
  const small = box.detail && width > 60;
  group.append(text(x + width / 2, y + height / 2 + (small ? -6 : 0), box.name, "name middle"));
  if (small) group.append(text(x + width / 2, y + height / 2 + 9, clip(box.detail, Math.floor(width / 6)), "detail middle"));
  box.adapters.slice(0, 1).forEach((adapter) => {
    const label = clip(adapter, 12);
    const wide = 8 + 5.4 * label.length;
    group.append(svg("rect", { x: x + width - wide + 4, y: y - 7, width: wide, height: 14, rx: 7, class: "adapter" }), text(x + width - wide / 2 + 4, y, label, "tag middle"));
  });
  return group;
}

function bar(name, y, height) {
  return svg("g", { class: "part trained" }, svg("rect", { x: LEFT, y, width: WIDTH - LEFT - 2, height, rx: 6 }), text((LEFT + WIDTH) / 2, y + height / 2, name, "name middle"));
}

function text(x, y, words, names) {
  const element = svg("text", { x, y, class: names, dy: "0.35em" });
  element.textContent = words;
  return element;
}

function hatch() {
  return svg("defs", {}, svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: "hatch-line" })));
}

const clip = (words, most) => (words.length > most ? `${words.slice(0, most - 1)}…` : words);
