// The filter of a view: chips, values with counts, and the JSON of the SDK's form with the error at its key.

import { html, useState } from "../vendor/preact.js";
import { call, post } from "../calls.js";
import { Problem, useLoaded } from "./load.js";
import { bare, count, number, plain, shown, withValue } from "./values.js";

const FACETS = 8;
/** Attributes that show their values at once; each costs a call for each change of the filter. */
const OPEN = 8;
const LISTED = ["string", "string_list", "bool"];

const typeName = (type) => String(type).replace("ATTRIBUTE_TYPE_", "").toLowerCase();

/** Returns the filter of an address, `{}` for none, and its text if that is no JSON object. */
export function parseWhere(text) {
  if (!text) return { where: bare() };
  try {
    const where = JSON.parse(text);
    if (where && typeof where === "object" && !Array.isArray(where)) return { where: bare(where) };
  } catch { /* as it stands */ }
  return { where: bare(), wrong: "is no JSON object" };
}

/** Returns the `Filter` message of a filter, as `useLoaded` does; the value is undefined for an empty one. */
export function useFilter(where) {
  const text = JSON.stringify(where);
  const loaded = useLoaded((signal) => (text === "{}" ? undefined : post("/filter", where, { signal })), [text]);
  return { ...loaded, ready: loaded.text === undefined && !loaded.busy };
}

const focusOn = (element) => element?.focus();

/** The conditions, each with a button that takes it away, and a field for JSON. */
export function FilterBar({ where, error, onChange }) {
  const [text, setText] = useState(null);
  const [wrong, setWrong] = useState("");
  const without = (name) => Object.fromEntries(Object.entries(where).filter(([key]) => key !== name));
  const take = (event) => {
    event.preventDefault();
    const parsed = parseWhere(text.trim());
    setWrong(parsed.wrong ?? "");
    if (parsed.wrong) return;
    setText(null);
    onChange(parsed.where);
  };
  return html`<div class="chips" role="group" aria-label="Filter">
    ${Object.entries(where).map(([name, value]) => html`<button class="chip" title="take away" onClick=${() => onChange(without(name))}>
      ${name}: <bdi>${shown(value?.$in ?? value)}</bdi> <span aria-hidden="true">✕</span></button>`)}
    ${text === null
      ? html`<button class="quiet" id="filter" onClick=${() => setText(Object.keys(where).length ? JSON.stringify(where) : "")}>filter …</button>`
      : html`<form onSubmit=${take} class="grow">
          <input aria-label="Filter as JSON" class="grow" ref=${focusOn} value=${text} placeholder='{"year": {"$gte": 2020}}' onInput=${(e) => setText(e.target.value)} />
          <button>Apply</button><button type="button" class="quiet" onClick=${() => setText(null)}>Cancel</button></form>`}
    ${(wrong || error) && html`<span class="problem" role="alert">${wrong || error.message}</span>`}
  </div>`;
}

/** Values of the attributes with their numbers of datapoints under the filter; a click narrows it. */
export function Facets({ index, attributes, where, filter, onChange }) {
  const names = Object.keys(attributes).sort();
  const listed = names.filter((name) => LISTED.includes(typeName(attributes[name])));
  return html`<div class="facets">${names.map((name) => html`<${Attribute} key=${name} index=${index} name=${name}
    type=${typeName(attributes[name])} isFirst=${listed.indexOf(name) >= 0 && listed.indexOf(name) < OPEN} where=${where} filter=${filter} onChange=${onChange} />`)}</div>`;
}

function Attribute({ index, name, type, isFirst, where, filter, onChange }) {
  const [isOpen, setOpen] = useState(isFirst);
  // What an attribute's values would be without its own condition.
  const depends = [index, name, isOpen, JSON.stringify(filter ?? null)];
  const isListed = LISTED.includes(type);
  const { value, error } = useLoaded(async (signal) => isOpen && (isListed
    ? call("SearchService/Facets", { index, attribute: name, limit: FACETS, where: filter }, { signal })
    : call("SearchService/AttributeStats", { index, attribute: name, where: filter, quantiles: [0.25, 0.5, 0.75] }, { signal })), depends);
  const stats = value?.types?.[0];
  const bound = (operator, text) => {
    const { [operator]: _, ...others } = typeof where[name] === "object" && !Array.isArray(where[name]) ? where[name] ?? {} : {};
    const condition = text === "" ? others : { ...others, [operator]: type === "timestamp" ? text : Number(text) };
    const { [name]: __, ...before } = where;
    onChange(Object.keys(condition).length ? { ...before, [name]: condition } : before);
  };
  const kind = type === "timestamp" ? "date" : "number";
  const field = (operator, label) => html`<label class="small">${label} <input type=${kind} step="any" value=${where[name]?.[operator] ?? ""}
    onChange=${(event) => bound(operator, event.target.value)} /></label>`;
  return html`<details open=${isOpen} onToggle=${(event) => setOpen(event.target.open)}><summary>${name} <span class="dim">${type}</span></summary>
    ${error && html`<${Problem} error=${error} />`}
    ${value?.facets && html`<ul>${value.facets.map((facet) => html`<li><button class="value" onClick=${() => onChange(withValue(where, name, plain(facet.value)))}>
      <bdi>${shown(plain(facet.value))}</bdi> <span class="dim">${count(facet.count)}</span></button></li>`)}
      ${Number(value.distinct) > value.facets.length && html`<li class="dim small">${count(value.distinct)} values</li>`}</ul>`}
    ${stats && html`<p class="small dim">${shown(plain(stats.min) ?? null)} to ${shown(plain(stats.max))}${stats.quantiles?.[1] && html`, half below ${typeof plain(stats.quantiles[1]) === "number" ? number(plain(stats.quantiles[1])) : shown(plain(stats.quantiles[1]))}`}</p>
      ${["int", "float", "timestamp"].includes(type) && html`<div class="line">${field("$gte", "from")} ${field("$lte", "to")}</div>`}`}
  </details>`;
}
