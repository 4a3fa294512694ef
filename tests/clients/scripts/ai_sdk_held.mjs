import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamObject, tool } from "ai";
import { z } from "zod";

const { POMONA_URL: baseURL, POMONA_KEY: apiKey, POMONA_MODEL: name } = process.env;
const provider = createOpenAICompatible({
  name: "pomona",
  baseURL,
  apiKey,
  supportsStructuredOutputs: true,
});
const model = provider(name);
const prompt = "Which fruit is ripe?";
const fruit = z.object({
  name: z.string(),
  kind: z.enum(["apple", "pear", "quince"]),
  grams: z.number().int(),
  isRipe: z.boolean(),
  notes: z.array(z.string()),
});
const told = await generateObject({ model, schema: fruit, prompt });
fruit.parse(told.object);
const streamed = streamObject({ model, schema: fruit, prompt });
for await (const part of streamed.partialObjectStream) void part;
fruit.parse(await streamed.object);
const pick = tool({ description: "Pick fruits.", inputSchema: fruit });
const weigh = tool({
  description: "Weigh fruits.",
  inputSchema: z.object({ grams: z.array(z.number()) }),
});
for (const toolChoice of ["required", { type: "tool", toolName: "weigh" }]) {
  const { toolCalls } = await generateText({ model, tools: { pick, weigh }, toolChoice, prompt });
  if (toolCalls.length === 0 || toolCalls.some((call) => call.invalid)) {
    throw new Error(JSON.stringify(toolCalls));
  }
}
