// The versions of an index: what each is, two of them over one another, and the way back.

import { html, useRef, useState } from "../vendor/preact.js";
import { call } from "../calls.js";
import { useCaller } from "../parts/caller.js";
import { formatColumns } from "../parts/columns.js";
import { Curves } from "../parts/curves.js";
import { Dialog } from "../parts/dialog.js";
import { useEvery } from "../parts/every.js";
import { useIndex } from "../parts/indexes.js";
import { useLive } from "../parts/live.js";
import { Problem, useLoaded } from "../parts/load.js";
import { differences } from "../parts/specs.js";
import { bytes, count, number } from "../parts/values.js";
import { address, go, route, setParams } from "../route.js";

const PAGE = 20, LOOK_MS = 5000;
const KINDS = {
  full: "full build", upsert: "build that updates", live: "live updates", merge: "merge of segments", compact: "compaction", create: "created", alter: "spec changed",
  tune: "settings tuned", calibrate: "relevance measured", rank: "order of hits learned", map: "encoder of queries learned", migrate: "migration", replace: "content replaced", rollback: "rollback",
};

/** The page. */
export function Versions() {
  const { index: name, params } = route.value;
  const { value: index, error, again: askIndex } = useIndex(name);
  const caller = useCaller();
  const live = useLive(caller);
  const [pages, setPages] = useState(1);
  const { value: listed, error: wrong, again } = useLoaded(async (signal) => {
    const versions = [];
    let pageToken = "";
    for (let page = 0; page < pages; page++) {
      const answer = await call("IndexService/ListVersions", { index: name, pageSize: PAGE, pageToken }, { signal });
      versions.push(...answer.versions);
      pageToken = answer.nextPageToken;
      if (!pageToken) break;
    }
    return { versions, hasMore: Boolean(pageToken) };
  }, [name, pages]);
  const [switched, setSwitched] = useState(null);
  const [back, setBack] = useState(null);
  const [done, setDone] = useState("");
  const made = useRef("");
  const versions = listed?.versions ?? [];
  const current = versions.find((each) => each.current)?.version;
  useEvery(LOOK_MS, async () => {
    const [answer, served] = await Promise.all([
      call("IndexService/ListVersions", { index: name, pageSize: 1 }).catch(() => null), call("IndexService/GetIndex", { index: name }).catch(() => null)]);
    const newest = answer?.versions[0]?.version;
    if (newest && current && newest !== current && newest !== made.current) {
      setSwitched({ from: current, to: newest, at: new Date() });
      again();
    }
    if (served && index && (served.index.version !== index.version || served.index.memoryRows !== index.memoryRows)) askIndex();
  }, [name]);
  const chosen = (params.get("v") || current || "").split("~").filter(Boolean).slice(0, 2).sort((a, b) => a - b);
  const choose = (version, isOn) => setParams({ v: (isOn ? [...chosen, version].slice(-2) : chosen.filter((each) => each !== version)).join("~") }, { replace: true });
  return html`<main class="page versions"><h1>Versions of ${name}</h1>
    <${Problem} error=${error ?? wrong} />
    ${index?.problem && html`<p class="problem">${index.problem}</p>`}
    <div role="status">
      ${switched && html`<p class="banner">Version ${switched.to} took the place of version ${switched.from} while you looked (seen at ${switched.at.toLocaleTimeString()}).</p>`}
      ${done && html`<p>${done}</p>`}
      ${index && current && index.version !== current && html`<p>The server answers with version ${index.version} and moves to version ${current}.</p>`}
    </div>
    ${listed && html`<div class="scroll"><table class="list"><thead><tr><th scope="col">compare</th><th scope="col" class="number">version</th><th scope="col">published</th><th scope="col">made by</th>
      <th scope="col" class="number">datapoints</th><th scope="col" class="number">segments</th><th scope="col" class="number">size</th><th scope="col">recall</th>${caller.admin && html`<th scope="col"><span class="hidden">go back</span></th>`}</tr></thead>
      <tbody>${versions.map((each) => html`<${Row} key=${each.version} version=${each} isChosen=${chosen.includes(each.version)} onChoose=${choose} onBack=${caller.admin && (() => setBack({ to: each.version, current, versions }))} />`)}</tbody></table></div>
      ${listed.hasMore && html`<button onClick=${() => setPages(pages + 1)}>older versions</button>`}
      <p class="dim small">Size: of all files of a version; versions share files. ${index && Number(index.memoryRows) > 0 && html`Beside the current version, ${count(index.memoryRows)} datapoints are in memory.`}</p>`}
    <${Chosen} key=${chosen.join("~")} name=${name} numbers=${chosen} index=${index} live=${live[name] ?? null} isAdmin=${caller.admin} />
    ${back && html`<${Back} name=${name} ...${back} memoryRows=${Number(index?.memoryRows ?? 0)} onClose=${() => setBack(null)}
      onDone=${(version) => { made.current = version; setBack(null); setDone(`Version ${version} has the content of version ${back.to}.`); setParams({ v: "" }, { replace: true }); again(); askIndex(); }} />`}
  </main>`;
}

