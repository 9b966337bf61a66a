// Small tools for making the page. Text always goes in as text: run names, logs and configs are somebody else's words.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "style") for (const [key, rule] of Object.entries(value)) element.style.setProperty(key, rule);
  else if (["value", "checked", "selected", "disabled", "indeterminate"].includes(name)) element[name] = value;
  else element.setAttribute(name, value === true ? "" : value);
}

export async function ask(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const words = new URLSearchParams(given).toString();
  let answer;
  try {
    answer = await fetch(words ? `${path}?${words}` : path, { headers: { Accept: "application/json" } });
  } catch {
    throw Object.assign(new Error("unreachable"), { unreachable: true });
  }
  if (answer.status === 401) throw Object.assign(new Error(await answer.text()), { status: 401 });
  const content = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  if (!answer.ok) throw Object.assign(new Error(content.error || answer.statusText), { status: answer.status });
  return content;
}

// The address: "#/compare?x=tokens" is the view "compare" with a state that can be sent to a colleague.

export function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").map(decodeURIComponent), state: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(path, state = {}) {
  const given = Object.entries(state).filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  const query = new URLSearchParams(given).toString();
  return `#/${path}${query ? `?${query}` : ""}`;
}

// Keep the state in the address without a new entry in the history and without drawing everything anew.
export function keep(path, state) {
  history.replaceState(null, "", link(path, state));
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function compact(value) {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString("en-US", { notation: "compact", maximumFractionDigits: 1 });
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (n) => String(n).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const unit = value >= 2 ** 30 ? ["GiB", 2 ** 30] : value >= 2 ** 20 ? ["MiB", 2 ** 20] : ["KiB", 2 ** 10];
  return `${number(value / unit[1], 1)} ${unit[0]}`;
}

export function empty(title, ...lines) {
  return h("div", { class: "empty" }, h("h2", {}, title), lines.map((line) => h("p", {}, line)));
}
