// Charts by plotly, which comes with the installed Python package and is loaded when a view first needs it.

import { h } from "./dom.js";

let loading = null;

export function plotly() {
  loading ||= new Promise((resolve, reject) => {
    const failed = () => reject(new Error("plotly.min.js could not be loaded; run: pip install '.[dashboard]' in your clone"));
    document.head.append(h("script", { src: "/plotly.min.js", onload: () => resolve(window.Plotly), onerror: failed }));
  });
  return loading;
}

const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#b5508c", "#7a5cc4", "#a47500", "#2a9db8", "#c2413a", "#5b8a1f", "#8b5e3c", "#4a63d0", "#0f8f7d"];
const DARK = ["#58a9e8", "#f08a4b", "#3fc193", "#e08dbb", "#a68cf0", "#e0b04a", "#5fc6de", "#f0766d", "#9cc95a", "#c79a74", "#8496f5", "#45c7b3"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];

// The baseline is ink; the others have colours in their order, and another dash once the colours are used up.
export function looks(arms) {
  const palette = isDark() ? DARK : LIGHT;
  let i = 0;
  return arms.map((arm) => {
    if (arm.is_baseline && !arms.slice(0, arms.indexOf(arm)).some((other) => other.is_baseline)) return { color: css("--ink"), dash: "solid" };
    const look = { color: palette[i % palette.length], dash: DASHES[Math.floor(i / palette.length) % DASHES.length] };
    i += 1;
    return look;
  });
}

export function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme === "dark" || (theme !== "light" && window.matchMedia("(prefers-color-scheme: dark)").matches);
}

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function faded(color, share) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${share})`;
}

function axis(title, log) {
  return {
    title: { text: plain(title), standoff: 8, font: { size: 12 } }, type: log ? "log" : "linear", automargin: true, zeroline: false,
    gridcolor: css("--line"), linecolor: css("--line"), tickfont: { size: 11, color: css("--muted") }, exponentformat: "SI", separatethousands: true, ...(log ? { nticks: 8 } : {}),
  };
}

// Labels reach plotly as plain text: it would read some HTML tags in them.
export const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

export async function draw(place, traces, { x, y, logX = false, logY = false, frame = null, legend = false, hover = "x unified", revision = "" }) {
  const Plotly = await plotly();
  if (!place.isConnected) return;
  const clear = "rgba(0,0,0,0)";
  const layout = {
    margin: { l: 8, r: 12, t: 12, b: 8 }, paper_bgcolor: clear, plot_bgcolor: clear, dragmode: "zoom", hovermode: hover, uirevision: revision,
    showlegend: legend, legend: { x: 1, y: 1, xanchor: "right", yanchor: "top", orientation: "h", bgcolor: clear },
    font: { family: css("--font"), size: 12, color: css("--ink") },
    hoverlabel: { bgcolor: css("--surface"), bordercolor: css("--line"), font: { size: 12, color: css("--ink") }, namelength: 40 },
    xaxis: axis(x, logX), yaxis: { ...axis(y, logY), ...(frame ? { range: frame } : {}) },
  };
  await Plotly.react(place, traces, layout, { displayModeBar: false, responsive: true, doubleClick: "reset+autosize" });
}

// Buttons that save what is drawn, on paper rather than on the page's own background.
export function downloads(place, name, csv) {
  const save = async (format) => {
    const Plotly = await plotly();
    const paper = {
      ...place.layout, paper_bgcolor: css("--surface"), plot_bgcolor: css("--surface"), margin: { l: 60, r: 20, t: 30, b: 60 },
      showlegend: place.data.filter((trace) => trace.showlegend !== false).length < 20, legend: { orientation: "h", y: -0.25 },
    };
    const scale = format === "png" ? 2 : 1;
    await Plotly.downloadImage({ data: place.data, layout: paper }, { format, filename: name, width: 1000, height: 600, scale });
  };
  return h("div", { class: "downloads" },
    h("button", { type: "button", class: "small", onclick: () => save("png") }, "PNG"),
    h("button", { type: "button", class: "small", onclick: () => save("svg") }, "SVG"),
    csv ? h("a", { class: "button small", href: csv(), download: `${name}.csv`, onclick: (event) => event.currentTarget.setAttribute("href", csv()) }, "CSV") : null);
}
