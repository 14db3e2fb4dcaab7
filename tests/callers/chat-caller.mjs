// One chat request by Node's own http2 module; its body comes from standard input.
//
// usage: node chat-caller.mjs URL
//
// On plain http the module speaks HTTP/2 from the first byte (prior knowledge). Prints one JSON
// object: status, version, body, and each server-sent event with its arrival time.
import http2 from "node:http2";
import { readFileSync } from "node:fs";

const url = new URL(process.argv.at(-1));
const sent = readFileSync(0);
const session = http2.connect(url.origin);
session.on("error", fail);

const start = process.hrtime.bigint();
const request = session.request({
  ":method": "POST",
  ":path": url.pathname + url.search,
  "content-type": "application/json",
  "content-length": sent.length,
});
request.setEncoding("utf8"); // keeps letters whole that are cut between two frames
let status = 0;
let headers = {};
let body = "";
let line = "";
const events = [];

request.on("response", (received) => {
  status = received[":status"];
  headers = Object.fromEntries(Object.entries(received).filter(([name]) => !name.startsWith(":")));
});
request.on("data", (text) => {
  const at_s = Number(process.hrtime.bigint() - start) / 1e9;
  body += text;
  const lines = (line + text).split("\n");
  line = lines.pop();
  for (const whole of lines) {
    if (whole.startsWith("data: ")) events.push({ at_s, data: whole.slice("data: ".length) });
  }
});
request.on("error", fail);
request.on("end", () => {
  session.close();
  console.log(JSON.stringify({ status, version: "HTTP_2", headers, events, body }));
});
request.end(sent);

function fail(error) {
  console.error(String(error));
  process.exit(1);
}
