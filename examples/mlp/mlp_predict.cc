// SPDX-License-Identifier: Apache-2.0
// mlp_predict: what the model that mlp_train exported makes of the test digits.

#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "core/tensor.h"
#include "examples/mnist/digits.h"
#include "saver/loaded_model.h"

ABSL_FLAG(std::string, model, "", "directory of the SavedModel");
ABSL_FLAG(std::string, data, "", "as in mlp_train");
ABSL_FLAG(uint64_t, seed, 1, "as in mlp_train");

namespace millrace {
namespace {

Status Run() {
  MR_ASSIGN_OR_RETURN(const LoadedModel model, LoadModel(absl::GetFlag(FLAGS_model)));
  MR_ASSIGN_OR_RETURN(const DigitSets digits,
                      LoadDigits(absl::GetFlag(FLAGS_data), absl::GetFlag(FLAGS_seed)));
  MR_ASSIGN_OR_RETURN(const DigitBatch test, MakeBatch(digits.test, 0, digits.test.size()));
  MR_ASSIGN_OR_RETURN(const NamedTensors out, model.Predict({{"images", test.images}}));
  const absl::Span<const int64_t> predicted = out.at("digit").flat<int64_t>();
  int64_t right = 0;
  for (size_t i = 0; i < predicted.size(); ++i) right += predicted[i] == digits.test.labels[i];
  std::printf("%lld of %lld right\n", static_cast<long long>(right),
              static_cast<long long>(digits.test.size()));
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Classifies digits with the model that mlp_train exported.");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::Run());
}
