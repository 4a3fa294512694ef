// Lines to copy: how other programs find this server.

import { models } from "./api.js";
import { copyButton, h } from "./dom.js";
import { key } from "./key.js";

const PLACEHOLDER = "YOUR_KEY";

export class Connect {
  constructor() {
    this.contexts = new Map();
    this.model = h("select", { id: "connect-model", onchange: () => this.show() });
    this.withKey = h("input", { type: "checkbox", id: "with-key", onchange: () => this.show() });
    this.keyLabel = h("label", { class: "check" }, this.withKey, "Put my key into the lines");
    this.list = h("div", { class: "recipes" });
    this.element = h(
      "div",
      { class: "page connect-view" },
      h("div", { class: "head" }, h("h1", {}, "Connect")),
      h("p", { class: "soft" }, "This server speaks OpenAI's and Anthropic's APIs. Copy what your program needs."),
      h("div", { class: "row wrap" }, h("label", { for: "connect-model" }, "Model"), this.model, this.keyLabel),
      this.list,
    );
  }

  async start() {
    const served = await models();
    this.contexts = new Map(served.map(({ id, maxModelLen }) => [id, maxModelLen]));
    this.model.replaceChildren(...served.map(({ id }) => h("option", { value: id }, id)));
    this.show();
  }

  resume() {
    this.show();
  }

  show() {
    this.keyLabel.hidden = !key();
    const origin = new URL(".", location.href).href.replace(/\/$/, "");
    const used = key() ? (this.withKey.checked ? key() : PLACEHOLDER) : "none";
    const model = this.model.value;
    const lines = recipes(origin, model, used, this.contexts.get(model) ?? 0);
    this.list.replaceChildren(
      ...lines.map(({ name, told, text }) =>
        h(
          "section",
          { class: "recipe card" },
          h("div", { class: "row" }, h("h2", {}, name), h("span", { class: "grow" }), copyButton(() => text, `Copy for ${name}`)),
          h("p", { class: "soft" }, told),
          h("pre", { tabindex: 0 }, h("code", {}, text)),
        ),
      ),
    );
  }
}

/** A word as a shell reads it. */
export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** With `context` tokens of the model, so that agents make room before it is full: an eighth is left for an answer, and
 * one more for what a tool brings. */
export function recipes(origin, model, key, context) {
  const json = JSON.stringify;
  const output = Math.min(Math.floor(context / 8), 32000);
  return [
    {
      name: "Claude Code",
      told: "In a shell.",
      text: `export ANTHROPIC_BASE_URL=${quoted(origin)}
export ANTHROPIC_AUTH_TOKEN=${quoted(key)}
export ANTHROPIC_MODEL=${quoted(model)}
export CLAUDE_CODE_MAX_CONTEXT_TOKENS=${context}
export CLAUDE_CODE_MAX_OUTPUT_TOKENS=${output}
claude`,
    },
    {
      name: "Codex",
      told: "In ~/.codex/config.toml; the key is read from POMONA_KEY.",
      text: `model = ${json(model)}
model_provider = "pomona"
model_context_window = ${context}
model_auto_compact_token_limit = ${Math.floor((context * 3) / 4)}

[model_providers.pomona]
name = "Pomona"
base_url = ${json(`${origin}/v1`)}
env_key = "POMONA_KEY"
wire_api = "responses"`,
    },
    {
      name: "OpenCode",
      told: "In opencode.json.",
      text: json(
        {
          $schema: "https://opencode.ai/config.json",
          provider: {
            pomona: {
              npm: "@ai-sdk/openai-compatible",
              name: "Pomona",
              options: { baseURL: `${origin}/v1`, apiKey: key },
              models: { [model]: { name: model, limit: { context, output } } },
            },
          },
          model: `pomona/${model}`,
        },
        null,
        2,
      ),
    },
    {
      name: "curl",
      told: "A streamed answer.",
      text: `curl -N ${quoted(`${origin}/v1/chat/completions`)} \\
  -H ${quoted(`Authorization: Bearer ${key}`)} \\
  -H 'Content-Type: application/json' \\
  -d ${quoted(json({ model, messages: [{ role: "user", content: "Hello" }], stream: true }))}`,
    },
    {
      name: "Python",
      told: "With the openai package.",
      text: `from openai import OpenAI

client = OpenAI(base_url=${json(`${origin}/v1`)}, api_key=${json(key)})
answer = client.chat.completions.create(
    model=${json(model)},
    messages=[{"role": "user", "content": "Hello"}],
)
print(answer.choices[0].message.content)`,
    },
  ];
}
