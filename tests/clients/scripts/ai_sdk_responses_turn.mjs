import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";

const { POMONA_URL: baseURL, POMONA_KEY: apiKey, POMONA_MODEL: name } = process.env;
const sent = [];
const watched = async (url, init) => {
  sent.push(JSON.parse(init.body));
  return fetch(url, init);
};
const model = createOpenAI({ baseURL, apiKey, fetch: watched })(name);
let reads = 0;
const read_file = tool({
  description: "Read a file.",
  inputSchema: z.object({ path: z.string() }),
  execute: async ({ path }) => {
    reads += path === "notes.txt" ? 1 : 0;
    return "Apples ripen in autumn.";
  },
});
const asked = { model, tools: { read_file }, stopWhen: stepCountIs(3) };
const first = [{ role: "user", content: "CALL read_file path=notes.txt" }];
const turn = await generateText({ ...asked, messages: first });
const again = { role: "user", content: 'SAY {"again": true}' };
// What was said is named by its ids, which is what this package does unless it is told otherwise.
const next = await generateText({
  ...asked,
  messages: [...first, ...turn.responseMessages, again],
});
const previousResponseId = next.response.id;
const last = await generateText({
  ...asked,
  messages: [{ role: "user", content: 'SAY {"last": true}' }],
  providerOptions: { openai: { previousResponseId } },
});
const references = sent.flatMap(({ input }) => input.filter(({ type }) => type === "item_reference"));
console.log(
  JSON.stringify({
    answer: turn.text,
    num_reads: reads,
    num_references: references.length,
    next: next.text,
    last: last.text,
  }),
);
