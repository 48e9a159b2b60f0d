// SPDX-License-Identifier: Apache-2.0
// sequences: a recurrent network that is a loop of the graph, trained by a session with hooks.
//
//   sequences run 300     trains to step 300
//   sequences run 600     goes on from there
//
// A sequence has nine numbers, each 1 or -1: is their sum positive? The network reads one number
// after the other and remembers what it needs. Ctrl-C ends it with a last checkpoint.
#include <millrace/millrace.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace millrace;

constexpr int32_t kLength = 9, kBatch = 64, kUnits = 16;

// state = tanh([number, state] kernel + bias), from the first of `numbers` [length, batch, 1] to
// the last; the state after it.
Output LastState(const Scope& model, const Output& numbers) {
  const Variable kernel = MakeVariable(model.WithName("kernel"), Shape{1 + kUnits, kUnits},
                                       DT_FLOAT, GlorotUniformInitializer());
  const Variable bias =
      MakeVariable(model.WithName("bias"), Shape{kUnits}, DT_FLOAT, ZerosInitializer());
  const TensorArray rows = TensorArray::OfRows(model, numbers);
  const Output nothing = Fill(model, Const<int32_t>(model, {kBatch, kUnits}), Const(model, 0.0f));
  const std::vector<Output> last = WhileLoop(
      model, {Const(model, 0), nothing},
      [](const Scope& condition, const std::vector<Output>& v) {
        return Less(condition, v[0], Const(condition, kLength));
      },
      [&](const Scope& body, const std::vector<Output>& v) -> std::vector<Output> {
        const Output both = ConcatV2(body, {rows.Read(body, v[0]), v[1]}, Const(body, 1));
        const Output sum = Add(body, MatMul(body, both, kernel.value), bias.value);
        return {Add(body, v[0], Const(body, 1)), Tanh(body, sum)};
      });
  return last.size() == 2 ? last[1] : Output();  // an error is in the Scope
}

// Numbers [length, batch, 1], and for each sequence 1 where their sum is positive.
StatusOr<std::pair<Tensor, Tensor>> Draw(std::mt19937* random) {
  MR_ASSIGN_OR_RETURN(Tensor numbers, Tensor::Zeros(DT_FLOAT, Shape{kLength, kBatch, 1}));
  MR_ASSIGN_OR_RETURN(Tensor labels, Tensor::Zeros(DT_FLOAT, Shape{kBatch, 1}));
  const absl::Span<float> number = numbers.mutable_flat<float>();
  const absl::Span<float> label = labels.mutable_flat<float>();
  for (size_t i = 0; i < label.size(); ++i) {
    float sum = 0;
    for (size_t t = 0; t < kLength; ++t) {
      const float drawn = (*random)() % 2 == 0 ? 1.0f : -1.0f;
      number[t * kBatch + i] = drawn;
      sum += drawn;
    }
    label[i] = sum > 0 ? 1.0f : 0.0f;
  }
  return std::pair(numbers, labels);
}

// A hook of one's own: where the session began, and how many steps it made.
class Report : public SessionRunHook {
 public:
  std::string name() const override { return "Report"; }
  Status AfterCreateSession(RunContext*, const CreatedSession& created) override {
    std::printf("begins at step %lld\n", static_cast<long long>(created.global_step));
    return absl::OkStatus();
  }
  Status AfterRun(RunContext*, const RunValues&) override {
    ++steps_;
    return absl::OkStatus();
  }
  Status End(const LoopEnd&) override {
    std::printf("made %lld steps\n", static_cast<long long>(steps_));
    return absl::OkStatus();
  }

 private:
  int64_t steps_ = 0;
};

Status TrainTo(int64_t last_step, const std::string& directory) {
  Scope model;
  model.SetGraphSeed(1);
  const Output numbers = Placeholder(model, DT_FLOAT, {kLength, kBatch, 1});
  const Output labels = Placeholder(model, DT_FLOAT, {kBatch, 1});
  const Output logits = Dense(model, LastState(model, numbers), 1);
  const Output loss = SigmoidCrossEntropy(model, labels, logits);
  const Variable step = GlobalStep(model);
  const Operation train =
      AdamOptimizer({.learning_rate = 0.01}).Minimize(model, loss, {.global_step = step});
  MR_RETURN_IF_ERROR(model.status());

  StopAtStepHook stop({.last_step = last_step});
  NanTensorHook nan(loss);
  LoggingTensorHook log({.tensors = {{"loss", loss}, {"step", step.value}}, .every = 100});
  Report report;
  MR_ASSIGN_OR_RETURN(const auto session,
                      MonitoredTrainingSession(model, {.checkpoint_dir = directory,
                                                       .hooks = {&stop, &nan, &log, &report},
                                                       .save_checkpoint_every = 100}));
  std::mt19937 random(static_cast<uint32_t>(last_step));  // other sequences each time
  float last_loss = 0;
  MR_RETURN_IF_ERROR(session->Loop([&]() -> Status {
    MR_ASSIGN_OR_RETURN(const auto batch, Draw(&random));
    MR_ASSIGN_OR_RETURN(
        const std::vector<Tensor> out,
        session->Run({{numbers, batch.first}, {labels, batch.second}}, {loss}, {train}));
    last_loss = out[0].scalar<float>();
    return absl::OkStatus();
  }));
  std::printf("%s\nloss %.3f\n", session->end_reason().c_str(), static_cast<double>(last_loss));
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  const int64_t last_step = argc == 3 ? std::atoll(argv[2]) : 0;
  if (last_step <= 0) {
    std::fprintf(stderr, "usage: %s DIRECTORY LAST_STEP\n", argv[0]);
    return 2;
  }
  InitLogging(argv[0]);
  return ReportedExitCode(argv[0], TrainTo(last_step, argv[1]));
}
