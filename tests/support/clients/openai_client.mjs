// One request with OpenAI's client for Node: `openai_client.mjs PACKAGES URL plain|stream`.
import { createRequire } from "node:module";

const [packages, url, mode] = process.argv.slice(2);
const { OpenAI } = createRequire(`${packages}/`)("openai");

async function main() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
  const about = { model: "m", max_tokens: 5, messages: [{ role: "user", content: "hello" }] };
  if (mode === "plain") {
    return (await client.chat.completions.create(about)).choices[0].message.content;
  }
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...about, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  return text;
}

try {
  console.log(JSON.stringify({ text: await main() }));
} catch (error) {
  console.log(JSON.stringify({ error: error.constructor.name, message: error.message }));
}
