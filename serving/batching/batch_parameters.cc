// SPDX-License-Identifier: Apache-2.0
#include "serving/batching/batch_parameters.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "proto/serving/session_bundle_config.pb.h"

namespace millrace {
namespace {

// More threads than this are a mistake in a file, not a plan.
constexpr int64_t kMaxBatchThreads = 10'000;
// 100 years: sums of times stay far from their end.
constexpr int64_t kMaxTimeoutMicros = int64_t{100} * 365 * 86'400 * 1'000'000;

// The first error, with its place.
class FirstTextError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat(line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

Status CheckPositive(absl::string_view name, int64_t value) {
  if (value > 0) return absl::OkStatus();
  return InvalidArgument(name, " must be positive; was ", value);
}

Status CheckAllowedSizes(const BatchParameters& parameters) {
  const std::vector<int64_t>& sizes = parameters.allowed_batch_sizes;
  if (sizes.empty()) return absl::OkStatus();
  for (size_t i = 0; i < sizes.size(); ++i) {
    MR_RETURN_IF_ERROR(CheckPositive("allowed_batch_sizes", sizes[i]));
    if (i > 0 && sizes[i] <= sizes[i - 1]) {
      return InvalidArgument("allowed_batch_sizes entries must be monotonically increasing");
    }
  }
  if (sizes.back() == parameters.max_execution_batch_size) return absl::OkStatus();
  return InvalidArgument(
      "Last entry in allowed_batch_sizes must ",
      parameters.enable_large_batch_splitting ? "be equal to max_execution_batch_size"
                                              : "match max_batch_size",
      "; last entry was ", sizes.back(), "; expected ", parameters.max_execution_batch_size);
}

}  // namespace

StatusOr<BatchParameters> ReadBatchParameters(absl::string_view text) {
  tensorflow::serving::BatchingParameters proto;
  FirstTextError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(std::string(text), &proto)) {
    return InvalidArgument("Error parsing text-format ", proto.GetTypeName(), ": ", error.text());
  }
  BatchParameters parameters;
  if (proto.has_max_batch_size()) parameters.max_batch_size = proto.max_batch_size().value();
  MR_RETURN_IF_ERROR(CheckPositive("max_batch_size", parameters.max_batch_size));
  if (proto.has_batch_timeout_micros()) {
    const int64_t micros = proto.batch_timeout_micros().value();
    if (micros < 0) {
      return InvalidArgument("batch_timeout_micros must be non-negative; was ", micros);
    }
    parameters.batch_timeout = absl::Microseconds(std::min(micros, kMaxTimeoutMicros));
  }
  if (proto.has_max_enqueued_batches()) {
    parameters.max_enqueued_batches = proto.max_enqueued_batches().value();
  }
  parameters.enable_large_batch_splitting = proto.enable_large_batch_splitting().value();
  // Without splitting TensorFlow Serving takes 0 for 1: old files say so.
  if (parameters.max_enqueued_batches == 0 && !parameters.enable_large_batch_splitting) {
    parameters.max_enqueued_batches = 1;
  }
  MR_RETURN_IF_ERROR(CheckPositive("max_enqueued_batches", parameters.max_enqueued_batches));
  if (proto.has_num_batch_threads()) {
    const int64_t threads = proto.num_batch_threads().value();
    MR_RETURN_IF_ERROR(CheckPositive("num_batch_threads", threads));
    if (threads > kMaxBatchThreads) {
      return InvalidArgument("num_batch_threads must be at most ", kMaxBatchThreads, "; was ",
                             threads);
    }
    parameters.num_batch_threads = static_cast<int>(threads);
  }
  if (proto.has_thread_pool_name()) parameters.thread_pool_name = proto.thread_pool_name().value();
  parameters.pad_variable_length_inputs = proto.pad_variable_length_inputs();
  parameters.max_execution_batch_size = parameters.max_batch_size;
  if (parameters.enable_large_batch_splitting && proto.has_max_execution_batch_size()) {
    parameters.max_execution_batch_size = proto.max_execution_batch_size().value();
    MR_RETURN_IF_ERROR(
        CheckPositive("max_execution_batch_size", parameters.max_execution_batch_size));
    if (parameters.max_execution_batch_size > parameters.max_batch_size) {
      return InvalidArgument(
          "When enable_large_batch_splitting is true, max_batch_size must be greater than or equal "
          "to max_execution_batch_size; was ",
          parameters.max_batch_size, " and ", parameters.max_execution_batch_size);
    }
  }
  parameters.allowed_batch_sizes.assign(proto.allowed_batch_sizes().begin(),
                                        proto.allowed_batch_sizes().end());
  MR_RETURN_IF_ERROR(CheckAllowedSizes(parameters));
  return parameters;
}

int64_t PaddedBatchSize(const std::vector<int64_t>& allowed, int64_t rows) {
  const auto size = std::lower_bound(allowed.begin(), allowed.end(), rows);
  return size == allowed.end() ? rows : *size;
}

}  // namespace millrace
