// A reporter for Node's test runner, beside its dots: prints which tests are skipped, and why.
export default async function* skipped(source) {
  for await (const { type, data } of source) if (type === "test:pass" && data.skip) yield `\nskipped: ${data.name}: ${data.skip}\n`;
}
