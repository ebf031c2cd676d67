// `openai` for JavaScript: node openai_npm.mjs URL MODEL CHECK.
import assert from "node:assert";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [url, model, check] = process.argv.slice(2);
const side = z.enum(["left", "right"]);
const Look = z.object({ side });
const Wall = z.object({ side, far: z.boolean() });
const { completions } = new OpenAI({ baseURL: url, apiKey: "unused", maxRetries: 0 }).chat;
const messages = [{ role: "user", content: "Which wall is far?" }];

async function ask(more) {
  const how = {
    model, messages, tools: [zodFunction({ name: "look", parameters: Look })],
    max_completion_tokens: 60, temperature: 0, ...more,
  };
  let said;
  if (check === "streamed") said = await completions.stream(how).finalChatCompletion();
  else if (check === "typed")
    said = await completions.parse({ ...how, response_format: zodResponseFormat(Wall, "wall") });
  else said = await completions.create(how);
  return said.choices[0].message;
}

const asked = await ask({ tool_choice: "required", parallel_tool_calls: false });
const [call] = asked.tool_calls;
assert.equal(call.function.name, "look");
const looked = Look.parse(JSON.parse(call.function.arguments));
messages.push(asked, { role: "tool", tool_call_id: call.id, content: `a wall on the ${looked.side}` });
// The package takes a stream that ends at max_completion_tokens for a fault.
const answer = await ask({ tool_choice: "none", stop: " " });
assert(answer.content);
if (check === "typed") Wall.parse(answer.parsed);
