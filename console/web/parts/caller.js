// Who asks, as the server says: what may not be done has no button.

import { call } from "../calls.js";
import { useLoaded } from "./load.js";

/** Returns the caller (WhoAmIResponse), as `useLoaded` does, and `write`, `admin`: whether it has these scopes; false until the server has said so. */
export function useCaller() {
  const loaded = useLoaded((signal) => call("IndexService/WhoAmI", {}, { signal }), []);
  const has = (scope) => Boolean(loaded.value?.scopes.includes(scope));
  return { ...loaded, write: has("write"), admin: has("admin") };
}
