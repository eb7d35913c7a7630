// node node_host.js PACKAGE MODEL X.bin Y.bin DIMENSIONS PROVIDER: one run of a model with one input and one output, both
// float32, in onnxruntime-node or onnxruntime-web.
const fs = require('node:fs');

async function main([name, model, input, output, dimensions, provider]) {
  const ort = require(name);
  ort.env.wasm.numThreads = 1;
  // The package refuses names that it does not know before its native part sees them; this asks the native part.
  if (provider !== 'cpu') ort.registerBackend(provider, require('onnxruntime-node/dist/backend.js').onnxruntimeBackend, 1);
  const session = await ort.InferenceSession.create(model, {executionProviders: [provider]});
  const x = new Float32Array(new Uint8Array(fs.readFileSync(input)).buffer);
  const results = await session.run({[session.inputNames[0]]: new ort.Tensor('float32', x, JSON.parse(dimensions))});
  fs.writeFileSync(output, results[session.outputNames[0]].data);
  console.log(`${name} ${ort.env.versions[name.split('-')[1]]}`);
}

main(process.argv.slice(2)).catch((error) => {
  console.error(String(error));
  process.exitCode = 1;
});
