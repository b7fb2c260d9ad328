"use strict";
// Charts as SVG: lines with bands, and points with intervals. Each has a legend whose entries hide and show a line,
// a read-out that follows the pointer or the arrow keys, and buttons that save it as SVG or PNG.

const SVG = "http://www.w3.org/2000/svg";
const DIGITS = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const READ_OUT = 12; // lines in a read-out; of more, those nearest to the pointer

function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function shape(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") Object.assign(made.style, value);
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children); // text is appended as text, never as markup
  return made;
}

function scale([low, high], [from, to]) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** Round numbers within a range, about so many. */
function ticks(low, high, count) {
  const rough = (high - low || 1) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${DIGITS.format(value / 1e6)}M`;
  if (size >= 1e4) return `${DIGITS.format(value / 1e3)}k`;
  return DIGITS.format(Math.abs(value) < 1e-12 ? 0 : value);
}

function number(value) {
  return Math.abs(value) >= 1e4 ? WHOLE.format(value) : DIGITS.format(value);
}

/** Index of the value nearest to x in an ascending list. */
function nearest(list, x) {
  let low = 0;
  let high = list.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] < x) low = middle;
    else high = middle;
  }
  return x - list[low] <= list[high] - x ? low : high;
}

/** A series less another one, which is taken to be straight between its points. The spread of a difference is unknown. */
function minus(series, base) {
  const at = (x) => {
    const i = Math.max(1, base.x.findIndex((own) => own >= x));
    const [left, right] = [base.x[i - 1], base.x[i] ?? base.x[i - 1]];
    const part = right > left ? Math.min(1, Math.max(0, (x - left) / (right - left))) : 0;
    return base.y[i - 1] + part * ((base.y[i] ?? base.y[i - 1]) - base.y[i - 1]);
  };
  return { ...series, y: series.y.map((y, i) => y - at(series.x[i])), std: undefined };
}

function line(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

class Chart {
  constructor(figure, spec) {
    this.figure = figure;
    this.spec = spec;
    this.hidden = new Set();
    this.stage = element("div", { class: "stage" });
    this.heading = element("div", { class: "chart-head" }, this.title(), this.saving());
    figure.replaceChildren(this.heading, this.legend(), this.stage, ...figure.querySelectorAll("figcaption"));
    this.draw();
    this.resizing = new ResizeObserver(() => {
      if (this.stage.clientWidth !== this.width) this.draw();
    });
    this.resizing.observe(this.stage);
  }

  title() {
    const chip = this.spec.color ? [element("span", { class: "chip", style: { background: ink(this.spec) } })] : [];
    return element("h3", {}, ...chip, this.spec.title);
  }

  saving() {
    const button = (kind, save) =>
      element("button", { type: "button", onclick: save, "aria-label": `Save '${this.spec.title}' as ${kind}` }, kind);
    return element("span", { class: "save" }, button("SVG", () => this.saveSvg()), button("PNG", () => this.savePng()));
  }

  legend() {
    return element("div");
  }

  draw() {
    this.width = this.stage.clientWidth;
    if (this.width < 50) return; // not laid out yet, as in a closed part of the page
    this.stage.replaceChildren(this.picture());
  }

  /** The picture alone, with its colors, title and legend in it. */
  standalone() {
    const shown = this.stage.querySelector("svg");
    const copy = shown.cloneNode(true);
    const names = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight"];
    const originals = shown.querySelectorAll("*");
    copy.querySelectorAll("*").forEach((part, i) => {
      const style = getComputedStyle(originals[i]);
      for (const name of names) part.setAttribute(name, style.getPropertyValue(name));
    });
    copy.querySelectorAll(".cursor").forEach((part) => part.remove());
    const page = getComputedStyle(document.body);
    const entries = this.entries();
    const [top, row] = [34, 20];
    const width = +shown.getAttribute("width");
    const columns = Math.max(1, Math.floor(width / 220));
    const height = +shown.getAttribute("height") + top + row * Math.ceil(entries.length / columns) + 12;
    const inside = shape("g", { transform: `translate(0 ${top})` }, ...copy.childNodes);
    const text = { fill: page.color, "font-size": 12 };
    const whole = shape("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` },
      shape("rect", { width, height, fill: getComputedStyle(this.figure).backgroundColor }),
      shape("text", { ...text, x: 12, y: 22, "font-size": 15, "font-weight": 600 }, this.spec.title), inside);
    entries.forEach((entry, i) => {
      const x = 14 + (i % columns) * (width / columns);
      const y = height - 12 - row * (Math.ceil(entries.length / columns) - 1 - Math.floor(i / columns));
      const stroke = getComputedStyle(document.documentElement).getPropertyValue(`--${entry.color}`).trim();
      whole.append(shape("line", { x1: x, x2: x + 22, y1: y - 4, y2: y - 4, stroke, "stroke-width": 2.5, "stroke-dasharray": entry.dash }),
        shape("text", { ...text, x: x + 28, y }, entry.label));
    });
    whole.setAttribute("font-family", page.fontFamily);
    return { text: new XMLSerializer().serializeToString(whole), width, height };
  }

  entries() {
    return [];
  }

  saveSvg() {
    download(new Blob([this.standalone().text], { type: "image/svg+xml" }), `${this.spec.file}.svg`);
  }

  async savePng(factor = 2) {
    const { text, width, height } = this.standalone();
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await image.decode();
    const canvas = element("canvas", { width: width * factor, height: height * factor });
    const brush = canvas.getContext("2d");
    brush.scale(factor, factor);
    brush.drawImage(image, 0, 0);
    canvas.toBlob((blob) => download(blob, `${this.spec.file}.png`), "image/png");
  }
}

