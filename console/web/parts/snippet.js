// Texts with marks: positions count code points, JavaScript's count UTF-16.

import { html } from "../vendor/preact.js";

const MAX_SHOWN = 400;

/** Returns a function that cuts a text at positions in code points. */
function cutter(text) {
  if (!/[\u{10000}-\u{10ffff}]/u.test(text)) return (start, end) => text.slice(start, end);
  const points = Array.from(text);
  return (start, end) => points.slice(start, end).join("");
}

/** The part of a hit's text that answers best, its sentence marked and the words of the question in it bold. */
export function Snippet({ text, snippet, whole = false }) {
  if (!text) return null;
  if (!snippet) return html`<p class="text">${whole ? text : text.slice(0, MAX_SHOWN)}</p>`;
  const cut = cutter(text);
  const sentence = { start: snippet.start ?? 0, end: snippet.end ?? 0 };
  const from = whole ? 0 : sentence.start;
  const to = whole ? text.length : Math.max(sentence.end, sentence.start + MAX_SHOWN);
  const bounds = new Set([from, sentence.start, sentence.end]);
  const words = (snippet.words ?? []).filter((word) => word.start >= from && word.end <= to);
  for (const word of words) bounds.add(word.start).add(word.end);
  const points = [...bounds].filter((point) => point >= from && point <= to).sort((a, b) => a - b);
  const parts = points.map((point, i) => {
    const part = cut(point, points[i + 1] ?? to);
    const isWord = words.some((word) => word.start <= point && point < word.end);
    const inside = isWord ? html`<b>${part}</b>` : part;
    return point >= sentence.start && point < sentence.end ? html`<mark>${inside}</mark>` : inside;
  });
  return html`<p class="text">${from > 0 ? "… " : ""}${parts}</p>`;
}
