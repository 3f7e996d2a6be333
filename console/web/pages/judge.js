// Judge: questions with the hits of several columns, one mark after another, and how well the columns answer them.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { post, returns } from "../calls.js";
import { ColumnChips, judgedColumns } from "../judge/columns.js";
import { AskName, Name, learnJudge, nameOfJudge, saveMark, setCurrent } from "../judge/marking.js";
import { Measures } from "../judge/measures.js";
import { Pool } from "../judge/pool.js";
import { AddQuestions, Sets } from "../judge/sets.js";
import { useIndex } from "../parts/indexes.js";
import { Problem, useLoaded } from "../parts/load.js";
import { count } from "../parts/values.js";
import { Link, address, route, setParams } from "../route.js";

const MAX_DEPTH = 100, WIDE_PX = 1100, MAX_LISTED = 500;

/** The page: the sets, or one of them. */
export function Judge() {
  const { index, rest } = route.value;
  const { value, error } = useIndex(index);
  if (!rest[0]) return html`<${Sets} index=${index} />`;
  return html`<main class="judge"><${Problem} error=${error} />${value && html`<${JudgedSet} key=${rest[0]} index=${value} set=${rest[0]} />`}<${AskName} /></main>`;
}

/** Returns a set with its marks, `{contents, marks, …}`, and what changes them. */
function useSet(index, set, at) {
  const contents = useLoaded((signal) => post("/judgements/contents", { index, set }, { signal }), [index, set]);
  const loaded = useLoaded((signal) => (at ? post("/judgements/marks", { index, set, question: at }, { signal }) : null), [index, set, at]);
  const [changes, setChanges] = useState({});
  const [failures, setFailures] = useState([]);
  const [saving, setSaving] = useState(0);
  const saves = useRef(Promise.resolve());
  const done = useRef([]);
  // What was saved for other questions is in the contents now.
  useEffect(() => setChanges((before) => (before[at] ? { [at]: before[at] } : {})), [contents.value]);
  const isCurrent = loaded.value?.question === at;
  const marks = isCurrent ? { ...loaded.value.documents, ...changes[at] } : null;

  /** Saves a mark after those before it. */
  const save = (question, document, level, { undoes = false } = {}) => {
    setSaving((n) => n + 1);
    saves.current = saves.current.then(async () => {
      try {
        const pair = await saveMark({ index, set, question, document, level });
        if (!pair) return;
        if (!undoes) done.current.push({ question, document });
        setChanges((before) => ({ ...before, [question]: { ...before[question], [document]: pair } }));
      } catch (error) {
        setFailures((before) => [...before, { question, document, level, error }]);
      } finally {
        setSaving((n) => n - 1);
      }
    });
    return saves.current;
  };
  const again = () => {
    for (const { question, document, level } of failures) save(question, document, level);
    setFailures([]);
  };
  /** Takes the last mark of this visit back; resolves to what it was about. */
  const undo = async () => {
    await saves.current;
    const last = done.current.pop();
    if (last) await save(last.question, last.document, null, { undoes: true });
    return last;
  };
  return { contents, loaded, marks, changes, failures, saving, save, again, undo, saved: () => saves.current };
}

/** Returns the questions with their numbers of marks as they are now. */
function withCounts(questions, at, marks) {
  if (!marks) return questions;
  const levels = Object.values(marks).map(({ level }) => level).filter((level) => level !== null);
  return questions.map((each) => (each.id === at ? { ...each, judged: levels.length, relevant: levels.filter((level) => level > 0).length } : each));
}

