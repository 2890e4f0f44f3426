// Figures of few points, as SVG: lines over a few places of the x axis, and parallel coordinates. Their colours are
// variables of the style sheet, so that they follow the theme.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

const colorOf = (index) => `var(--color${index % PALETTES.light.length})`;
const tooltip = (text) => svg("title", {}, text);

/** Numbers of one, two or five times a power of ten that divide a range into about so many parts. */
function roundTicks(low, high, parts) {
  const raw = (high - low) / parts;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) ticks.push(i * step);
  return ticks;
}

/**
 * Where the values of an option or metric lie on an axis, from 0 to 1. Few different values get a place each, in their
 * order; many numbers lie by size, or by magnitude where they span a lot.
 */
class Scale {
  constructor(texts) {
    const given = [...new Set(texts.filter((text) => text !== ""))];
    this.isNumeric = given.every((text) => text.trim() !== "" && isFinite(Number(text)));
    given.sort((a, b) => this.isNumeric ? Number(a) - Number(b) : a < b ? -1 : 1);
    this.values = given;
    this.hasPlaces = !this.isNumeric || given.length <= 8;
    if (this.hasPlaces) {
      this.ticks = given.map((text, i) => ({text, at: this.place(i)}));
      return;
    }
    const low = Number(given[0]);
    const high = Number(given[given.length - 1]);
    this.isLogarithmic = low > 0 && high / low >= 50;
    this.of = this.isLogarithmic ? Math.log10 : (value) => value;
    [this.low, this.high] = [this.of(low), this.of(high)];
    const powers = [];
    for (let power = Math.ceil(this.low - 1e-9); power <= this.high + 1e-9; ++power) powers.push(10 ** power);
    const ticks = this.isLogarithmic && powers.length >= 2 ? powers : this.isLogarithmic ? [low, high] : roundTicks(low, high, 4);
    this.ticks = ticks.map((value) => ({text: formatValue(Number(value.toPrecision(6))), at: this.at(String(value))}));
  }

  place(index) {
    return this.values.length === 1 ? 0.5 : index / (this.values.length - 1);
  }

  /** null where a run has no value. */
  at(text) {
    if (text === "") return null;
    if (this.hasPlaces) return this.place(this.values.indexOf(text));
    return (this.of(Number(text)) - this.low) / (this.high - this.low);
  }
}

/**
 * A figure of lines and points: x has {title, ticks: [{text, at}]} with places from 0 to 1; y has {title, low, high};
 * a series has {name, color, points: [{x, y, text, run}], dashed, bare}.
 */
