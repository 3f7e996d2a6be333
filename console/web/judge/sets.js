// The sets of an index, and the form that adds questions.

import { html, useState } from "../vendor/preact.js";
import { post } from "../calls.js";
import { Problem, useLoaded } from "../parts/load.js";
import { count } from "../parts/values.js";
import { Link, address, go, route } from "../route.js";
import { currentSet, setCurrent } from "./marking.js";

const MAX_FILE_BYTES = 7 << 20;
const TYPES = ".txt,.tsv,.csv,.jsonl,.json";

/** Returns the address of a set. */
export const addressOf = (index, set) => address(`judge/${encodeURIComponent(set)}`, index, { c: route.value.params.get("c") ?? "" });

/** Adds questions to a set: a line each, or a file. `onAdded(answer, set)`. */
export function AddQuestions({ index, set, onAdded }) {
  const [name, setName] = useState(set ?? "questions");
  const [text, setText] = useState("");
  const [state, setState] = useState({});
  const add = async (file, content) => {
    setState({ busy: true });
    try {
      const answer = await post("/judgements/add", { index, set: name, file, text: content });
      setText("");
      setState({ done: `${count(answer.new)} of ${count(answer.ids.length)} questions are new in the set` });
      onAdded(answer, name);
    } catch (error) {
      setState({ error });
    }
  };
  const upload = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    if (!event.target.form.reportValidity()) return;
    if (file.size > MAX_FILE_BYTES) setState({ error: { message: `the file has more than ${MAX_FILE_BYTES >> 20} MiB` } });
    else await add(file.name, await file.text());
  };
  const paste = (event) => {
    event.preventDefault();
    if (text.trim()) add("questions.txt", text);
  };
  return html`<form class="add-questions" onSubmit=${paste}>
    ${set === undefined && html`<label>name of the set <input required maxlength="63" pattern="[a-z0-9][a-z0-9_\\-]*" title="lower-case letters, digits, - and _" value=${name} onInput=${(e) => setName(e.target.value)} /></label>`}
    <label>questions, one on each line <textarea rows="5" dir="auto" value=${text} placeholder="how do volcanoes form" onInput=${(e) => setText(e.target.value)}></textarea></label>
    <div class="line"><button disabled=${state.busy || !text.trim()}>Add</button>
      <label class="small">or a file of them <input type="file" accept=${TYPES} disabled=${state.busy} onChange=${upload} /></label></div>
    <p class="small dim">A file has a question on each line (.txt), an id, a tab and a question (.tsv), or objects with _id and text (.jsonl, as in BEIR).</p>
    <p class="small" role="status">${state.done}</p><${Problem} error=${state.error} />
  </form>`;
}

/** The sets of an index. */
export function Sets({ index }) {
  const { value, error, busy } = useLoaded((signal) => post("/judgements/sets", { index }, { signal }), [index]);
  const sets = value?.sets ?? [];
  const open = (_, set) => {
    setCurrent(index, set);
    go(addressOf(index, set));
  };
  return html`<main class="page"><h1>Judge ${index}</h1>
    <p>Say of hits how well they answer a question, and see which settings find the good ones. A set is a list of questions with your marks.</p>
    <${Problem} error=${error} />${busy && !value && html`<p class="dim">Asking …</p>`}
    ${sets.length > 0 && html`<div class="scroll"><table><thead><tr><th scope="col">set</th><th scope="col">questions</th><th scope="col">with marks</th><th scope="col">judged hits</th></tr></thead><tbody>
      ${sets.map((set) => html`<tr key=${set.name}><th scope="row"><${Link} to=${addressOf(index, set.name)}>${set.name}<//>
        ${set.name === currentSet(index) && html` <span class="dim small">marks in Search go here</span>`}${set.problem && html`<div class="problem">${set.problem}</div>`}</th>
        <td>${count(set.questions)}</td><td>${count(set.judged)}</td><td>${count(set.judgements)}</td></tr>`)}</tbody></table></div>`}
    ${value && html`<h2>${sets.length ? "A new set" : "Begin with questions"}</h2>
      <p class="dim">Questions that people have asked show most: twenty are a beginning, fifty tell settings apart.</p>
      <${AddQuestions} index=${index} onAdded=${open} />`}
  </main>`;
}
