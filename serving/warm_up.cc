// SPDX-License-Identifier: Apache-2.0
#include "serving/warm_up.h"

#include <cstddef>
#include <limits>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/exceptions.h"
#include "core/paced_thread.h"
#include "core/record.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/inference.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/prediction_log.pb.h"
#include "proto/serving/regression.pb.h"

namespace millrace {
namespace {

using tensorflow::serving::PredictionLog;

constexpr size_t kMaxTextBytes = 100;                                 // of a record in a message
constexpr size_t kMaxMessageBytes = std::numeric_limits<int>::max();  // protobuf's limit

// A writer that died in the twelve bytes before a record is no error of the reader; here it is: the
// file is not what was exported.
Status CheckEnd(const WarmUpOptions& options, const std::string& path, const RecordReader& reader) {
  MR_ASSIGN_OR_RETURN(const uint64_t size, options.file_system->GetFileSize(path));
  if (reader.offset() >= size) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("truncated record at ", reader.offset()));
}

StatusOr<int64_t> RunRecords(const ServedModel& model, const std::string& path,
                             const WarmUpOptions& options) {
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<RecordReader> reader,
                      RecordReader::Open(options.file_system, path));
  PredictionLog log;
  for (int64_t number = 0;; ++number) {
    const StatusOr<absl::string_view> record = reader->Next();
    Status end = record.status();
    if (absl::IsOutOfRange(end)) {
      end = CheckEnd(options, path, *reader);
      if (end.ok()) return number;
    }
    if (absl::IsDataLoss(end)) {
      return Suffixed(end, ". Please verify your warmup data is in TFRecord format.");
    }
    MR_RETURN_IF_ERROR(end);
    if (number == kMaxWarmUpRecords) {
      return InvalidArgument("Number of warmup records exceeds the maximum (", kMaxWarmUpRecords,
                             ") at ", path);
    }
    if (record->size() > kMaxMessageBytes ||
        !log.ParseFromArray(record->data(), static_cast<int>(record->size()))) {
      return InvalidArgument("Failed to parse warmup record: ",
                             absl::CHexEscape(record->substr(0, kMaxTextBytes)), " from ", path);
    }
    for (int i = 0; i < options.iterations; ++i) {
      MR_RETURN_IF_ERROR(Prefixed(absl::StrCat("Warm-up record ", number, " of ", path),
                                  RunWarmUpRecord(model, options.bounds, log)));
      PacePoint();
    }
  }
}

}  // namespace

Status RunWarmUpRecord(const ServedModel& model, const StepBounds& wanted,
                       const PredictionLog& log) {
  StepBounds bounds = wanted;
  bounds.runs_alone = true;
  switch (log.log_type_case()) {
    case PredictionLog::kClassifyLog: {
      tensorflow::serving::ClassificationResponse response;
      return model.Classify(log.classify_log().request(), bounds, &response);
    }
    case PredictionLog::kRegressLog: {
      tensorflow::serving::RegressionResponse response;
      return model.Regress(log.regress_log().request(), bounds, &response);
    }
    case PredictionLog::kPredictLog: {
      tensorflow::serving::PredictResponse response;
      return model.Predict(log.predict_log().request(), bounds, &response);
    }
    case PredictionLog::kMultiInferenceLog: {
      tensorflow::serving::MultiInferenceResponse response;
      return model.MultiInference(log.multi_inference_log().request(), bounds, &response);
    }
    case PredictionLog::kSessionRunLog:
    case PredictionLog::kPredictStreamedLog:
      return Unimplemented("Unsupported log_type for warmup: ", log.log_type_case(), " (",
                           log.has_session_run_log() ? "session_run_log" : "predict_streamed_log",
                           ")");
    case PredictionLog::LOG_TYPE_NOT_SET:
      return absl::OkStatus();  // as there
  }
  return absl::OkStatus();
}

StatusOr<int64_t> WarmUp(const ServedModel& model, const std::string& directory,
                         const WarmUpOptions& options) {
  const std::string path = JoinPath(directory, kWarmUpFile);
  if (!options.file_system->FileExists(path)) return 0;
  return NoExceptions("WarmUp", [&] { return RunRecords(model, path, options); });
}

}  // namespace millrace
