// Dialogs and panels: the browser's own, which keep the focus and give it back.

import { html, useEffect, useId, useRef } from "../vendor/preact.js";
import { useKeys } from "../keys.js";

/** A dialog over the page; Escape and a click beside it close it. */
export function Dialog({ title, onClose, children, wide = false }) {
  const dialog = useRef();
  const before = useRef(document.activeElement);
  const id = useId();
  useEffect(() => {
    dialog.current.showModal();
    return () => before.current?.isConnected && before.current.focus();
  }, []);
  const close = (event) => {
    event.preventDefault();
    onClose?.();
  };
  return html`<dialog ref=${dialog} class=${wide ? "wide" : ""} aria-labelledby=${id} onCancel=${close}
      onClick=${(event) => event.target === dialog.current && close(event)}>
    <header><h2 id=${id}>${title}</h2>
      ${onClose && html`<button class="quiet" aria-label="Close" onClick=${close}>✕</button>`}
    </header>
    ${children}
  </dialog>`;
}

/** A panel at the side of the page (a sheet on a phone); Escape closes it. */
export function Drawer({ title, onClose, children }) {
  const panel = useRef();
  const before = useRef(document.activeElement);
  const id = useId();
  useEffect(() => {
    (panel.current.querySelector("[autofocus]") ?? panel.current).focus();
    return () => before.current?.isConnected && before.current.focus();
  }, []);
  // A dialog over the panel is closed first, by itself.
  useKeys({ Escape: ["close the panel", () => (document.querySelector("dialog[open]") ? false : onClose())] });
  return html`<aside ref=${panel} class="drawer" tabindex="-1" aria-labelledby=${id}>
    <header><h2 id=${id}>${title}</h2><button class="quiet" aria-label="Close" onClick=${onClose}>✕</button></header>
    ${children}
  </aside>`;
}
