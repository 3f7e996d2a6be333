// Colours of points: a category for each of the most frequent values, steps for numbers and scores.

import { shown } from "../../parts/values.js";

export const OTHER = [140, 146, 153];
const CATEGORIES = [[78, 121, 167], [242, 142, 43], [225, 87, 89], [92, 182, 174], [89, 161, 79], [214, 178, 40], [176, 122, 161], [156, 117, 95]];
// From low to high, seen on light and on dark.
const STEPS = [[101, 84, 172], [64, 112, 190], [52, 150, 188], [82, 178, 150], [130, 188, 92], [190, 180, 56], [232, 156, 52], [222, 92, 62]];

/** Returns `{colours, palette, legend}` without a choice: a colour number of each row of the map. */
export function plainColours(count) {
  return { colours: new Uint8Array(count).fill(1), palette: [OTHER, CATEGORIES[0]], legend: [] };
}

/** Returns the same by an attribute `{values, codes}`. */
export function coloursOf({ values, codes }) {
  const counts = new Uint32Array(values.length + 1);
  for (const code of codes) counts[code]++;
  const isNumeric = values.length > CATEGORIES.length && values.every((value) => typeof value === "number");
  const isTime = values.length > CATEGORIES.length && values.every((value) => typeof value === "string" && /^\d{4}-\d\d-\d\dT/.test(value));
  return isNumeric || isTime ? stepsOf(values, codes, counts, isTime) : categoriesOf(values, codes, counts);
}

function categoriesOf(values, codes, counts) {
  const totals = new Map();
  values.forEach((value, i) => [value].flat().forEach((each) => totals.set(each, (totals.get(each) ?? 0) + counts[i + 1])));
  const top = [...totals].sort((a, b) => b[1] - a[1]).slice(0, CATEGORIES.length).map(([value]) => value);
  // Of a list, the first that has a colour.
  const numbers = Uint8Array.from([0, ...values.map((value) => 1 + top.indexOf([value].flat().find((each) => top.includes(each))))]);
  const legend = top.map((value, i) => ({ colour: CATEGORIES[i], label: shown(value), value, count: totals.get(value) }));
  if (totals.size > top.length || counts[0]) legend.push({ colour: OTHER, label: "other" });
  return { colours: Uint8Array.from(codes, (code) => numbers[code]), palette: [OTHER, ...CATEGORIES], legend };
}

function stepsOf(values, codes, counts, isTime) {
  const order = values.map((value, i) => i).sort((a, b) => (values[a] < values[b] ? -1 : 1));
  const total = codes.length - counts[0];
  const numbers = new Uint8Array(values.length + 1), bounds = [];
  let before = 0;
  for (const i of order) {
    const step = Math.min(STEPS.length - 1, Math.floor((STEPS.length * before) / total));
    numbers[i + 1] = step + 1;
    bounds[step] ??= values[i];
    before += counts[i + 1];
  }
  const label = (value) => (isTime ? value.slice(0, 10) : shown(value));
  const legend = STEPS.map((colour, i) => ({ colour, label: `from ${label(bounds[i] ?? "")}` })).filter((_, i) => bounds[i] !== undefined);
  if (counts[0]) legend.push({ colour: OTHER, label: "none" });
  return { colours: Uint8Array.from(codes, (code) => numbers[code]), palette: [OTHER, ...STEPS], legend };
}

/** Returns the same by the scores of hits, the best first; rows without one are grey. */
export function coloursOfHits(ids, hits) {
  const ranks = new Map(hits.map((hit, rank) => [hit.datapoint.id, rank]));
  const step = (rank) => Math.max(0, STEPS.length - 1 - Math.floor((STEPS.length * rank) / Math.max(1, hits.length)));
  const colours = Uint8Array.from(ids, (id) => (ranks.has(id) ? 1 + step(ranks.get(id)) : 0));
  const number = (hit) => hit?.score?.toPrecision(3);
  return {
    colours, palette: [OTHER, ...STEPS],
    legend: [{ colour: STEPS.at(-1), label: `best, ${number(hits[0])}` }, { colour: STEPS[0], label: `hit ${hits.length}, ${number(hits.at(-1))}` }, { colour: OTHER, label: "no hit" }],
  };
}
