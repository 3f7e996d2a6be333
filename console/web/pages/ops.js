// How the server does: what it measured of itself while somebody looked, and what the caller may do.

import { html, useRef, useState } from "../vendor/preact.js";
import { isOvertaken, post } from "../calls.js";
import { useCaller } from "../parts/caller.js";
import { Chart } from "../parts/chart.js";
import { useEvery } from "../parts/every.js";
import { useIndexes } from "../parts/indexes.js";
import { Problem, useLoaded } from "../parts/load.js";
import { bytes, count, number } from "../parts/values.js";
import { Link, address, route, setParams } from "../route.js";

const SPANS = { minutes: { title: "15 minutes", seconds: 900, step: 1 }, day: { title: "24 hours", seconds: 86400, step: 60 } };
const PERCENT = (value) => `${number(value * 100)} %`;
const MS = (value) => `${number(value)} ms`;

/** The page. */
export function Operations() {
  const { params } = route.value;
  const span = params.get("span") in SPANS ? params.get("span") : "minutes";
  const index = params.get("index") ?? "";
  const { value: indexes } = useIndexes();
  const caller = useCaller();
  const names = (indexes ?? []).map(({ name }) => name);
  return html`<main class="page ops"><h1>Operations</h1>
    <div class="line">
      <label>times <select value=${span} onChange=${(e) => setParams({ span: e.target.value === "minutes" ? "" : e.target.value })}>
        ${Object.entries(SPANS).map(([name, { title }]) => html`<option value=${name}>${title}</option>`)}</select></label>
      <label>index <select value=${index} onChange=${(e) => setParams({ index: e.target.value })}>
        <option value="">all</option>${[...new Set([...names, index].filter(Boolean))].map((name) => html`<option>${name}</option>`)}</select></label>
    </div>
    <${Problem} error=${caller.error} />
    ${caller.value && (caller.value.serverRole === "embedded"
      ? html`<p>The console has opened this store in its own process, which measures nothing. Serve it, and give the console its address:</p>
          <pre>scannery serve --store STORE --console 127.0.0.1:7090</pre>`
      : caller.admin ? html`<${Measured} key=${`${span} ${index}`} span=${span} index=${index} />`
        : html`<p>What a server measures is for keys with the scope <code>admin</code>; yours has ${caller.value.scopes.join(", ") || "none"}.</p>`)}
    ${caller.value && html`<${Caller} caller=${caller.value} />`}
  </main>`;
}

/** Returns `{history, error}` of the console's ring, asked once a second for what is new. */
function useHistory(span, index) {
  const history = useRef({ times: [], series: {} });
  const [, setTurn] = useState(0);
  const ask = async (signal) => {
    const { times, series, ...latest } = await post("/history", { span, index, after: history.current.times.at(-1) ?? 0 }, { signal });
    history.current = { ...joined(history.current, { times, series }, SPANS[span].seconds), ...latest };
  };
  const { error, busy } = useLoaded(ask, [span, index]);
  const [late, setLate] = useState(null);
  useEvery(SPANS[span].step > 1 ? 10_000 : 1000, async () => {
    try {
      await ask();
      setLate(null);
      setTurn((n) => n + 1);
    } catch (failed) {
      if (!isOvertaken(failed)) setLate(failed);
    }
  }, [span, index]);
  return { history: history.current, error: late ?? (history.current.times.length ? null : error), busy };
}

/** Returns a history with newer points at its end, without those that are too old. */
function joined(before, added, seconds) {
  const times = [...before.times, ...added.times];
  const first = Math.max(0, times.findIndex((time) => time > (times.at(-1) ?? 0) - seconds));
  const series = {};
  for (const owner of new Set([...Object.keys(before.series), ...Object.keys(added.series)])) {
    series[owner] = {};
    for (const name of new Set([...Object.keys(before.series[owner] ?? {}), ...Object.keys(added.series[owner] ?? {})])) {
      const empty = (n) => Array(n).fill(null);
      series[owner][name] = [...(before.series[owner]?.[name] ?? empty(before.times.length)), ...(added.series[owner]?.[name] ?? empty(added.times.length))].slice(first);
    }
  }
  return { times: times.slice(first), series };
}