function ink(series) {
  return `var(--${series.color})`;
}

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = element("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** Lines against steps. A series has x, y and maybe std, low and high (bands), n (runs at a point), runs (single ones). */
class LineChart extends Chart {
  static band = "std"; // of all charts whose spec says that it can be chosen
  static values = "absolute"; // or "difference", from the first line of charts whose spec says `relative`

  legend() {
    const all = element("div", { class: "legend", role: "group", "aria-label": "Lines of the chart" });
    this.keys = this.spec.series.map((series, i) => {
      const sample = shape("svg", { width: 24, height: 10, "aria-hidden": "true" },
        shape("line", { x1: 1, x2: 23, y1: 5, y2: 5, "stroke-width": 3, "stroke-dasharray": series.dash, style: { stroke: ink(series) } }));
      const key = element("button", { type: "button", "aria-pressed": "true", onclick: () => this.toggle(i), ondblclick: () => this.alone(i) },
        sample, series.label);
      key.title = "Click: hide or show. Double click: this one alone, or all.";
      return key;
    });
    all.append(...this.keys);
    return all;
  }

  toggle(i) {
    if (!this.hidden.delete(i)) this.hidden.add(i);
    this.redraw();
  }

  alone(i) {
    const others = this.spec.series.map((_, j) => j).filter((j) => j !== i);
    const isAlone = !this.hidden.has(i) && others.every((j) => this.hidden.has(j));
    this.hidden = new Set(isAlone ? [] : others);
    this.redraw();
  }

  redraw() {
    this.keys.forEach((key, i) => key.setAttribute("aria-pressed", String(!this.hidden.has(i))));
    this.draw();
  }

  entries() {
    return this.visible();
  }

  visible() {
    const shown = this.spec.series.filter((_, i) => !this.hidden.has(i));
    return this.isDifference() ? shown.map((series) => minus(series, this.spec.series[0])) : shown;
  }

  isDifference() {
    return Boolean(this.spec.relative) && LineChart.values === "difference";
  }

  /** The edges of a series' band, or null. */
  band(series) {
    const kind = this.spec.choice ? LineChart.band : this.spec.band;
    if (kind === "std" && series.std) return [series.y.map((y, i) => y - series.std[i]), series.y.map((y, i) => y + series.std[i])];
    if (kind === "range" && series.low) return [series.low, series.high];
    return null;
  }

  /** The single runs of a series, where they are asked for. */
  single(series) {
    return this.spec.choice && LineChart.band === "runs" ? series.runs || [] : [];
  }

  extent() {
    if (this.spec.range) return this.spec.range;
    let [low, high] = [Infinity, -Infinity];
    for (const series of this.visible()) {
      const bands = this.band(series) || [];
      for (const values of [series.y, ...bands, ...this.single(series).map((run) => run.y)]) {
        for (const value of values) {
          low = Math.min(low, value);
          high = Math.max(high, value);
        }
      }
    }
    if (low > high) return [0, 1];
    const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [low - margin, high + margin];
  }

  picture() {
    const { width, spec } = this;
    const height = Math.round(Math.min(340, Math.max(220, width * 0.55)));
    const [low, high] = this.extent();
    const levels = ticks(low, high, Math.round(height / 55));
    const room = Math.max(...levels.map((level) => short(level).length), 2) * 7.2 + 12;
    const frame = { left: room, right: width - 14, top: 26, bottom: height - 40 };
    const all = this.visible().flatMap((series) => [series.x[0], series.x[series.x.length - 1]]);
    const across = spec.across || (all.length ? [Math.min(...all, 0), Math.max(...all)] : [0, 1]);
    const x = scale(across, [frame.left, frame.right]);
    const y = scale([low, high], [frame.bottom, frame.top]);
    this.frame = frame;
    this.x = x;
    this.y = y;
    const drawn = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img",
      "aria-label": `${spec.title}: ${spec.yLabel} against ${spec.xLabel}. Arrow keys read out the values.` });
    const grid = shape("g", { class: "axis" });
    for (const level of levels) {
      grid.append(shape("line", { class: level === 0 ? "zero" : "grid", x1: frame.left, x2: frame.right, y1: y(level), y2: y(level) }),
        shape("text", { x: frame.left - 7, y: y(level) + 4, "text-anchor": "end" }, short(level)));
    }
    for (const tick of ticks(across[0], across[1], Math.max(2, Math.round(width / 110)))) {
      grid.append(shape("line", { class: "tick", x1: x(tick), x2: x(tick), y1: frame.bottom, y2: frame.bottom + 5 }),
        shape("text", { x: x(tick), y: frame.bottom + 18, "text-anchor": tick === across[1] ? "end" : "middle" }, short(tick)));
    }
    grid.append(shape("line", { class: "base", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }),
      shape("text", { class: "label", x: frame.left, y: 13 }, this.isDifference() ? spec.relative : spec.yLabel),
      shape("text", { class: "label", x: frame.right, y: height - 5, "text-anchor": "end" }, spec.xLabel));
    for (const mark of spec.marks || []) {
      grid.append(shape("line", { class: "mark", x1: x(mark.x), x2: x(mark.x), y1: frame.top, y2: frame.bottom, "stroke-dasharray": "5 4" }),
        shape("text", { x: x(mark.x) + 4, y: frame.top + 10 }, mark.label));
    }
    drawn.append(grid, ...this.visible().map((series) => this.series(series)));
    this.listen(drawn);
    return drawn;
  }

  series(series) {
    const { x, y } = this;
    const group = shape("g", { style: { stroke: ink(series), fill: ink(series) } });
    const band = this.band(series);
    if (band) {
      const upper = series.x.map((at, i) => [x(at), y(band[1][i])]);
      const lower = series.x.map((at, i) => [x(at), y(band[0][i])]).reverse();
      group.append(shape("path", { class: "band", d: `${line([...upper, ...lower])}Z` }));
    }
    for (const run of this.single(series)) {
      group.append(shape("path", { class: "run", d: line(run.x.map((at, i) => [x(at), y(run.y[i])])) }));
    }
    const points = series.x.map((at, i) => [x(at), y(series.y[i])]);
    if (points.length === 1) return group.append(shape("circle", { class: "dot", cx: points[0][0], cy: points[0][1], r: 4 })), group;
    if (this.spec.choice && points.length <= 40) group.append(...points.map(([cx, cy]) => shape("circle", { class: "dot", cx, cy, r: 2.5 })));
    const whole = series.n ? Math.max(...series.n) : 0;
    const from = series.n ? series.n.lastIndexOf(whole) : points.length - 1;
    group.append(shape("path", { class: "line", d: line(points.slice(0, from + 1)), "stroke-dasharray": series.dash }));
    if (from < points.length - 1) group.append(shape("path", { class: "line fewer", d: line(points.slice(from)), "stroke-dasharray": "2 4" }));
    return group;
  }

  listen(drawn) {
    const stops = [...new Set(this.visible().flatMap((series) => series.x))].sort((a, b) => a - b);
    if (!stops.length) return;
    const values = stops.map(this.x);
    let at = -1;
    const show = (i, pointer) => this.readOut(drawn, stops[(at = i)], pointer);
    drawn.addEventListener("pointermove", (event) => {
      const box = drawn.getBoundingClientRect();
      show(nearest(values, event.clientX - box.left), event.clientY - box.top);
    });
    drawn.addEventListener("pointerleave", () => this.clear());
    drawn.addEventListener("blur", () => this.clear());
    drawn.addEventListener("keydown", (event) => {
      const last = stops.length - 1;
      const leap = Math.max(1, Math.round(stops.length / 10));
      const goal = { ArrowRight: at + 1, ArrowLeft: at < 0 ? last : at - 1, PageUp: at + leap, PageDown: at - leap, Home: 0, End: last }[event.key];
      if (event.key === "Escape") this.clear();
      if (goal === undefined) return;
      event.preventDefault();
      show(Math.min(last, Math.max(0, goal)), null);
      const heard = this.stage.querySelector(".read-out");
      if (heard) announce(heard.innerText);
    });
  }

  clear() {
    this.stage.querySelectorAll(".cursor, .read-out").forEach((part) => part.remove());
  }

  readOut(drawn, step, pointer) {
    this.clear();
    const { frame, x, y } = this;
    let rows = this.visible()
      .filter((series) => step >= series.x[0] && step <= series.x[series.x.length - 1])
      .map((series) => ({ series, i: nearest(series.x, step) }));
    if (!rows.length) return;
    const many = rows.length;
    const distance = (row) => Math.abs(y(row.series.y[row.i]) - (pointer ?? frame.top));
    if (many > READ_OUT) rows = rows.sort((a, b) => distance(a) - distance(b)).slice(0, READ_OUT);
    rows.sort((a, b) => b.series.y[b.i] - a.series.y[a.i]);
    const cursor = shape("g", { class: "cursor" }, shape("line", { x1: x(step), x2: x(step), y1: frame.top, y2: frame.bottom }));
    for (const { series, i } of rows) {
      cursor.append(shape("circle", { cx: x(series.x[i]), cy: y(series.y[i]), r: 4, style: { fill: ink(series) } }));
    }
    drawn.append(cursor);
    const box = element("div", { class: "read-out" }, element("b", {}, `${this.spec.xName} ${number(step)}`));
    for (const { series, i } of rows) box.append(this.readOutRow(series, i));
    if (many > rows.length) box.append(element("small", {}, `and ${many - rows.length} more`));
    this.stage.append(box);
    const left = x(step) + 14 + box.offsetWidth > this.width ? x(step) - box.offsetWidth - 14 : x(step) + 14;
    box.style.left = `${Math.max(0, left)}px`;
    box.style.top = `${frame.top}px`;
  }

  readOutRow(series, i) {
    const band = this.band(series);
    let spread = "";
    if (band) spread = `${number(band[0][i])} to ${number(band[1][i])}`;
    const count = series.n ? ` (${series.n[i]} run${series.n[i] === 1 ? "" : "s"})` : "";
    return element("div", {}, element("span", { class: "chip", style: { background: ink(series) } }),
      element("span", { class: "name" }, series.label), element("span", { class: "figure" }, number(series.y[i])),
      element("small", {}, `${spread}${count}`));
  }
}

