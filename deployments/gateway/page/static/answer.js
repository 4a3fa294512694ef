// One answer while it is made: the request, and what its events add to the message.

import { ask } from "./api.js";
import { nameOf } from "./hosts.js";
import { sampling, settings } from "./settings.js";
import { events } from "./stream.js";

/**
 * Ask for `message`, an answer to `path`. `progress` hears of the part of the prompt that is computed,
 * `grown` whenever something was added. Returns once it is whole; what fails is raised.
 */
export async function answer(message, path, { signal, progress, grown }) {
  const began = performance.now();
  const timer = new Timer(began);
  const response = await ask("v1/chat/completions", {
    json: {
      model: message.model,
      messages: promptOf(path),
      stream: true,
      stream_options: { include_usage: true },
      ...sampling(),
    },
    headers: { "X-Pomona-Served-By": "1", "X-Session-Id": message.conversation },
    signal,
  });
  // Names that are asked for meanwhile: no token waits for them.
  const naming = [];
  try {
    for await (const event of events(response)) {
      if (event.comment !== undefined) naming.push(heard(message, event.comment, progress));
      else if (event.data === "[DONE]") return;
      else {
        add(message, JSON.parse(event.data), timer);
        // The last part of a prompt that was told of is seldom all of it.
        if (timer.first !== null) progress(1);
      }
      message.stats = timer.stats(message.stats);
      grown();
    }
  } finally {
    message.stats = timer.stats(message.stats);
    await Promise.all(naming);
  }
  throw new Error("The connection was cut before the answer was whole.");
}

function promptOf(path) {
  const { system } = settings();
  const messages = path.map(({ role, text }) => ({ role, content: text }));
  return system?.trim() ? [{ role: "system", content: system }, ...messages] : messages;
}

async function heard(message, comment, progress) {
  const [kind, ...told] = comment.split(" ");
  if (kind === "prefill") {
    const [done, all] = told[0].split("/").map(Number);
    if (all) progress(done / all);
  } else if (kind === "served-by") {
    const [engine, node, tokens] = told;
    const server = { engine, name: node, tokens: Number(tokens) };
    message.served = [...(message.served ?? []), server];
    server.name = await nameOf(node);
  }
}

function add(message, chunk, timer) {
  if (chunk.error) throw new Error(chunk.error.message);
  if (chunk.usage) timer.usage = chunk.usage;
  const [choice] = chunk.choices ?? [];
  if (!choice) return;
  const { content, reasoning_content: thinking, tool_calls: calls = [] } = choice.delta ?? {};
  if (thinking) message.thinking = (message.thinking ?? "") + thinking;
  if (content) message.text += content;
  if (content || thinking || calls.length) timer.token(Boolean(content));
  for (const { index, function: named } of calls) {
    message.calls ??= [];
    message.calls[index] ??= { name: "", arguments: "" };
    message.calls[index].name += named?.name ?? "";
    message.calls[index].arguments += named?.arguments ?? "";
  }
  if (choice.finish_reason) message.finish = choice.finish_reason;
}

/** Tokens are counted by the server; until it says so, by what has come. */
class Timer {
  constructor(began) {
    this.began = began;
    this.first = null;
    this.text = null;
    this.last = null;
    this.chunks = 0;
    this.usage = null;
  }

  token(isText) {
    this.last = performance.now();
    this.first ??= this.last;
    if (isText) this.text ??= this.last;
    this.chunks += 1;
  }

  stats(before) {
    const { usage } = this;
    const tokens = usage?.completion_tokens ?? this.chunks;
    const spent = (this.last - this.first) / 1000;
    return {
      ...before,
      promptTokens: usage?.prompt_tokens,
      cachedTokens: usage?.prompt_tokens_details?.cached_tokens,
      tokens,
      firstSeconds: this.first === null ? undefined : (this.first - this.began) / 1000,
      thoughtSeconds: this.text !== null && this.text > this.first ? (this.text - this.first) / 1000 : undefined,
      rate: tokens > 1 && spent > 0 ? (tokens - 1) / spent : undefined,
    };
  }
}
