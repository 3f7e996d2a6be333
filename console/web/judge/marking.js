// Marks of people: which set they go to, who marks, and the levels as buttons.

import { effect, html, signal, useEffect, useState } from "../vendor/preact.js";
import { isOvertaken, post, returns } from "../calls.js";
import { Dialog } from "../parts/dialog.js";
import { Problem } from "../parts/load.js";
import { Link, address, go } from "../route.js";

/** The levels of relevance, by number. */
export const LEVELS = ["not relevant", "related", "relevant", "perfect"];
const FIRST_SET = "questions";

/** Name that a person has typed; empty: none yet. */
const person = signal(localStorage.getItem("person") ?? "");
/** Name of the key of the session; empty: people type theirs; null: it is not known. */
const keyName = signal(null);
/** What waits for a name. */
const waiting = signal(null);

effect(() => {
  if (returns.value) keyName.value = null;
});

/** Returns the set that marks of a search go to. */
export const currentSet = (index) => localStorage.getItem(`set ${index}`) || FIRST_SET;
/** Makes a set the one that marks of a search go to. */
export const setCurrent = (index, set) => localStorage.setItem(`set ${index}`, set);

/** Learns whether a key says who marks. Throws CallError. */
export async function learnJudge(index) {
  if (keyName.value === null) keyName.value = (await post("/judgements/sets", { index })).who;
}

/** Resolves to the name of who marks, which is asked for once; null: the person gives none. Throws CallError. */
export async function judgeName(index) {
  await learnJudge(index);
  return keyName.value || person.value || new Promise((resolve) => (waiting.value = resolve));
}

/** Returns the name of who marks, as far as it is known. */
export const nameOfJudge = () => keyName.value || person.value;

/** Asks for the name when the first mark is made. */
export function AskName() {
  const [name, setName] = useState("");
  if (!waiting.value) return null;
  const answer = (value) => {
    waiting.value(value);
    waiting.value = null;
  };
  const take = (event) => {
    event.preventDefault();
    localStorage.setItem("person", (person.value = name.trim()));
    answer(person.value);
  };
  return html`<${Dialog} title="Who judges?" onClose=${() => answer(null)}>
    <form onSubmit=${take}><p>Your name stands beside your marks. It is asked for once.</p>
      <input aria-label="Your name" autofocus required maxlength="100" pattern=".*\\S.*" autocomplete="name" value=${name} onInput=${(e) => setName(e.target.value)} /> <button>Go on</button></form>
  <//>`;
}

/** Says whose marks are made here; a name that a person has typed can be forgotten. */
export function Name() {
  if (keyName.value) return html`<span class="small dim">marks of <bdi>${keyName.value}</bdi></span>`;
  if (!person.value) return null;
  const forget = () => localStorage.setItem("person", (person.value = ""));
  return html`<span class="small dim">marks of <bdi>${person.value}</bdi> <button class="quiet" onClick=${forget}>not you?</button></span>`;
}

/** Saves a mark, and resolves to what people say of the pair then; null: the person gave no name. Throws CallError. */
export async function saveMark({ index, set, question, document, level }) {
  const by = await judgeName(index);
  return by === null ? null : post("/judgements/mark", { index, set, question, document, level, by });
}

/** Who says what of a hit, where that is more than the level. */
export function Names({ pair }) {
  const marks = pair?.marks ?? [];
  const texts = marks.map(({ by, level }) => `${by || "in the file"} ${level}`);
  if (pair && pair.level !== (marks.at(-1)?.level ?? null) && marks.length) texts.push(`changed in the file to ${pair.level ?? "none"}`);
  const differ = new Set(marks.map(({ level }) => level)).size > 1;
  return texts.length > 0 && html`<span class="small ${differ ? "differ" : "dim"}">${differ && "differ: "}<bdi>${texts.join(", ")}</bdi></span>`;
}

/** The levels as buttons; that of `level` is pressed. */
export function Levels({ level, onMark, label }) {
  return html`<span class="levels" role="group" aria-label="Relevance of ${label}">
    ${LEVELS.map((text, i) => html`<button aria-pressed=${level === i} title=${text} aria-label="${i} ${text}" onClick=${() => onMark(i)}>${i}</button>`)}</span>`;
}

/**
 * Marks of the hits of a search: `{documents, mark(document, level), error, set}`. A level again takes the mark back.
 * `text`: the question; empty: there is none.
 */
export function useSearchMarks(index, text) {
  const [state, setState] = useState({ documents: {} });
  const set = currentSet(index);
  useEffect(() => {
    setState({ documents: {} });
    if (!text) return undefined;
    const controller = new AbortController();
    post("/judgements/marks", { index, set, text }, { signal: controller.signal }).then(
      (answer) => setState(answer),
      (error) => isOvertaken(error) || setState({ documents: {}, hidden: ["not_found", "permission_denied"].includes(error.code), error }),
    );
    return () => controller.abort();
  }, [index, set, text, returns.value]);
  const add = async () => state.question || (await post("/judgements/add", { index, set, file: "question.txt", text })).ids[0];
  const mark = async (document, level) => {
    try {
      const by = await judgeName(index);
      if (by === null) return;
      const question = await add();
      const isSame = state.documents[document]?.marks.some((mine) => mine.by === by && mine.level === level);
      const pair = await saveMark({ index, set, question, document, level: isSame ? null : level });
      setState((before) => ({ question, documents: { ...before.documents, [document]: pair } }));
    } catch (error) {
      setState((before) => ({ ...before, error }));
    }
  };
  return text && !state.hidden ? { ...state, set, add, mark } : { documents: {}, set };
}

/** Leads from a search to judging its question. `marks`: of useSearchMarks; `c`: columns of the search. */
export function JudgeQuestion({ index, marks, c }) {
  if (!marks.mark) return null;
  const judged = Object.values(marks.documents).filter(({ level }) => level !== null).length;
  const judge = async () => go(address(`judge/${encodeURIComponent(marks.set)}`, index, { at: await marks.add(), c: c?.includes("~") ? c : "" }));
  return html`<p class="line small"><button class="quiet" title="the hits of all modes, shuffled, with the set “${marks.set}”" onClick=${judge}>judge this question</button>
    ${judged > 0 && html`<span class="dim">${judged === 1 ? "1 hit has a mark" : `${judged} hits have marks`} in the set <${Link} to=${address(`judge/${encodeURIComponent(marks.set)}`, index)}>${marks.set}<//></span>`}<${Problem} error=${marks.error} /></p>`;
}
