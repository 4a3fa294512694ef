// Asking this server, with the key if there is one.

import { askForKey, key } from "./key.js";

/** What the server said instead of an answer. */
export class ServerError extends Error {
  constructor(status, error) {
    super(error?.message || `The server answered with status ${status}.`);
    this.status = status;
    this.code = error?.code ?? null;
  }
}

/** The response to a request, asking its user for a key as often as the server wants one. */
export async function ask(path, { json, ...options } = {}) {
  while (true) {
    const headers = { ...options.headers };
    if (key()) headers.Authorization = `Bearer ${key()}`;
    if (json !== undefined) headers["Content-Type"] = "application/json";
    const body = json === undefined ? undefined : JSON.stringify(json);
    const method = json === undefined ? "GET" : "POST";
    const response = await fetch(path, { method, ...options, headers, body });
    if (response.ok) return response;
    const told = await response.json().catch(() => ({}));
    const failure = new ServerError(response.status, told.error);
    if (response.status !== 401) throw failure;
    await askForKey(failure.message, options.signal);
  }
}

export async function models() {
  const told = await (await ask("v1/models")).json();
  return told.data.map((one) => ({ id: one.id, maxModelLen: one.max_model_len }));
}