function Row({ version: each, isChosen, onChoose, onBack }) {
  const made = `${KINDS[each.kind] ?? each.kind ?? ""}${Number(each.contentOf) ? ` to version ${each.contentOf}` : ""}` || "–";
  return html`<tr class=${each.current ? "current" : ""}>
    <td><input type="checkbox" aria-label=${`compare version ${each.version}`} checked=${isChosen} disabled=${Boolean(each.problem)} onChange=${(e) => onChoose(each.version, e.target.checked)} /></td>
    <th scope="row" class="number">${each.version}${each.current && html`<div class="small">current</div>`}</th>
    ${each.problem ? html`<td colspan="6" class="problem">${each.problem}</td>` : html`
      <td>${each.createdAt ? html`<time datetime=${each.createdAt}>${new Date(each.createdAt).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" })}</time>` : "–"}</td><td>${made}</td>
      <td class="number">${count(each.rows)}</td><td class="number">${each.segments}</td><td class="number">${bytes(Number(each.sizeBytes))}</td>
      <td>${each.recall ? html`${number(each.recall.measured * 100)} % <span class="dim">of its ${each.recall.k} best; target ${number(each.recall.target * 100)} %</span>` : "exact"}</td>`}
    ${onBack && html`<td>${!each.current && !each.problem && html`<button class="quiet" aria-label=${`go back to version ${each.version}`} onClick=${onBack}>go back …</button>`}</td>`}</tr>`;
}

/** The curves and specs of one or two versions. */
function Chosen({ name, numbers, index, live, isAdmin }) {
  const { value: versions, error } = useLoaded((signal) => Promise.all(numbers.map(async (version) => {
    const answer = await call("IndexService/GetVersion", { index: name, version }, { signal });
    return { ...answer.version, spec: JSON.parse(answer.version.specJson || "{}") };
  })), []);
  if (!numbers.length) return html`<p class="dim">Choose a version to see its curve and its spec, or two to compare them.</p>`;
  return html`<${Problem} error=${error} />
    ${versions && html`<h2>Recall of ${versions.map(({ version }) => `version ${version}`).join(" and ")}</h2>
      <${Curves} versions=${versions} served=${index?.version} live=${live} />
      ${versions.length === 2 ? html`<${Specs} first=${versions[0]} second=${versions[1]} /><${OnQuestions} name=${name} versions=${versions} isAdmin=${isAdmin} />`
        : html`<h2>Spec</h2><details><summary>as JSON</summary><pre tabindex="0">${JSON.stringify(versions[0].spec, null, 1)}</pre></details>`}`}`;
}

