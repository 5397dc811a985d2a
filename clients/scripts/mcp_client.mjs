// The official SDK of MCP in TypeScript, over HTTP and over stdio. See mcp_clients.py for the arguments.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const [name, url, token, command, ...args] = process.argv.slice(2);
const requestInit = { headers: { Authorization: `Bearer ${token}` } };
for (const way of [
  new StreamableHTTPClientTransport(new URL(url), { requestInit }),
  new StdioClientTransport({ command, args, env: process.env }),
]) {
  const client = new Client({ name, version: '1' });
  await client.connect(way);
  const { tools } = await client.listTools();
  if (!tools.some((tool) => tool.name === 'ask')) throw new Error('it has no tool ask');
  const said = await client.callTool({ name: 'ask', arguments: { session: name, text: 'hi' } });
  if (!JSON.stringify(said).includes('You said: hi')) throw new Error(JSON.stringify(said));
  await client.close();
}
console.log('good');
process.exit(0);
