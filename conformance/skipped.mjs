// A reporter for Node's test runner, beside its dots: tells which tests were left out, and why.
export default async function* skipped(source) {
  for await (const { type, data } of source) if (type === "test:pass" && data.skip) yield `\nskipped: ${data.name}: ${data.skip}\n`;
}
