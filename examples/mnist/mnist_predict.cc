// SPDX-License-Identifier: Apache-2.0
// mnist_predict: classifies digits with an exported model and prints predictions beside labels.
//
//   mnist_predict --model_dir=run/export --count=10

#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/status.h"
#include "core/tensor.h"
#include "examples/mnist/digits.h"
#include "saver/saved_model.h"

ABSL_FLAG(std::string, model_dir, "", "directory of the SavedModel");
ABSL_FLAG(std::string, data, "",
          "directory with MNIST's idx files (plain or .gz); empty: digits that the program draws");
ABSL_FLAG(uint64_t, seed, 1, "of the drawn digits; as in mnist_train");
ABSL_FLAG(int64_t, count, 10, "test images to classify, from the first on");

namespace millrace {
namespace {

Status Main() {
  MR_ASSIGN_OR_RETURN(const DigitSets data,
                      LoadDigits(absl::GetFlag(FLAGS_data), absl::GetFlag(FLAGS_seed)));
  const int64_t count = absl::GetFlag(FLAGS_count);
  if (count < 1 || count > data.test.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--count: must be in [1, ", data.test.size(), "], got ", count));
  }
  MR_ASSIGN_OR_RETURN(auto model,
                      LoadSavedModel({}, absl::GetFlag(FLAGS_model_dir), {kSavedModelTagServe}));
  MR_ASSIGN_OR_RETURN(const auto signature, model.Signature(kDefaultServingSignature));
  const auto tensor = [](const auto& infos, const char* name) -> StatusOr<std::string> {
    const auto info = infos.find(name);
    if (info == infos.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("signature serving_default: must have '", name, "', got no such tensor"));
    }
    return info->second.name();
  };
  MR_ASSIGN_OR_RETURN(const std::string image, tensor(signature.inputs(), "image"));
  MR_ASSIGN_OR_RETURN(const std::string key, tensor(signature.inputs(), "key"));
  MR_ASSIGN_OR_RETURN(const std::string key_out, tensor(signature.outputs(), "key"));
  MR_ASSIGN_OR_RETURN(const std::string prediction, tensor(signature.outputs(), "prediction"));

  std::vector<int64_t> keys;
  for (int64_t i = 0; i < count; ++i) keys.push_back(i);
  MR_ASSIGN_OR_RETURN(DigitBatch batch, MakeBatch(data.test, 0, count));
  MR_ASSIGN_OR_RETURN(
      const std::vector<Tensor> out,
      model.session->Run({{image, std::move(batch.images)}, {key, Tensor::Vector<int64_t>(keys)}},
                         {key_out, prediction}));
  int64_t right = 0;
  std::printf("key prediction label\n");
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const int64_t predicted = out[1].flat<int64_t>()[i];
    const int32_t label = data.test.labels[i];
    right += predicted == label;
    std::printf("%3lld %10lld %5d\n", static_cast<long long>(out[0].flat<int64_t>()[i]),
                static_cast<long long>(predicted), label);
  }
  std::printf("%lld of %lld right\n", static_cast<long long>(right), static_cast<long long>(count));
  return model.session->Close();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Classifies digits with an exported model.");
  absl::ParseCommandLine(argc, argv);
  millrace::InitLogging(argv[0]);
  const millrace::Status status = millrace::Main();
  if (status.ok()) return 0;
  std::fprintf(stderr, "mnist_predict: %s\n", status.ToString().c_str());
  return millrace::ExitCode(status);
}
