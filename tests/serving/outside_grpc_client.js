// SPDX-License-Identifier: Apache-2.0
//
// What @grpc/grpc-js sees of a model server, by our .proto files: a line of JSON per call.
//
//   node outside_grpc_client.js ADDRESS WHAT [CA KEY CERTIFICATE]
//
// WHAT: calls, deadline, health, predict. NODE_PATH names npm's packages, the .proto files are below
// the working directory.
'use strict';

const fs = require('fs');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const HANG = 120000;  // ms
const [address, what, ...keys] = process.argv.slice(2);
const loaded = grpc.loadPackageDefinition(loader.loadSync(
    [
      'proto/serving/prediction_service.proto', 'proto/serving/model_service.proto',
      'proto/health/health.proto', 'proto/inference/grpc_service.proto'
    ],
    {keepCase: true, includeDirs: ['.'], longs: String, enums: String, defaults: false}));
const serving = loaded.tensorflow.serving;
const credentials = keys.length === 0 ?
    grpc.credentials.createInsecure() :
    grpc.credentials.createSsl(...keys.map((path) => fs.readFileSync(path)));

// Connections of their own: nothing is shared with another run of calls.
function client(Service) {
  return new Service(address, credentials, {'grpc.use_local_subchannel_pool': 1});
}

function call(stub, method, request, {metadata = new grpc.Metadata(), ms = HANG} = {}) {
  return new Promise((resolve) => {
    stub[method](request, metadata, {deadline: Date.now() + ms}, (error, reply) => {
      resolve(error ? {code: grpc.status[error.code], details: error.details} : {reply});
    });
  });
}

function print(name, value) {
  console.log(JSON.stringify({name, ...value}));
}

function predictRequest(x) {
  return {
    model_spec: {name: 'm'},
    inputs: {
      x: {
        dtype: 'DT_FLOAT',
        tensor_shape: {dim: [{size: 1}, {size: 2}]},
        float_val: x
      },
      w: {
        dtype: 'DT_STRING',
        tensor_shape: {dim: [{size: 1}]},
        string_val: [Buffer.from('a')]
      }
    }
  };
}

async function predict(stub, name, x, options) {
  const got = await call(stub, 'Predict', predictRequest(x), options);
  print(name, got.reply ? {y: got.reply.outputs.y.float_val} : got);
}

async function calls() {
  const prediction = client(serving.PredictionService);
  await predict(prediction, 'predict', [1, 2]);

  const metadata = new grpc.Metadata();
  metadata.set('x-request-id', '42');
  metadata.set('trace-bin', Buffer.from([0, 1, 2, 255]));
  metadata.set('long', 'x'.repeat(4000));
  await predict(prediction, 'metadata', [1, 2], {metadata});

  await predict(prediction, 'past', [1, 2], {ms: -1000});
  print('unknown', await call(prediction, 'Predict', {model_spec: {name: 'n'}}));
  print('no spec', await call(prediction, 'Predict', {}));
  const signature = predictRequest([1, 2]);
  signature.model_spec.signature_name = 'none';
  print('signature', await call(prediction, 'Predict', signature));

  // All of them over one connection.
  const many = Array.from({length: 200}, (_, i) => i);
  const replies =
      await Promise.all(many.map((i) => call(prediction, 'Predict', predictRequest([i, -i]))));
  const right = replies.filter(
      ({reply}, i) => reply && reply.outputs.y.float_val[0] === 3 * i &&
          reply.outputs.y.float_val[1] === -3 * i);
  print('many', {right: right.length});

  const status = await call(client(serving.ModelService), 'GetModelStatus',
                            {model_spec: {name: 'm'}});
  print('status', status.reply ? {versions: status.reply.model_version_status} : status);
  const infer = await call(client(loaded.inference.GRPCInferenceService), 'ModelInfer', {
    model_name: 'm',
    inputs: [
      {name: 'x', datatype: 'FP32', shape: [1, 2], contents: {fp32_contents: [1, 2]}},
      {name: 'w', datatype: 'BYTES', shape: [1], contents: {bytes_contents: [Buffer.from('a')]}}
    ],
    outputs: [{name: 'y'}]
  });
  print('infer', infer.reply ? {y: infer.reply.outputs[0].contents.fp32_contents} : infer);
}

// The server waits for a second row, longer than this client does.
async function deadline() {
  const prediction = client(serving.PredictionService);
  await predict(prediction, 'short', [7, 7], {ms: 300});
  await Promise.all([predict(prediction, 'first', [1, 2]), predict(prediction, 'second', [3, 4])]);
}

// Until the server says that it ends.
function health() {
  return new Promise((resolve) => {
    const watch = client(loaded.grpc.health.v1.Health).Watch({service: 'm'});
    watch.on('data', (reply) => print('health', reply));
    watch.on('error', () => {});  // its status is told below
    watch.on('status', (status) => {
      print('end', {code: grpc.status[status.code]});
      resolve();
    });
  });
}

const run = {calls, deadline, health, predict: () => predict(client(serving.PredictionService), 'predict', [1, 2])};
run[what]().then(() => process.exit(0));
