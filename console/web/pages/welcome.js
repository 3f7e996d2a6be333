// The indexes there are; where there is none, how to make one.

import { html, useState } from "../vendor/preact.js";
import { useCaller } from "../parts/caller.js";
import { useLive } from "../parts/live.js";
import { Problem } from "../parts/load.js";
import { hasVectors, useIndexes } from "../parts/indexes.js";
import { bytes, count, number } from "../parts/values.js";
import { Link, address } from "../route.js";
import { CreateIndex } from "./data/indexes.js";

/** The first page. */
export function Welcome({ session }) {
  const { value: indexes, error, busy } = useIndexes();
  const caller = useCaller();
  const live = useLive(caller);
  const [isCreating, setCreating] = useState(false);
  return html`<main class="page"><h1>Indexes</h1>
    ${caller.admin && html`<p><button onClick=${() => setCreating(true)}>Create an index …</button></p>`}
    ${isCreating && html`<${CreateIndex} target=${session.target} onClose=${() => setCreating(false)} />`}
    <${Problem} error=${error} />
    ${busy && !indexes && html`<p class="dim">Asking …</p>`}
    ${indexes?.length === 0 && html`<p>There is no index yet. Make one of the bundled sample, or of your files:</p>
      <pre>scannery demo --store ./demo-store
scannery build SPEC.yaml --input FILES --store STORE</pre>`}
    ${indexes?.length > 0 && html`<div class="scroll"><table><thead><tr><th scope="col">index</th><th scope="col">datapoints</th><th scope="col">size</th>
      <th scope="col">version</th><th scope="col">recall</th><th scope="col">model</th></tr></thead><tbody>
      ${indexes.map((index) => html`<tr key=${index.name}>
        <th scope="row"><${Link} to=${address("search", index.name)}>${index.name}<//>
          ${index.aliases.length > 0 && html` <span class="dim">${index.aliases.join(", ")}</span>`}
          ${index.problem && html`<div class="problem">${index.problem}</div>`}</th>
        <td>${count(index.rows)}${Number(index.memoryRows) > 0 && html`<div class="dim small">${count(index.memoryRows)} in memory</div>`}</td><td>${bytes(Number(index.sizeBytes))}</td><td>${index.version}</td>
        <td>${index.recall ? `${(index.recall.measured * 100).toFixed(1)} % of its ${index.recall.k} best` : hasVectors(index) ? "exact" : html`<span class="dim">no vectors</span>`}${live[index.name] && html`<div class=${live[index.name].now + 2 * live[index.name].error < live[index.name].target ? "problem small" : "dim small"}>live ${number(live[index.name].now * 100)} ± ${number(live[index.name].error * 100)} %, target ${number(live[index.name].target * 100)} %</div>`}</td>
        <td>${index.encoder?.model ?? html`<span class="dim">${hasVectors(index) ? "vectors of callers" : "words only"}</span>`}</td></tr>`)}
    </tbody></table></div>`}
    <p class="dim small">${session.target} · scannery ${session.version}</p></main>`;
}