/** Panels of points with intervals, a row for each label. */
class IntervalChart extends Chart {
  picture() {
    const { width, spec } = this;
    const row = 28;
    const longest = Math.max(...spec.panels.flatMap((panel) => panel.rows.map((entry) => entry.label.length)));
    const names = Math.min(longest * 7 + 14, width * 0.4);
    const columns = Math.max(1, Math.min(spec.panels.length, Math.floor((width - names) / 170)));
    const lines = spec.panels[0].rows.length;
    const tall = 30 + lines * row + 34;
    const height = tall * Math.ceil(spec.panels.length / columns);
    const drawn = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": this.words() });
    spec.panels.forEach((panel, i) => {
      const across = (width - names) / columns;
      const left = names + (i % columns) * across;
      const top = Math.floor(i / columns) * tall;
      const named = i % columns === 0;
      drawn.append(this.panel(panel, { left: left + 8, right: left + across - 16, top, row, names, named }));
    });
    return drawn;
  }

  panel(panel, { left, right, top, row, names, named }) {
    const ends = panel.rows.flatMap((entry) => [entry.low, entry.high, entry.point]);
    const span = Math.max(...ends) - Math.min(...ends) || 1;
    const range = panel.range || [Math.min(...ends) - span * 0.08, Math.max(...ends) + span * 0.08];
    const x = scale(range, [left, right]);
    const bottom = top + 30 + panel.rows.length * row;
    const group = shape("g", { class: "axis" }, shape("text", { class: "panel-title", x: left, y: top + 16 }, panel.title));
    for (const tick of ticks(range[0], range[1], Math.max(2, Math.floor((right - left) / 60)))) {
      group.append(shape("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top + 26, y2: bottom }),
        shape("text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, short(tick)));
    }
    if (panel.reference !== undefined) {
      group.append(shape("line", { class: "reference", x1: x(panel.reference), x2: x(panel.reference), y1: top + 26, y2: bottom }));
    }
    panel.rows.forEach((entry, i) => {
      const y = top + 30 + (i + 0.5) * row;
      if (named) group.append(shape("text", { class: "row", x: names, y: y + 4, "text-anchor": "end" }, clipped(entry.label, names)));
      const told = `${entry.label}: ${number(entry.point)}, interval ${number(entry.low)} to ${number(entry.high)}`;
      group.append(shape("g", { style: { stroke: ink(entry), fill: ink(entry) } },
        shape("title", {}, told),
        shape("rect", { class: "interval", x: x(entry.low), y: y - 7, width: Math.max(1, x(entry.high) - x(entry.low)), height: 14, rx: 2 }),
        shape("line", { class: "point", x1: x(entry.point), x2: x(entry.point), y1: y - 9, y2: y + 9 })));
    });
    return group;
  }

  words() {
    return this.spec.panels
      .map((panel) => `${panel.title}: ${panel.rows.map((entry) => `${entry.label} ${number(entry.point)}`).join(", ")}`)
      .join(". ");
  }
}

function clipped(text, room) {
  const most = Math.floor(room / 6.8);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** Says a text to those who listen to the page. */
function announce(text) {
  document.getElementById("announcer").textContent = text;
}
