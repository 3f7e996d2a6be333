// Measured recall of versions over its cost or its target, with the points in use and the live estimate.

import { html } from "../vendor/preact.js";
import { Chart } from "./chart.js";
import { count, number } from "./values.js";
import { route, setParams } from "../route.js";

const percent = (value) => `${number(value * 100)} %`;

/** Returns x where a curve has a target, between its points; null beyond them. */
function between(points, target, x) {
  const next = points.findIndex((point) => point.target >= target);
  if (next < 0) return null;
  const [low, high] = [points[Math.max(0, next - 1)], points[next]];
  const share = high.target > low.target ? (target - low.target) / (high.target - low.target) : 0;
  return x(low) + (x(high) - x(low)) * Math.max(0, share);
}

/** Returns `[x, recall]` of the points that no cheaper one exceeds: measured times of targets near to each other are in no order. */
function frontier(points) {
  const sorted = points.map((point) => [point.queryUs, point.recall]).sort(([a], [b]) => a - b);
  return sorted.filter(([, recall], i) => i === 0 || recall > Math.max(...sorted.slice(0, i).map(([, each]) => each)));
}

/** `versions`: VersionInfo with curves; `served`: number of that which answers searches; `live`: its estimate, or null. */
export function Curves({ versions, served, live }) {
  const { params } = route.value;
  const names = [...new Set(versions.flatMap(({ curves }) => curves.map(({ name }) => name)))];
  if (!names.length) return html`<p>All segments are searched exactly: recall is 100 %, and there is no curve.</p>`;
  const vectors = names.includes(params.get("vectors") ?? "") ? params.get("vectors") ?? "" : names[0];
  const isByTarget = params.get("x") !== "time";
  const x = isByTarget ? (point) => point.target : (point) => point.queryUs;
  const shown = versions.map((version) => ({ ...version, curve: version.curves.find(({ name }) => name === vectors) }));
  const marks = shown.flatMap(({ version, curve, recall }, line) => {
    const point = curve?.points.find(({ target }) => vectors === "" && recall && Math.abs(target - recall.target) < 1e-9);
    const inUse = point ? [{ x: x(point), y: point.recall, error: point.error, line, title: `version ${version}, in use: target ${percent(point.target)}, expected ${percent(point.recall)}` }] : [];
    const at = live && vectors === "" && version === served && curve ? between(curve.points, live.effective, x) : null;
    return at === null ? inUse : [...inUse, { x: at, y: live.now, error: live.error, line: 3, title: `live: ${percent(live.now)} ± ${percent(live.error)}` }];
  });
  const lines = shown.map(({ version, curve, recall }, i) => {
    const dots = (curve?.points ?? []).map((point) => [x(point), point.recall]);
    return { name: `version ${version}`, value: vectors === "" ? recall?.measured : undefined, isDashed: i > 0, dots, points: isByTarget ? dots : frontier(curve?.points ?? []) };
  });
  return html`<div class="line">
      <label>over <select value=${isByTarget ? "" : "time"} onChange=${(e) => setParams({ x: e.target.value }, { replace: true })}><option value="">target recall</option><option value="time">time of a query on one core</option></select></label>
      ${names.length > 1 && html`<label>vectors <select value=${vectors} onChange=${(e) => setParams({ vectors: e.target.value }, { replace: true })}>${names.map((name) => html`<option value=${name}>${name || "unnamed"}</option>`)}</select></label>`}
    </div>
    <${Chart} title="Recall" lines=${lines} marks=${marks} shown=${percent} shownX=${isByTarget ? percent : (us) => `${number(us)} µs`} rowTitle=${isByTarget ? "target" : "µs"}>
      <p class="small dim">◯ settings in use${marks.some(({ line }) => line === 3) ? `; violet: what live queries had lately, ${percent(live.now)} ± ${percent(live.error)}, with a target of ${percent(live.effective)} to reach ${percent(live.target)}` : ""}.</p>
      <details class="small"><summary>as a table</summary><div class="scroll" tabindex="0"><table><thead><tr><th scope="col">version</th><th scope="col">target</th><th scope="col">recall</th><th scope="col">time</th><th scope="col">leaves</th><th scope="col">searched exactly</th></tr></thead>
        <tbody>${shown.flatMap(({ version, curve }) => (curve?.points ?? []).map((point) => html`<tr><th scope="row">${version}</th><td>${percent(point.target)}</td><td>${percent(point.recall)} ± ${percent(point.error)}</td>
          <td>${number(point.queryUs)} µs</td><td>${count(point.leaves)}</td><td>${count(point.exactRows)} datapoints</td></tr>`))}</tbody></table></div></details>
    <//>
    ${shown.some(({ curve }) => !curve) && html`<p class="dim small">${shown.filter(({ curve }) => !curve).map(({ version }) => `Version ${version}`).join(" and ")}: searched exactly, so without a curve.</p>`}`;
}
