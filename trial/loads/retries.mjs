// Asks a session with OpenAI's and Vercel's clients. A line of JSON in is a question, a line out its answer.
import { createInterface } from 'node:readline';
import OpenAI from 'openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText } from 'ai';

const maxRetries = 10;
const aiRetries = 2; // its pauses double from 2 seconds on

async function ask({ sdk, url, token, session, text, timeout, stream }) {
  const headers = { 'X-Talaria-Session': session };
  if (sdk === 'ai') {
    const provider = createOpenAICompatible({ name: 'talaria', baseURL: url, apiKey: token, headers });
    return (await generateText({ model: provider('main'), prompt: text, maxRetries: aiRetries })).text;
  }
  const client = new OpenAI({ baseURL: url, apiKey: token, defaultHeaders: headers, maxRetries, timeout });
  const messages = [{ role: 'user', content: text }];
  if (!stream) {
    const answer = await client.chat.completions.create({ model: 'main', messages });
    return answer.choices[0].message.content;
  }
  let said = '';
  for await (const chunk of await client.chat.completions.create({ model: 'main', messages, stream: true })) {
    said += chunk.choices[0]?.delta?.content ?? '';
    if (chunk.choices[0]?.finish_reason) return said;
  }
  throw new Error('the stream was cut');
}

for await (const line of createInterface({ input: process.stdin })) {
  const question = JSON.parse(line);
  ask(question).then(
    (text) => console.log(JSON.stringify({ id: question.id, text })),
    (error) => {
      const status = error.status ?? error.statusCode ?? error.lastError?.statusCode ?? 0;
      console.log(JSON.stringify({ id: question.id, status, error: String(error) }));
    },
  );
}
