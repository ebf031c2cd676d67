// Vercel's `ai` with one of its two providers: node vercel_ai.mjs PROVIDER URL MODEL CHECK.
import assert from "node:assert";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";

const [provider, baseURL, name, check] = process.argv.slice(2);
const apiKey = "unused";
const providers = {
  "@ai-sdk/openai": () => createOpenAI({ baseURL, apiKey }).chat(name),
  "@ai-sdk/openai-compatible": () =>
    createOpenAICompatible({ name: "aie", baseURL, apiKey, supportsStructuredOutputs: true })(name),
};
const side = z.enum(["left", "right"]);
const Wall = z.object({ side, far: z.boolean() });
const look = tool({
  description: "What is on one side.",
  inputSchema: z.object({ side }),
  execute: async ({ side }) => `a wall on the ${side}`,
});
const how = {
  model: providers[provider](), tools: { look }, prompt: "Which wall is far?",
  stopWhen: isStepCount(2), maxOutputTokens: 60, temperature: 0, maxRetries: 0,
  // The second provider takes the field's own name.
  providerOptions: { openai: { parallelToolCalls: false }, aie: { parallel_tool_calls: false } },
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" }),
};
let done;
if (check === "streamed") done = streamText({ ...how, onError: ({ error }) => { throw error; } });
else if (check === "typed") done = await generateText({ ...how, output: Output.object({ schema: Wall }) });
else done = await generateText(how);

const [first, last] = await done.steps;
assert.equal(first.toolCalls[0].toolName, "look");
assert.equal(first.toolResults.length, first.toolCalls.length);
assert(last.text);
if (check === "typed") Wall.parse(done.output);
