// SPDX-License-Identifier: Apache-2.0
// mnist_predict: classifies digits with an exported model and prints predictions next to labels.
//
//   mnist_predict --model_dir=run/export --count=10

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/types/span.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "core/tensor.h"
#include "examples/mnist/digits.h"
#include "saver/loaded_model.h"

ABSL_FLAG(std::string, model_dir, "", "directory of the SavedModel");
ABSL_FLAG(std::string, data, "",
          "directory with MNIST's idx files (plain or .gz); empty: digits that the program draws");
ABSL_FLAG(uint64_t, seed, 1, "of the drawn digits; as in mnist_train");
ABSL_FLAG(int64_t, count, 10, "test images to classify, from the first on");

namespace millrace {
namespace {

// One number per image.
StatusOr<absl::Span<const int64_t>> NumbersOf(const NamedTensors& out, const std::string& key,
                                              int64_t count) {
  const auto found = out.find(key);
  if (found == out.end() || found->second.num_elements() != count) {
    return InvalidArgument("signature serving_default: must have an output '", key, "' of ", count,
                           " numbers, got ", found == out.end() ? "none" : "another number");
  }
  return found->second.values<int64_t>();
}

Status Main() {
  MR_ASSIGN_OR_RETURN(const DigitSets data,
                      LoadDigits(absl::GetFlag(FLAGS_data), absl::GetFlag(FLAGS_seed)));
  const int64_t count = absl::GetFlag(FLAGS_count);
  if (count < 1 || count > data.test.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--count: must be in [1, ", data.test.size(), "], got ", count));
  }
  MR_ASSIGN_OR_RETURN(const LoadedModel model, LoadModel(absl::GetFlag(FLAGS_model_dir)));
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < count; ++i) keys.push_back(i);
  MR_ASSIGN_OR_RETURN(DigitBatch batch, MakeBatch(data.test, 0, count));
  MR_ASSIGN_OR_RETURN(
      const NamedTensors out,
      model.Predict({{"image", std::move(batch.images)}, {"key", Tensor::Vector<int64_t>(keys)}}));
  MR_ASSIGN_OR_RETURN(const auto key, NumbersOf(out, "key", count));
  MR_ASSIGN_OR_RETURN(const auto prediction, NumbersOf(out, "prediction", count));
  int64_t right = 0;
  std::printf("key prediction label\n");
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const int64_t predicted = prediction[i];
    const int32_t label = data.test.labels[i];
    right += predicted == label;
    std::printf("%3lld %10lld %5d\n", static_cast<long long>(key[i]),
                static_cast<long long>(predicted), label);
  }
  std::printf("%lld of %lld right\n", static_cast<long long>(right), static_cast<long long>(count));
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Classifies digits with an exported model.");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::Main());
}
