// The list of keys, opened by `?`.

import { html, signal } from "../vendor/preact.js";
import { keysNow, lettersOn, useKeys } from "../keys.js";
import { Dialog } from "./dialog.js";

const isOpen = signal(false);

/** The list, while it is open. */
export function KeyList() {
  useKeys({ "?": ["all keys", () => void (isOpen.value = !isOpen.value)] });
  if (!isOpen.value) return null;
  return html`<${Dialog} title="Keys" onClose=${() => (isOpen.value = false)}>
    <table class="keys"><tbody>
      ${keysNow().map(([key, text]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${text}</td></tr>`)}
    </tbody></table>
    <label><input type="checkbox" checked=${lettersOn.value} onChange=${(e) => (lettersOn.value = e.target.checked)} /> single letters are keys</label>
  <//>`;
}