function lineFigure({title, x, y, series, legend = true}) {
  const caption = shortened(labels, 66);
  const width = 460, height = 300;
  const frame = {left: 62, right: 18, top: caption ? 46 : 30, bottom: 48};
  const inner = {width: width - frame.left - frame.right, height: height - frame.top - frame.bottom};
  const pad = 0.06;
  const placeX = (at) => frame.left + (pad + at * (1 - 2 * pad)) * inner.width;
  const span = y.high > y.low ? y.high - y.low : 1;
  const placeY = (value) => frame.top + (1 - (value - y.low) / span) * inner.height;
  const node = svg("svg", {class: "figure", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title});
  node.append(svg("text", {class: "figure-title", x: frame.left, y: 16}, title));
  if (caption) node.append(svg("text", {class: "figure-caption", x: frame.left, y: 33}, caption));
  for (const value of roundTicks(y.low, y.low + span, 5)) {
    node.append(svg("line", {class: "figure-grid", x1: frame.left, x2: width - frame.right, y1: placeY(value), y2: placeY(value)}),
      svg("text", {class: "figure-tick", x: frame.left - 6, y: placeY(value) + 4, "text-anchor": "end"}, formatValue(Number(value.toPrecision(6)))));
  }
  for (const tick of x.ticks)
    node.append(svg("line", {class: "figure-grid", x1: placeX(tick.at), x2: placeX(tick.at), y1: frame.top, y2: height - frame.bottom}),
      svg("text", {class: "figure-tick", x: placeX(tick.at), y: height - frame.bottom + 16, "text-anchor": "middle"}, shortened(tick.text, 14)));
  node.append(svg("text", {class: "figure-axis", x: frame.left + inner.width / 2, y: height - 10, "text-anchor": "middle"}, x.title),
    svg("text", {class: "figure-axis", transform: `translate(14 ${frame.top + inner.height / 2}) rotate(-90)`, "text-anchor": "middle"}, y.title));
  let row = 0;
  for (const line of series) {
    const points = line.points.filter((point) => isNumber(point.y) && point.x !== null);
    const color = line.dashed ? "var(--quiet)" : colorOf(line.color);
    if (!line.bare && points.length > 1)
      node.append(svg("polyline", {class: "figure-line", points: points.map((point) => `${placeX(point.x)},${placeY(point.y)}`).join(" "),
        style: `stroke: ${color}`, "stroke-dasharray": line.dashed ? "6 4" : "none"}));
    if (!line.dashed)
      for (const point of points)
        node.append(svg("circle", {class: "figure-point", cx: placeX(point.x), cy: placeY(point.y), r: 4, style: `fill: ${color}`,
          ...(point.run === undefined ? {} : {"data-row": point.run})}, tooltip(`${line.name ? line.name + ": " : ""}${point.text}`)));
    if (!legend || series.length < 2) continue;
    const at = frame.top + 12 + 16 * row++;
    node.append(svg("line", {class: "figure-line", x1: frame.left + 10, x2: frame.left + 30, y1: at - 4, y2: at - 4, style: `stroke: ${color}`, "stroke-dasharray": line.dashed ? "6 4" : "none"}),
      svg("text", {class: "figure-tick", x: frame.left + 36, y: at}, shortened(line.name, 48)));
  }
  return node;
}

const shortened = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;

/** Parallel coordinates: `axes` are {title, scale}; `lines` are {row, values, share, text}, share from 0 (bad) to 1 (good). */
function parallelFigure(title, axes, lines) {
  const width = Math.max(900, 150 * axes.length), height = 360;
  const frame = {left: 70, right: 90, top: 84, bottom: 24};
  const inner = {width: width - frame.left - frame.right, height: height - frame.top - frame.bottom};
  const placeX = (index) => frame.left + (axes.length === 1 ? 0.5 : index / (axes.length - 1)) * inner.width;
  const placeY = (at) => frame.top + (1 - at) * inner.height;
  const node = svg("svg", {class: "figure wide-figure", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title});
  node.append(svg("text", {class: "figure-title", x: 14, y: 18}, title), svg("text", {class: "figure-caption", x: 14, y: 35}, shortened(labels, 120)));
  // The good ones are drawn last, on top.
  for (const line of [...lines].sort((a, b) => (a.share ?? -1) - (b.share ?? -1))) {
    const points = line.values.map((value, i) => [value, i]).filter(([value]) => value !== null);
    if (points.length === 0) continue;
    const color = line.share === null ? "var(--quiet)" : `color-mix(in oklab, var(--color0) ${Math.round(100 * line.share)}%, var(--color1))`;
    node.append(svg("polyline", {class: "figure-line parallel", points: points.map(([value, i]) => `${placeX(i)},${placeY(value)}`).join(" "),
      style: `stroke: ${color}`, "stroke-dasharray": line.share === null ? "4 4" : "none", "data-row": line.row}, tooltip(line.text)));
  }
  axes.forEach(({title: name, scale}, i) => {
    node.append(svg("line", {class: "figure-axis-line", x1: placeX(i), x2: placeX(i), y1: frame.top, y2: height - frame.bottom}),
      svg("text", {class: "figure-axis", x: placeX(i), y: frame.top - (i % 2 === 1 && axes.length > 5 ? 28 : 12), "text-anchor": "middle"}, shortened(name, 26), tooltip(name)));
    for (const tick of scale.ticks)
      node.append(svg("text", {class: "figure-tick halo", x: placeX(i) + 6, y: placeY(tick.at) + 4}, shortened(tick.text, 14)));
  });
  return node;
}