function Measured({ span, index }) {
  const { history, error, busy } = useHistory(span, index);
  const { step, seconds } = SPANS[span];
  const { times, series } = history;
  if (!times.length) {
    return html`<${Problem} error=${error} />${!error && html`<p class="dim">${busy ? "Reading the server's metrics …" : "The first point comes after a minute; the page may stay open in the background."}</p>`}`;
  }
  const owner = index ? `index:${index}` : "";
  const end = times.at(-1);
  // Where nobody looked, lines have a gap.
  const points = (values) => values?.flatMap((value, i) => (i && times[i] - times[i - 1] > 3 * step ? [null, [times[i], value]] : [[times[i], value]])) ?? [];
  const line = (name, of, title = name, options = {}) => ({ name: title, points: points(series[of]?.[name]), ...options });
  const show = (title, lines, shown, options = {}) => html`<${Chart} title=${title} shown=${shown} lines=${lines} rowTitle="time" low=${0}
    domain=${[Math.max(times[0], end - seconds), end]} shownX=${(time) => new Date(time * 1000).toLocaleTimeString(undefined, step > 1 ? { hour: "2-digit", minute: "2-digit" } : {})} ...${options} />`;
  const plans = Object.keys(series[owner] ?? {}).filter((name) => name.startsWith("plan:")).sort();
  const groups = Object.keys(series).filter((each) => each.startsWith("group:")).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const of = index ? `of ${index}` : "of all indexes";
  return html`<${Problem} error=${error} />
    <p class="dim small">Rates and times of a point are of ${step > 1 ? "its minute" : "the 5 seconds before it"}. The console measures only while this page is open somewhere, for each key apart.</p>
    <div class="charts">
      ${show(`Requests a second ${of}`, [line("requests", owner), line("failed", owner), ...(index ? [] : [line("refused", "")])], number)}
      ${show(`Time of searches ${of}`, [line("p50_ms", owner, "p50"), line("p99_ms", owner, "p99")], MS)}
      ${plans.length > 0 && show(`Searches a second by plan ${of}`, plans.map((name) => line(name, owner, name.slice(5))), number)}
      ${!index && show("Requests in flight", [line("in_flight", "", "in flight"), line("in_flight_limit", "", "limit", { isDashed: true })], number)}
      ${index && show("Recall", [line("recall", owner, "now"), line("recall_target", owner, "target", { isDashed: true }), line("recall_effective", owner, "effective target", { isDashed: true })], PERCENT, { low: undefined, from: 1 })}
      ${index && show("Datapoints in memory, not in segments yet", [line("memory_rows", owner, "in memory")], count, { least: 1 })}
      ${show(`Memory needed ${of}`, [line("memory_bytes", owner, "needed"), ...(index ? [] : [line("resident_bytes", "", "resident"), line("private_bytes", "", "private"), line("ceiling_bytes", "", "ceiling", { isDashed: true })].filter((each) => each.points.length))], bytes, { isBinary: true })}
      ${!index && show("Workers", [line("workers", "")], count, { least: 1 })}
      ${groups.map((group) => show(`Group ${group.slice(6)} of leaves: calls a second`, [line("calls", group), line("failed", group), line("hedges", group), line("failovers", group)].filter((each) => each.points.length), number))}
      ${groups.map((group) => show(`Group ${group.slice(6)} of leaves: time`, [line("p50_ms", group, "p50"), line("p99_ms", group, "p99")], MS))}
    </div>
    ${index && html`<p>Last mutation that is visible: <b>${count(series[owner]?.sequence?.at(-1))}</b> · version <b>${series[owner]?.version?.at(-1) ?? "–"}</b> · served by <b>${series[owner]?.workers?.at(-1) ?? 0}</b> workers
      · failures to open its newest version, one after another: <b>${series[owner]?.open_failures?.at(-1) ?? 0}</b>${series[owner]?.recall_error?.at(-1) != null && html` · recall ± ${PERCENT(series[owner].recall_error.at(-1))}`}</p>
      ${series[owner]?.recall?.at(-1) == null && html`<p class="dim small">Recall needs live queries that are sampled; those that are searched exactly find all. That of the build is among the <${Link} to=${address("versions", index)}>versions<//>.</p>`}`}
    <${Requests} requests=${history.requests.filter((each) => !index || each.index === index)} />
    <${Failures} failures=${history.failures} />`;
}

function Requests({ requests }) {
  return html`<h2>Requests of the last minute or two</h2>
    ${requests.length === 0 ? html`<p class="dim">none</p>` : html`<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">method</th><th scope="col">index</th><th scope="col">plan</th><th scope="col">answer</th>
      <th scope="col">per s</th><th scope="col">p50</th><th scope="col">p99</th></tr></thead><tbody>
      ${requests.map((each) => html`<tr><th scope="row">${each.method}</th><td>${each.index}</td><td>${each.plan}</td><td class=${each.code === "OK" ? "" : "problem"}>${each.code}</td>
        <td>${number(each.per_s)}</td><td>${each.p50_ms === undefined ? "–" : MS(each.p50_ms)}</td><td>${each.p99_ms === undefined ? "–" : MS(each.p99_ms)}</td></tr>`)}</tbody></table></div>`}`;
}

function Failures({ failures }) {
  const failed = Object.entries(failures).filter(([, times]) => times > 0);
  return html`<h2>Work in the background</h2>
    ${failed.length === 0 ? html`<p>No failure since the server's start: sealing, merging, publishing and the others.</p>`
      : html`<ul>${failed.map(([task, times]) => html`<li class="problem">${task}: failed ${count(times)} times since the server's start; its log says why</li>`)}</ul>`}`;
}

const SCOPES = {
  read: "search, read datapoints, see versions",
  write: "write and delete datapoints",
  admin: "create, change, drop and roll back indexes, see these metrics",
};

function Caller({ caller }) {
  const ends = caller.expiresAt && new Date(caller.expiresAt);
  return html`<h2>You</h2>
    <div class="scroll" tabindex="0"><table><tbody>
      <tr><th scope="row">name</th><td><bdi>${caller.name}</bdi>${!caller.asksForCredentials && html` <span class="dim">– the server asks nobody for a key</span>`}</td></tr>
      ${Object.entries(SCOPES).map(([scope, what]) => html`<tr><th scope="row">${scope}</th><td>${caller.scopes.includes(scope) ? html`yes: ${what}` : html`<span class="dim">no: ${what}</span>`}</td></tr>`)}
      <tr><th scope="row">indexes</th><td>${caller.allIndexes ? "all" : caller.indexes.join(", ") || "none"}</td></tr>
      <tr><th scope="row">until</th><td>${ends ? ends.toLocaleString() : "no end"}</td></tr>
      <tr><th scope="row">server</th><td>${caller.serverVersion || "–"}, ${{ all: "whole indexes", root: "root of a cluster", embedded: "in the console's process" }[caller.serverRole] ?? caller.serverRole}</td></tr>
    </tbody></table></div>
    <p class="dim small">Keys are made, listed and taken back where their file is: <code>scannery keys</code>. No call tells one caller of the keys of others.</p>`;
}
