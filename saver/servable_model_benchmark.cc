// SPDX-License-Identifier: Apache-2.0
//
// What a prediction costs besides its ops: by position against by name, of a model of one small op
// with as many inputs and outputs as the argument says; alone and from two threads.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "core/logging.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "saver/loaded_model.h"
#include "saver/model.h"
#include "saver/servable_model.h"

namespace millrace {
namespace {

// y<i> = -x<i>, four numbers each.
StatusOr<Model> MakeModel(int64_t tensors) {
  SetMinLogLevel(LogLevel::kError);  // each model says that it has no variables
  Scope root;
  ServingSignature signature;
  for (int64_t i = 0; i < tensors; ++i) {
    const std::string x = absl::StrCat("feature_", i), y = absl::StrCat("score_", i);
    signature.inputs[x] = Placeholder(root.WithName(x), DT_FLOAT, {-1});
    signature.outputs[y] = Neg(root.WithName(y), signature.inputs[x]);
  }
  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(root));
  return MakeServingModel(session.get(), root, {&signature, 1});
}

void Check(benchmark::State& state, const Status& status) {
  if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
}

void BM_PredictByPosition(benchmark::State& state) {
  static std::unique_ptr<ServableModel> served;  // of all threads; made and ended by the first
  if (state.thread_index() == 0) {
    const auto model = MakeModel(state.range(0));
    auto loaded = model.ok() ? ServableModel::Load(*model) : model.status();
    Check(state, loaded.status());
    if (loaded.ok()) served = std::make_unique<ServableModel>(*std::move(loaded));
  }
  const std::vector<Tensor> inputs(static_cast<size_t>(state.range(0)),
                                   Tensor::Vector<float>({1, 2, 3, 4}));
  std::vector<Tensor> outputs(inputs.size());
  for (auto _ : state) Check(state, served->Predict(0, inputs, absl::MakeSpan(outputs)));
  if (state.thread_index() == 0) served.reset();
}
BENCHMARK(BM_PredictByPosition)->Arg(1)->Arg(8)->Arg(64)->UseRealTime();
BENCHMARK(BM_PredictByPosition)->Arg(8)->Threads(2)->UseRealTime();

void BM_PredictByName(benchmark::State& state) {
  static std::unique_ptr<LoadedModel> served;
  if (state.thread_index() == 0) {
    const auto model = MakeModel(state.range(0));
    auto loaded = model.ok() ? LoadModel(*model) : model.status();
    Check(state, loaded.status());
    if (loaded.ok()) served = std::make_unique<LoadedModel>(*std::move(loaded));
  }
  NamedTensors inputs;
  for (int64_t i = 0; i < state.range(0); ++i) {
    inputs[absl::StrCat("feature_", i)] = Tensor::Vector<float>({1, 2, 3, 4});
  }
  for (auto _ : state) Check(state, served->Predict(inputs).status());
  if (state.thread_index() == 0) served.reset();
}
BENCHMARK(BM_PredictByName)->Arg(1)->Arg(8)->Arg(64)->UseRealTime();
BENCHMARK(BM_PredictByName)->Arg(8)->Threads(2)->UseRealTime();

}  // namespace
}  // namespace millrace
