// The original study's claims: what was published, what follows from it, what we measured, and the verdict.

import { ask, empty, h, keep } from "./dom.js";
import { TITLES } from "./claims.zh.js";
import { language, t, word } from "./words.js";

export function claims(view, board, state) {
  let found = [];
  let closed = false;

  function draw() {
    const names = [...new Set(found.map((one) => one.verdict))];
    const choose = (name) => {
      state.verdict = state.verdict === name ? "" : name;
      keep("claims", state);
      draw();
    };
    const count = (name) => found.filter((one) => one.verdict === name).length;
    const chip = (name) => h("button", { type: "button", class: `chip ${look(name)}`, "aria-pressed": String(state.verdict === name), onclick: () => choose(name) },
      h("i", { class: "dot" }), ` ${count(name)} ${word(name)}`);
    const shown = found.filter((one) => !state.verdict || one.verdict === state.verdict);
    view.replaceChildren(h("h1", {}, t("claims_title")), h("p", { class: "lead" }, t("claims_text")),
      h("div", { class: "bar" }, h("div", { class: "chips", role: "group" }, names.map(chip))), h("div", { class: "claims" }, shown.map(claim)));
  }

  function claim(one) {
    const lines = ["published", "follows", "ours", "reason"].filter((key) => one[key]);
    return h("article", { class: "claim" },
      h("div", { class: "claim-head" }, h("span", { class: `verdict ${look(one.verdict)}` }, word(one.verdict)), h("h2", {}, (language() === "zh" && TITLES[one.id]) || one.claim)),
      h("dl", {}, lines.flatMap((key) => [h("dt", {}, t(key)), h("dd", { class: key }, one[key])])));
  }

  async function load() {
    try {
      found = await ask("/api/claims");
      if (!closed) draw();
    } catch (error) {
      if (!closed) view.replaceChildren(empty(t("failed", { why: error.message })));
    }
  }

  load();
  return { update: ({ results }) => results && load(), close: () => { closed = true; } };
}

const look = (verdict) => verdict.replaceAll(" ", "-");