function JudgedSet({ index, set }) {
  const { params } = route.value;
  const name = index.name;
  const columns = useMemo(() => judgedColumns(params.get("c"), index), [params.get("c"), index]);
  const depth = Math.min(MAX_DEPTH, Math.max(1, Number(params.get("depth")) || 10));
  const blind = params.get("blind") === "1";
  const [start, setStart] = useState(null);
  const wish = params.get("at");
  const [first, setFirst] = useState(null);
  const at = wish || first;
  const state = useSet(name, set, at);
  const { contents, marks } = state;
  const questions = useMemo(() => withCounts(contents.value?.questions ?? [], at, marks), [contents.value, at, marks]);
  useEffect(() => void (contents.value && setCurrent(name, set)), [name, set, contents.value]);
  // A second opinion needs to know whose marks are one's own.
  useEffect(() => void learnJudge(name).catch(() => {}), [name, returns.value]);
  // Without a question in the address: the first one that nobody has judged.
  useEffect(() => {
    const all = contents.value?.questions;
    if (all && !wish) setFirst((before) => (all.find(({ id }) => id === before) ?? all.find(({ judged }) => !judged) ?? all[0])?.id ?? null);
  }, [contents.value, wish]);

  const place = questions.findIndex(({ id }) => id === at);
  const question = questions[place];
  const show = (id, document) => {
    setStart(document ? { document } : null);
    setParams({ at: id });
  };
  const move = (by) => {
    const next = questions[place + by];
    if (next) show(next.id);
    state.saved().then(contents.again);
  };
  const again = () => {
    state.again();
    state.saved().then(contents.again);
  };
  const undo = async () => {
    const last = await state.undo();
    if (last) show(last.question, last.document);
  };
  const judged = questions.filter((each) => each.judged).length;
  return html`<header class="line"><h1><${Link} to=${address("judge", name)}>Judge<//> ${set}</h1>
      <span class="dim">${count(judged)} of ${count(questions.length)} questions have marks</span><progress max=${questions.length || 1} value=${judged} aria-label="Questions with marks"></progress>
      <span class="grow"></span><${Name} /></header>
    <${Problem} error=${contents.error} />${contents.value?.warnings.map((text) => html`<p class="problem small">${text}</p>`)}
    ${state.failures.length > 0 && html`<p class="banner" role="alert">${state.failures.length} marks are not saved: ${state.failures[0].error.message} <button onClick=${again}>Try again</button></p>`}
    <div class="line"><${ColumnChips} columns=${columns} />
      <label class="small">hits of each <input type="number" min="1" max=${MAX_DEPTH} value=${depth} onChange=${(e) => setParams({ depth: e.target.value === "10" ? "" : e.target.value })} /></label>
      <label class="small" title="Others' marks are hidden, and you mark their hits, too"><input type="checkbox" checked=${blind} onChange=${(e) => setParams({ blind: e.target.checked ? "1" : "" })} /> second opinion</label>
    </div>
    <div class="judging">
      <${Questions} questions=${questions} at=${at} onShow=${show} index=${name} set=${set} onAdded=${contents.again} />
      <section class="asked" aria-label="Question">
        ${question ? html`<h2 class="question"><span class="dim">${place + 1} / ${questions.length}</span> <bdi>${question.text}</bdi></h2>
          <p class="line small"><span><kbd>0</kbd> not relevant <kbd>1</kbd> related <kbd>2</kbd> relevant <kbd>3</kbd> perfect</span><span><kbd>s</kbd> skip <kbd>u</kbd> undo <kbd>n</kbd> next question</span>
            <${Link} to=${address("search", name, { q: question.text, c: params.get("c") ?? "" })}>search it<//>
            <span class="dim" role="status">${state.saving ? "saving …" : ""}</span></p>
          <${Problem} error=${state.loaded.error} />
          <${Pool} index=${index} question=${question} columns=${columns} depth=${depth} marks=${marks} me=${nameOfJudge()} blind=${blind} start=${start}
            onMark=${(document, level) => state.save(question.id, document, level)} onMove=${move} onUndo=${undo} />`
        : contents.value && (questions.length ? html`<p>The set has no such question.</p>` : html`<h2>The set has no question yet</h2><${AddQuestions} index=${name} set=${set} onAdded=${contents.again} />`)}
      </section>
      ${contents.value && html`<${Measures} index=${name} set=${set} columns=${columns} questions=${questions} contents=${contents.value} onShow=${show} changes=${state.changes} />`}
    </div>`;
}

function Questions({ questions, at, onShow, index, set, onAdded }) {
  const [text, setText] = useState("");
  const [open, setOpen] = useState(matchMedia(`(min-width: ${WIDE_PX}px)`).matches);
  const words = text.toLowerCase();
  const list = useRef();
  useEffect(() => {
    // Of the list alone: the page stays at the hits.
    const current = list.current?.querySelector("[aria-current]");
    if (current) list.current.scrollTop += current.getBoundingClientRect().top - list.current.getBoundingClientRect().top - list.current.clientHeight / 3;
  }, [at, questions.length]);
  const shown = questions.filter((each) => !words || each.text.toLowerCase().includes(words));
  return html`<nav class="questions" aria-label="Questions"><details open=${open} onToggle=${(e) => setOpen(e.target.open)}><summary>Questions</summary>
    <input type="search" aria-label="Search the questions" placeholder="among the questions" value=${text} onInput=${(e) => setText(e.target.value)} />
    <ol ref=${list}>${shown.slice(0, MAX_LISTED).map((each) => html`<li key=${each.id}><button class="value" aria-current=${each.id === at ? "true" : undefined} onClick=${() => onShow(each.id)}><bdi>${each.text}</bdi></button>
      <span class="dim small">${each.judged ? `${each.relevant}/${each.judged}` : ""}</span></li>`)}</ol>
    ${shown.length > MAX_LISTED && html`<p class="dim small">${count(shown.length - MAX_LISTED)} more: search them</p>`}
    <details><summary>+ questions</summary><${AddQuestions} index=${index} set=${set} onAdded=${onAdded} /></details>
  </details></nav>`;
}
