// SPDX-License-Identifier: Apache-2.0
// mnist_predict_meta: classifies digits with a model of the older form, export.meta and a
// checkpoint next to it, as mnist_dist and mnist_monitored write it, or TensorFlow.
//
// It knows nothing of the network: the collections `inputs` and `outputs` of the meta graph say in
// JSON which tensors are the image, its key and the scores.
//
//   mnist_predict_meta --model_dir=model --count=10

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/types/span.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "core/tensor.h"
#include "examples/mnist/digits.h"
#include "graph/scope.h"
#include "nlohmann/json.hpp"
#include "proto/meta_graph.pb.h"
#include "runtime/session.h"
#include "saver/meta_graph.h"
#include "saver/saver.h"

ABSL_FLAG(std::string, model_dir, "mnist_model", "directory of export.meta and export.*");
ABSL_FLAG(std::string, data, "",
          "directory with MNIST's idx files (plain or .gz); empty: digits that the program draws");
ABSL_FLAG(uint64_t, seed, 1, "of the drawn digits; as in the program that trained");
ABSL_FLAG(int64_t, count, 10, "test images to classify, from the first on");

namespace millrace {
namespace {

// The tensor's name for `alias` in a collection of one JSON object.
StatusOr<std::string> TensorOf(const tensorflow::MetaGraphDef& meta, const std::string& collection,
                               const std::string& alias) {
  const auto found = meta.collection_def().find(collection);
  if (found != meta.collection_def().end() && found->second.bytes_list().value_size() > 0) {
    const auto json = nlohmann::json::parse(found->second.bytes_list().value(0), nullptr,
                                            /*allow_exceptions=*/false);
    if (json.is_object() && json.contains(alias) && json[alias].is_string()) {
      return json[alias].get<std::string>();
    }
  }
  return InvalidArgument("export.meta: collection '", collection, "' must name a tensor for '",
                         alias, "' in a JSON object, got none");
}

Status Main() {
  MR_ASSIGN_OR_RETURN(const DigitSets data,
                      LoadDigits(absl::GetFlag(FLAGS_data), absl::GetFlag(FLAGS_seed)));
  const int64_t count = absl::GetFlag(FLAGS_count);
  if (count < 1 || count > data.test.size()) {
    return InvalidArgument("--count: must be in [1, ", data.test.size(), "], got ", count);
  }
  const std::string prefix = JoinPath(absl::GetFlag(FLAGS_model_dir), "export");
  MR_ASSIGN_OR_RETURN(const auto meta, ReadMetaGraph(FileSystem::Default(), prefix + ".meta"));
  MR_ASSIGN_OR_RETURN(const std::string image, TensorOf(meta, "inputs", "image"));
  MR_ASSIGN_OR_RETURN(const std::string key_in, TensorOf(meta, "inputs", "key"));
  MR_ASSIGN_OR_RETURN(const std::string scores, TensorOf(meta, "outputs", "scores"));
  MR_ASSIGN_OR_RETURN(const std::string key_out, TensorOf(meta, "outputs", "key"));

  const auto saver = Saver::FromDef(meta.saver_def());
  MR_ASSIGN_OR_RETURN(const Scope scope, ImportMetaGraph(meta));
  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(scope));
  MR_RETURN_IF_ERROR(saver->Restore(session.get(), prefix));

  std::vector<int64_t> keys;
  for (int64_t i = 0; i < count; ++i) keys.push_back(i);
  MR_ASSIGN_OR_RETURN(DigitBatch batch, MakeBatch(data.test, 0, count));
  MR_ASSIGN_OR_RETURN(
      const std::vector<Tensor> out,
      session->Run({{image, std::move(batch.images)}, {key_in, Tensor::Vector<int64_t>(keys)}},
                   {key_out, scores}));
  if (out[0].num_elements() != count || out[1].num_elements() != count * kDigitClasses) {
    return InvalidArgument("export.meta: key and scores must be [", count, "] and [", count, ",",
                           kDigitClasses, "], got others");
  }
  MR_ASSIGN_OR_RETURN(const absl::Span<const int64_t> key, out[0].values<int64_t>());
  MR_ASSIGN_OR_RETURN(const absl::Span<const float> score, out[1].values<float>());
  int64_t right = 0;
  std::printf("key prediction label\n");
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const auto row = score.subspan(i * kDigitClasses, kDigitClasses);
    const auto predicted = std::max_element(row.begin(), row.end()) - row.begin();
    const int32_t label = data.test.labels[i];
    right += predicted == label;
    std::printf("%3lld %10lld %5d\n", static_cast<long long>(key[i]),
                static_cast<long long>(predicted), label);
  }
  std::printf("%lld of %lld right\n", static_cast<long long>(right), static_cast<long long>(count));
  return session->Close();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Classifies digits with a model that is export.meta and export.*.");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::Main());
}