function Specs({ first, second }) {
  const rows = differences(first.spec, second.spec);
  return html`<h2>Difference of the specs</h2>
    ${rows.length === 0 ? html`<p>Both versions have the same spec.</p>` : html`<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">key</th><th scope="col">version ${first.version}</th><th scope="col">version ${second.version}</th></tr></thead>
      <tbody>${rows.map(([key, a, b]) => html`<tr><th scope="row"><code>${key}</code></th><td class="changed">${a ?? html`<span class="dim">not set</span>`}</td><td class="changed">${b ?? html`<span class="dim">not set</span>`}</td></tr>`)}</tbody></table></div>`}`;
}

/** Which of two versions answers judged questions better: a search asks the version that is served, so the others become branches. */
function OnQuestions({ name, versions, isAdmin }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const branches = versions.map(({ version }) => `${name.slice(0, 50)}-v${version}`);
  const compare = async () => {
    setBusy(true);
    try {
      for (const [i, { version }] of versions.entries()) {
        // The same request: a branch that was made before is taken again.
        await call("IndexService/BranchIndex", { index: name, branch: branches[i], version, requestId: `console ${branches[i]}` }, { timeoutMs: 120_000 });
      }
      go(address("judge", name, { c: formatColumns(branches.map((index) => ({ mode: "auto", index }))) }));
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  return html`<h2>Which is better on your questions?</h2>
    <p>Each becomes a branch, an index of its own that shares its files (${branches.map((each, i) => html`${i > 0 && " and "}<code>${each}</code>`)}), and Judge compares them as columns, with intervals and paired differences. Drop the branches in Data afterwards.</p>
    ${isAdmin ? html`<p><button disabled=${busy} onClick=${compare}>${busy ? "Making the branches …" : "Compare them in Judge"}</button></p>` : html`<p class="dim">Making branches needs a key with the scope admin.</p>`}
    <${Problem} error=${error} />
    <p>On the questions that people ask now: <code>scannery serve … --traffic-share 0.2 --traffic-text --shadow ${name}=${branches[0]}</code>, then <code>scannery log shadow</code>.</p>`;
}

/** The question before the way back. `current`, `versions`: as they were when it was asked. */
function Back({ name, to, current, versions, memoryRows, onClose, onDone }) {
  const [typed, setTyped] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const later = versions.filter(({ version }) => Number(version) > Number(to));
  const sealed = later.filter(({ kind }) => kind === "live").map(({ version }) => version);
  const goBack = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      // Refused if another version was published since the list was read.
      const { index } = await call("IndexService/RollbackIndex", { index: name, version: to, ifVersion: current }, { timeoutMs: 120_000 });
      onDone(index.version);
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${`Back to version ${to}`} onClose=${busy ? undefined : onClose}>
    <p>The content of version ${to} is published as a new version after version ${current}, and servers move to it without failing a search.</p>
    <ul><li>${sealed.length ? html`Live updates that are part of ${sealed.length === 1 ? "version" : "versions"} ${sealed.join(", ")} are <b>undone</b>, and not applied again.`
        : "No version since then was made of live updates; those that later builds and merges took in are undone."}</li>
      <li>${memoryRows ? `The ${count(memoryRows)} datapoints in memory, which are in no version yet, stay.` : "No datapoints wait in memory."}</li>
      <li>Version ${current} stays until it is cleaned up: go back to it to undo this.</li></ul>
    <form onSubmit=${goBack}>
      <p><label>Type <b>${name}</b> to confirm: <input value=${typed} autocomplete="off" spellcheck="false" autofocus onInput=${(e) => setTyped(e.target.value)} /></label></p>
      <button class="danger" disabled=${typed !== name || busy}>${busy ? "Going back …" : `Go back to version ${to}`}</button>
    </form>
    ${error && html`<${Problem} error=${error} />`}
    ${error?.code === "failed_precondition" && html`<p>Another version was published meanwhile: close this and look at it first.</p>`}
  <//>`;
}
