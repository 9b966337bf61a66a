// What is chosen by hand, alike in every view.

import { h } from "./dom.js";
import { metricName, t } from "./words.js";

export function picker(label, options, value, choose, name = label) {
  const entries = options.map(([key, text]) => h("option", { value: key, selected: key === value }, text));
  const list = h("select", { "aria-label": name, onchange: () => choose(list.value) }, entries);
  return h("label", { class: "picker" }, label, list);
}

// A button that is on or off; `flip` changes that and says which it is now.
export function toggle(label, on, flip) {
  const button = h("button", { type: "button", class: "toggle", "aria-pressed": String(on), onclick: () => button.setAttribute("aria-pressed", String(flip())) }, label);
  return button;
}

// Which metric over which axis, on which scales, how smooth. `change(key, value, afresh)` takes what was chosen;
// afresh, the server has to be asked again.
export function curveControls(state, metrics, metric, change, withBands) {
  const axes = ["step", "tokens", "flops", "seconds"].map((key) => {
    const press = (event) => {
      for (const other of event.currentTarget.parentElement.children) other.setAttribute("aria-pressed", String(other === event.currentTarget));
      change("x", key, true);
    };
    const on = (state.x || "step") === key;
    return h("button", { type: "button", "aria-pressed": String(on), onclick: press }, t(key === "seconds" ? "time" : key));
  });
  const scale = (label, key) => toggle(t(label), state[key] === "on", () => {
    change(key, state[key] === "on" ? "" : "on", false);
    return state[key] === "on";
  });
  const bands = () => toggle(t("bands"), state.bands !== "off", () => {
    change("bands", state.bands === "off" ? "" : "off", false);
    return state.bands !== "off";
  });
  const smooth = h("input", {
    type: "range", min: 0, max: 0.98, step: 0.02, value: state.smooth || 0, "aria-label": t("smoothing"),
    onchange: () => change("smooth", smooth.value === "0" ? "" : smooth.value, true),
  });
  return [
    picker("", metrics, metric, (value) => change("y", value, true), t("metric")),
    h("div", { class: "segments", role: "group", "aria-label": t("axis") }, axes),
    scale("log_x", "logx"), scale("log_y", "logy"), withBands ? bands() : null,
    h("label", { class: "slider" }, t("smoothing"), smooth),
  ].filter(Boolean);
}

// "validation.loss" as people say it.
export function curveName(key) {
  const [kind, ...name] = key.split(".");
  return `${t(kind)} ${metricName(name.join("."))}`;
}
