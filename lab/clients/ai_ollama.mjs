// Vercel's `ai` with a provider for ollama: node ai_ollama.mjs URL MODEL CHECK.
import assert from "node:assert";
import { Output, generateText, streamText, tool } from "ai";
import { createOllama } from "ollama-ai-provider-v2";
import { z } from "zod";

const [url, name, check] = process.argv.slice(2);
const side = z.enum(["left", "right"]);
const Wall = z.object({ side, far: z.boolean() });
const result = { type: "text", value: "a wall on the left" };
const called = { toolCallId: "1", toolName: "look" };
const how = {
  model: createOllama({ baseURL: url.replace(/v1$/, "api") })(name), maxRetries: 0,
  providerOptions: { ollama: { options: { num_predict: 60 } } },
  tools: { look: tool({ description: "What is on one side.", inputSchema: z.object({ side }) }) },
  messages: [
    { role: "user", content: "Which wall is far?" },
    { role: "assistant", content: [{ type: "tool-call", ...called, input: { side: "left" } }] },
    { role: "tool", content: [{ type: "tool-result", ...called, output: result }] },
  ],
};
let done;
if (check === "streamed") done = streamText({ ...how, onError: ({ error }) => { throw error; } });
else if (check === "typed")
  done = await generateText({ ...how, tools: undefined, output: Output.object({ schema: Wall }) });
else done = await generateText(how);
assert(await done.text);
assert((await done.usage).outputTokens);
if (check === "typed") Wall.parse(done.output);
