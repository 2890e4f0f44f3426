// What the page draws, and how values are written. The scripts of the page share their names: this one comes first.
// Everything that comes from a run reaches the page as text nodes, never as HTML.
"use strict";

const byId = (id) => document.getElementById(id);
const failed = (message) => {
  byId("failure").textContent = `A part of this page could not be drawn: ${message}`;
  byId("failure").hidden = false;
};
window.addEventListener("error", (event) => failed(event.message));

const data = JSON.parse(byId("data").textContent);
const {runs, curves, groups} = data;
const severalRuns = runs.length !== 1;

// What was trained on what, for pictures that leave the page.
const labels = [...new Set(runs.map((run) => run.label).filter((label) => label !== ""))].join(", ");

// Colours that remain distinct for colour-blind readers (after Okabe and Ito), on light and on dark ground.
const PALETTES = {
  light: ["#0b6fb8", "#d55e00", "#00845f", "#b0479a", "#a67c00", "#2b9bd1", "#7a4fd0", "#b3263a", "#5b6675", "#6b8e23"],
  dark: ["#4fa8f0", "#ff8a3d", "#2fc797", "#e58ad0", "#e6c229", "#7fd3ff", "#b49aff", "#ff7685", "#aab6c5", "#b5d455"],
};
const DASHES = [null, [7, 4], [2, 3], [10, 3, 2, 3]];
const HOUR = 3600;

const state = {axis: "step", smoothing: 0, logarithmic: false, hidden: new Set(), filter: "", window: null, theme: "auto"};

// --- Small things ---

function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") node.className = value;
    else if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const grouped = (integer) => Math.round(integer).toLocaleString("en-US").replaceAll(",", "\u2009");
const plural = (count, word) => `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;

/** Five significant digits; an exponent where zeros would have to be counted. */
function formatValue(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "NaN";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(3).replace("e+", "e");
  if (Number.isInteger(value)) return grouped(value);
  if (size >= 1e5) return grouped(value);
  return String(Number(value.toPrecision(5)));
}

function formatSeconds(seconds) {
  if (!isNumber(seconds)) return "unknown";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

const formatTime = (seconds) =>
  new Date(seconds * 1000).toLocaleString("sv-SE", {dateStyle: "short", timeStyle: "short"});

function formatSize(bytes) {
  if (bytes < 1e3) return `${bytes} B`;
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

const isDark = () => document.documentElement.hasAttribute("data-dark");
const palette = () => PALETTES[isDark() ? "dark" : "light"];
