// Requests to the daemon: the event stream, a table's page, and changes. The token, if one is
// needed, is kept in this module's memory only, until the page is closed.

let token = "";

export function setToken(text) {
  token = text;
}

function headers(more) {
  return token ? { Authorization: `Bearer ${token}`, ...more } : { ...more };
}

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function refused(answer) {
  let error = {};
  try {
    error = (await answer.json()).error || {};
  } catch {
    // Not of ours: the status has to do.
  }
  return new Refused(answer.status, error.code || "", error.message || `The daemon answered ${answer.status}.`);
}

async function ask(path, options) {
  const answer = await fetch(path, { cache: "no-store", ...options, headers: headers(options && options.headers) });
  if (!answer.ok) throw await refused(answer);
  return answer.json();
}

const at = (name) => `/tables/${encodeURIComponent(name)}`;
const query = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "")).toString();

export const table = (name) => ask(at(name));
export const configuration = (name) => ask(`${at(name)}/configuration`);
export const series = (name, span) => ask(`${name === null ? "" : at(name)}/series?${query({ seconds: span })}`);
export const commits = (name, skip) => ask(`${at(name)}/commits?${query({ skip })}`);
export const growth = (name) => ask(`${at(name)}/growth`);
export const commit = (name, version, skip) => ask(`${at(name)}/commits/${version}?${query({ skip })}`);
export const keyHistory = (name, column, value, before) => ask(`${at(name)}/keys?${query({ column, value, before })}`);
export const daemon = () => ask("/daemon");

export function act(name, action, body) {
  const json = body ? { "Content-Type": "application/json" } : {};
  return ask(`/pipelines/${encodeURIComponent(name)}/${action}`, {
    method: "POST",
    headers: { "X-Tailerd": "the console", ...json },
    body: body ? JSON.stringify(body) : undefined,
  });
}

// Server-sent events over fetch: an EventSource cannot send a token.
export async function listen(onMessage, signal) {
  const answer = await fetch("/events", { cache: "no-store", headers: headers(), signal });
  if (!answer.ok) throw await refused(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      let name = "";
      let data = "";
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) onMessage(name, JSON.parse(data));
    }
  }
}
