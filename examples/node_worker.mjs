// A worker in Node, over HTTP. Needs nothing but Node 18 or newer.
const url = process.env.TENURE_URL ?? "http://localhost:3100";
const token = process.env.TENURE_TOKEN;

async function call(path, body) {
  const headers = { "content-type": "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  const response = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) throw new Error(`${response.status}: ${answer.detail}`);
  return answer;
}

async function send({ to }) {
  if (!to) throw new TypeError("there is no address");
  console.log("sending to", to);
  return { sent: true };
}

let stopping = false;
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => (stopping = true));

while (!stopping) {
  // Wait up to 10 seconds for a job. Renew a lease with /v1/extend if the work may take longer than it.
  const { jobs } = await call("/v1/claim", { queues: ["mail"], wait: 10, lease: 60, worker: "node-1" });
  for (const { id, token, payload } of jobs) {
    let result;
    try {
      result = await send(payload);
    } catch ({ name, message }) {
      await call("/v1/fail", { jobs: [{ id, token, type: name, message }] }); // retried after a backoff
      continue;
    }
    await call("/v1/ack", { jobs: [{ id, token, result }] });
  }
}
