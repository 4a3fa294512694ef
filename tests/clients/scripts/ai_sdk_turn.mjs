import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { POMONA_URL: baseURL, POMONA_KEY: apiKey, POMONA_MODEL: name } = process.env;
const model = createOpenAICompatible({ name: "pomona", baseURL, apiKey })(name);
let reads = 0;
const read_file = tool({
  description: "Read a file.",
  inputSchema: z.object({ path: z.string() }),
  execute: async ({ path }) => {
    reads += path === "notes.txt" ? 1 : 0;
    return "Apples ripen in autumn.";
  },
});
const turn = streamText({
  model,
  tools: { read_file },
  stopWhen: stepCountIs(3),
  prompt: "CALL read_file path=notes.txt",
});
const answer = await turn.text;
const schema = z.object({ name: z.string(), inhabitants: z.number().int() });
const { object } = await generateObject({
  model,
  schema,
  prompt: 'SAY {"name": "Ulm", "inhabitants": 128000}',
});
console.log(JSON.stringify({ answer, num_reads: reads, structured: object }));
