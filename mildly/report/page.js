"use strict";
// The page around the charts: drawing when they come into view, sorting, filtering and saving tables, light and dark.

const DATA = JSON.parse(document.getElementById("chart-data").textContent);
const CHARTS = new Map();

function drawChart(figure) {
  if (CHARTS.has(figure)) return;
  const spec = DATA[figure.dataset.chart];
  CHARTS.set(figure, spec.kind === "interval" ? new IntervalChart(figure, spec) : new LineChart(figure, spec));
}

function watchCharts() {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      drawChart(entry.target);
    }
  }, { rootMargin: "400px" });
  document.querySelectorAll("figure[data-chart]").forEach((figure) => seen.observe(figure));
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((part) => (part.open = true));
    document.querySelectorAll("figure[data-chart]").forEach(drawChart);
  });
}

/** Radio buttons that change all charts of a kind at once. */
function choose(name, isMeant) {
  document.querySelectorAll(`input[name=${name}]`).forEach((choice) => {
    choice.addEventListener("change", () => {
      LineChart[name] = choice.value;
      for (const chart of CHARTS.values()) if (isMeant(chart.spec)) chart.draw();
    });
  });
}

function worth(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value ?? cell.textContent.trim();
}

/** Sorts a table by a column: numbers first by size, then texts; a second click turns the order round. */
function sortBy(header) {
  const table = header.closest("table");
  const column = header.cellIndex;
  const numeric = header.classList.contains("number");
  const current = header.getAttribute("aria-sort");
  const order = current ? (current === "ascending" ? "descending" : "ascending") : numeric ? "descending" : "ascending";
  table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", order);
  const turn = order === "ascending" ? 1 : -1;
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [row, worth(row, column)]);
  const collator = new Intl.Collator("en", { numeric: true });
  rows.sort(([, a], [, b]) => {
    if (a === "" || b === "") return (a === "") - (b === ""); // what is unknown stays at the end
    return turn * (numeric ? Number(a) - Number(b) : collator.compare(a, b));
  });
  body.append(...rows.map(([row]) => row));
}

function asCsv(table) {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const lines = [...table.rows].filter((row) => !row.hidden).map((row) =>
    [...row.cells].map((cell) => quoted((cell.dataset.csv ?? cell.textContent).trim().replace(/\s+/g, " "))).join(","));
  return `${lines.join("\r\n")}\r\n`;
}

function equipTables() {
  document.querySelectorAll("table.sortable thead th").forEach((header) => {
    const button = element("button", { type: "button", onclick: () => sortBy(header) }, ...header.childNodes);
    header.append(button);
  });
  document.querySelectorAll("button[data-save]").forEach((button) => {
    const table = document.getElementById(button.dataset.save);
    button.addEventListener("click", () => download(new Blob([asCsv(table)], { type: "text/csv" }), `${table.id}.csv`));
  });
  document.querySelectorAll("input[data-filter]").forEach((input) => {
    const rows = [...document.getElementById(input.dataset.filter).tBodies[0].rows];
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    });
  });
}

function equipTheme() {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const name = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colors`);
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  prefersDark.addEventListener("change", name);
  name();
}

equipTheme();
equipTables();
choose("band", (spec) => spec.choice);
choose("values", (spec) => spec.relative);
watchCharts();
