// node node_host.js MODEL X.bin Y.bin DIMENSIONS PROVIDER: one run of a model with one input and one output, both float32.
const fs = require('node:fs');
const ort = require('onnxruntime-node');
const {onnxruntimeBackend} = require('onnxruntime-node/dist/backend.js');

async function main([model, input, output, dimensions, provider]) {
  // The package refuses names that it does not know before its native part sees them; this asks the native part.
  if (provider !== 'cpu') ort.registerBackend(provider, onnxruntimeBackend, 1);
  const session = await ort.InferenceSession.create(model, {executionProviders: [provider]});
  const x = new Float32Array(new Uint8Array(fs.readFileSync(input)).buffer);
  const results = await session.run({[session.inputNames[0]]: new ort.Tensor('float32', x, JSON.parse(dimensions))});
  fs.writeFileSync(output, results[session.outputNames[0]].data);
  console.log(`onnxruntime-node ${ort.env.versions.node}`);
}

main(process.argv.slice(2)).catch((error) => {
  console.error(String(error));
  process.exitCode = 1;
});
