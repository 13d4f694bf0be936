"use strict";

/* What all scripts share: colours of the theme, patterns, and small helpers. */
const page = {};

page.read = (id) => JSON.parse(document.getElementById(id).textContent);
page.house = page.read("looks");

page.make = (tag, attributes = {}, ...inside) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
};

page.isDark = () => {
  if (page.printing) return false;
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

/* The colours of the theme, as page.css has them. */
page.ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

page.rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/* A line's colour that can be told from the ground: dark ones are lightened on a dark one. */
page.line = (hex) => {
  if (!page.isDark()) return hex;
  const light = page.rgb(hex).reduce((sum, part, at) => sum + part * [0.3, 0.59, 0.11][at], 0);
  if (light > 110) return hex;
  const mixed = page.rgb(hex).map((part) => Math.round(part + (255 - part) * (1 - light / 255) * 0.75));
  return `rgb(${mixed.join(",")})`;
};

page.series = (number) => page.line(page.house.series[number % page.house.series.length]);
page.symbols = ["circle", "rect", "triangle", "diamond", "pin", "arrow", "roundRect"];

/* Matplotlib's hatches as ECharts' decals; the pattern repeats what the colour says. */
page.decal = (hatch, color) => {
  const line = { color, dashArrayX: [1, 0], dashArrayY: [1, 5], symbol: "rect" };
  const kinds = {
    "/": { ...line, rotation: -Math.PI / 4 },
    "\\": { ...line, rotation: Math.PI / 4 },
    "|": { ...line, rotation: Math.PI / 2 },
    "-": { ...line, rotation: 0 },
    ".": { color, symbol: "circle", dashArrayX: [[3, 5]], dashArrayY: [3, 5], symbolSize: 0.8 },
    "x": { color, symbol: "diamond", dashArrayX: [[3, 4]], dashArrayY: [4, 3], symbolSize: 0.8 },
    "+": { color, symbol: "triangle", dashArrayX: [[4, 4]], dashArrayY: [4, 4], symbolSize: 0.7 },
  };
  return hatch ? kinds[hatch[0]] : undefined;
};

/* Numbers as people write them: four digits, and no 1e-7. */
page.number = (value) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e4) return Math.round(value).toLocaleString("en-US");
  if (size < 1e-4) return value.toExponential(3);
  return String(Number(value.toPrecision(4)));
};

page.short = (value) => {
  for (const [scale, letter] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (Math.abs(value) >= scale) return page.number(value / (letter === " k" ? 1e3 : scale)) + letter;
  }
  return page.number(value);
};

page.isNarrow = () => innerWidth < 640;
