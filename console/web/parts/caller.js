// Who asks, as the server says: what may not be done has no button.

import { call } from "../calls.js";
import { useLoaded } from "./load.js";

/** Returns `{write, admin}`: whether the caller has these scopes; false until the server has said so. */
export function useScopes() {
  const { value } = useLoaded((signal) => call("IndexService/WhoAmI", {}, { signal }), []);
  const has = (scope) => Boolean(value?.scopes?.includes(scope));
  return { write: has("write"), admin: has("admin") };
}
