// SPDX-License-Identifier: Apache-2.0
#include "serving/monitoring/request_log.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/exceptions.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "google/protobuf/message.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/inference.pb.h"
#include "proto/serving/logging.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/prediction_log.pb.h"
#include "proto/serving/regression.pb.h"
#include "serving/aliased_tensor.h"
#include "serving/monitoring/sampling.h"
#include "serving/served_model.h"

namespace millrace {
namespace {

using tensorflow::serving::PredictionLog;

constexpr int64_t kRecordBytes = 16;  // around each record in a file

// Both, when they are messages; no log has one without the other.
template <typename Log>
Status CopyMessages(const RequestRecord& record, Log* log) {
  if (record.request == nullptr || record.response == nullptr) {
    return Internal("request log: a request must have its messages, got none");
  }
  log->mutable_request()->CopyFrom(*record.request);
  log->mutable_response()->CopyFrom(*record.response);
  return absl::OkStatus();
}

// A front that had no messages has tensors, and the rest of the request, or not even that.
Status CopyTensors(const RequestRecord& record, tensorflow::serving::PredictLog* log) {
  if (record.request != nullptr) log->mutable_request()->CopyFrom(*record.request);
  for (const AliasedTensor& input : record.inputs) {
    MR_RETURN_IF_ERROR(TensorToContentProto(
        input.tensor, &(*log->mutable_request()->mutable_inputs())[input.alias]));
  }
  for (const AliasedTensor& output : record.outputs) {
    MR_RETURN_IF_ERROR(TensorToContentProto(
        output.tensor, &(*log->mutable_response()->mutable_outputs())[output.alias]));
  }
  auto* const spec = log->mutable_request()->mutable_model_spec();
  if (record.request == nullptr) {
    spec->set_name(std::string(record.model));
    spec->set_signature_name(std::string(record.signature));
  }
  *log->mutable_response()->mutable_model_spec() = *spec;
  log->mutable_response()->mutable_model_spec()->mutable_version()->set_value(
      record.served->version());
  return absl::OkStatus();
}

Status FillLog(const RequestRecord& record, PredictionLog* log) {
  switch (record.api) {
    case RequestApi::kPredict:
      return record.response == nullptr ? CopyTensors(record, log->mutable_predict_log())
                                        : CopyMessages(record, log->mutable_predict_log());
    case RequestApi::kClassify:
      return CopyMessages(record, log->mutable_classify_log());
    case RequestApi::kRegress:
      return CopyMessages(record, log->mutable_regress_log());
    case RequestApi::kMultiInference:
      return CopyMessages(record, log->mutable_multi_inference_log());
  }
  return absl::OkStatus();
}

uint64_t TensorBytes(const Tensor& tensor) {
  if (tensor.dtype() != DT_STRING) return tensor.bytes().size();
  uint64_t bytes = 0;
  for (const std::string& text : tensor.flat<std::string>()) bytes += text.size();
  return bytes;
}

// Of which a record has at least so many. Nothing is copied to know them.
int64_t LeastBytes(const RequestRecord& record) {
  uint64_t bytes = 0;
  for (const google::protobuf::Message* message : {record.request, record.response}) {
    if (message != nullptr) bytes += message->ByteSizeLong();
  }
  if (record.response != nullptr) return static_cast<int64_t>(bytes);
  for (const absl::Span<const AliasedTensor> tensors : {record.inputs, record.outputs}) {
    for (const AliasedTensor& one : tensors) bytes += TensorBytes(one.tensor);
  }
  return static_cast<int64_t>(bytes);
}

StatusOr<std::string> LogBytes(const RequestRecord& record, double rate, absl::Time now) {
  PredictionLog log;
  MR_RETURN_IF_ERROR(FillLog(record, &log));
  auto* const metadata = log.mutable_log_metadata();
  metadata->mutable_model_spec()->set_name(std::string(record.model));
  metadata->mutable_model_spec()->set_signature_name(std::string(record.signature));
  metadata->mutable_model_spec()->mutable_version()->set_value(record.served->version());
  metadata->mutable_sampling_config()->set_sampling_rate(rate);
  metadata->set_timestamp_secs(absl::ToUnixSeconds(now));
  std::string bytes;
  if (!log.SerializeToString(&bytes)) {
    return InvalidArgument("request log: a record must have at most 2 GB, got ", log.ByteSizeLong(),
                           " bytes");
  }
  return bytes;
}

// The number behind "PREFIX-"; 0: it is no file of the prefix.
int64_t FileNumber(absl::string_view name, absl::string_view prefix) {
  int64_t number = 0;
  if (!absl::StartsWith(name, prefix)) return 0;
  name.remove_prefix(prefix.size());
  const bool is_ours = absl::StartsWith(name, "-") && name.size() >= 9 &&
                       absl::SimpleAtoi(name.substr(1), &number) && number > 0;
  return is_ours ? number : 0;
}

// Those in the directory of the prefix, by their numbers.
StatusOr<std::vector<std::pair<int64_t, std::string>>> NumberedFiles(FileSystem* fs,
                                                                     const std::string& prefix) {
  const std::string base = Basename(prefix);
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs->GetChildren(Dirname(prefix)));
  std::vector<std::pair<int64_t, std::string>> files;
  for (const std::string& name : names) {
    if (const int64_t number = FileNumber(name, base); number > 0) files.push_back({number, name});
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

StatusOr<std::vector<std::string>> RequestLogFiles(FileSystem* file_system,
                                                   const std::string& prefix) {
  const auto files = NumberedFiles(file_system, prefix);
  if (absl::IsNotFound(files.status())) return std::vector<std::string>();
  MR_RETURN_IF_ERROR(files.status());
  std::vector<std::string> paths;
  for (const auto& [number, name] : *files) paths.push_back(JoinPath(Dirname(prefix), name));
  return paths;
}

StatusOr<std::shared_ptr<RequestLog>> RequestLog::Start(
    std::shared_ptr<const ModelVersions> versions, MetricValues* counts,
    RequestLogOptions options) {
  options.max_files = std::max(options.max_files, 1);
  options.max_open_files = std::max(options.max_open_files, 1);
  std::shared_ptr<RequestLog> log(new RequestLog(std::move(versions), counts, options));
  try {
    log->thread_ = std::thread([raw = log.get()] { raw->Run(); });
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("request log: the system must give a thread, got ", e.what()));
  }
  return log;
}

RequestLog::RequestLog(std::shared_ptr<const ModelVersions> versions, MetricValues* counts,
                       const RequestLogOptions& options)
    : versions_(std::move(versions)), counts_(counts), options_(options) {}

RequestLog::~RequestLog() { Stop(); }

// Of the last list of models.
std::shared_ptr<const RequestLog::Settings> RequestLog::CurrentSettings() {
  MutexLock lock(&settings_mu_);
  const uint64_t num_lists = versions_->num_lists();
  if (num_lists != num_lists_.load(std::memory_order_relaxed)) {
    auto settings = std::make_shared<Settings>();
    for (const ModelSettings& model : versions_->models()) {
      if (model.request_log.sampling_rate > 0) (*settings)[model.name] = model.request_log;
    }
    logs_any_.store(!settings->empty(), std::memory_order_relaxed);
    settings_ = std::move(settings);
    num_lists_.store(num_lists, std::memory_order_release);
  }
  return settings_;
}

void RequestLog::Ended(const RequestRecord& record) {
  if (!record.status.ok() || record.served == nullptr) return;
  // Two loads where no model has a log.
  if (num_lists_.load(std::memory_order_acquire) == versions_->num_lists() &&
      !logs_any_.load(std::memory_order_relaxed)) {
    return;
  }
  const std::shared_ptr<const Settings> settings = CurrentSettings();
  if (settings == nullptr) return;
  const auto found = settings->find(record.model);
  if (found == settings->end() || !IsSampled(found->second.sampling_rate)) return;
  const std::string& model = found->first;
  // Nothing is copied that does not fit into the queue.
  const int64_t least = LeastBytes(record);
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    if (queue_bytes_ >= options_.max_queue_bytes ||
        least > options_.max_queue_bytes - queue_bytes_) {
      Count(model, absl::StatusCode::kResourceExhausted);
      return;
    }
  }
  StatusOr<std::string> bytes =
      LogBytes(record, found->second.sampling_rate, options_.clock->Now());
  if (!bytes.ok()) {
    Count(model, bytes.status().code());
    return;
  }
  const auto size = static_cast<int64_t>(bytes->size());
  MutexLock lock(&mu_);
  if (stopped_) return;
  if (queue_bytes_ + size > options_.max_queue_bytes) {
    Count(model, absl::StatusCode::kResourceExhausted);
    return;
  }
  queue_.push_back({model, found->second.filename_prefix, *std::move(bytes)});
  queue_bytes_ += size;
  changed_.SignalAll();
}

void RequestLog::Count(const std::string& model, absl::StatusCode code) {
  if (counts_ != nullptr) counts_->Find({model, absl::StatusCodeToString(code)})->Add();
}

void RequestLog::Run() {
  mu_.Lock();
  for (;;) {
    while (queue_.empty() && !stopped_) changed_.Wait(&mu_);
    if (queue_.empty()) break;
    // What is being written still counts: it takes memory.
    std::deque<Queued> records = std::exchange(queue_, {});
    const int64_t bytes = queue_bytes_;
    busy_ = true;
    mu_.Unlock();
    for (const Queued& record : records) {
      const Status written = NoExceptions("request log", [&] { return Write(record); });
      if (written.ok()) continue;
      Count(record.model, written.code());
      if (error_log_.ShouldLog()) LogWarning(written.ToString());
    }
    // A full disk may show only here.
    for (auto& [prefix, files] : files_) {
      if (files.writer != nullptr && !files.pending.empty()) Settle(files.writer->Flush(), &files);
    }
    records.clear();
    mu_.Lock();
    queue_bytes_ -= bytes;
    busy_ = false;
    changed_.SignalAll();
  }
  mu_.Unlock();
  for (auto& [prefix, files] : files_) {
    if (files.writer != nullptr) CloseFile(&files);
  }
  files_.clear();
}

Status RequestLog::Write(const Queued& record) {
  Files& files = files_[record.prefix];
  files.last_used = ++num_writes_;
  const int64_t size = static_cast<int64_t>(record.bytes.size()) + kRecordBytes;
  const bool is_full = files.bytes > 0 && files.bytes + size > options_.max_file_bytes;
  if (files.writer != nullptr && is_full) CloseFile(&files);
  if (files.writer == nullptr) {
    CloseOneOfMany();
    if (is_full || !Reopen(&files)) MR_RETURN_IF_ERROR(OpenNext(record.prefix, &files));
  }
  files.pending.push_back(&record);
  files.bytes += size;
  const Status written =
      NoExceptions("request log", [&] { return files.writer->Write(record.bytes); });
  if (!written.ok()) Settle(written, &files);
  return absl::OkStatus();
}

void RequestLog::Settle(const Status& status, Files* files) {
  for (const Queued* record : files->pending) Count(record->model, status.code());
  files->pending.clear();
  if (status.ok()) {
    if (std::exchange(files->is_new, false)) DeleteOld(files->prefix);
    return;
  }
  // A torn record is the last one of its file.
  files->writer = nullptr;
  if (std::exchange(files->is_new, false)) {
    options_.file_system->DeleteFile(files->path).IgnoreError();  // nothing of it can be read
  }
  files->path.clear();
  if (error_log_.ShouldLog()) LogWarning(status.ToString());
}

void RequestLog::CloseFile(Files* files) {
  Settle(std::exchange(files->writer, nullptr)->Close(), files);
}

void RequestLog::CloseOneOfMany() {
  int num_open = 0;
  Files* oldest = nullptr;
  for (auto& [prefix, files] : files_) {
    if (files.writer == nullptr) continue;
    ++num_open;
    if (oldest == nullptr || files.last_used < oldest->last_used) oldest = &files;
  }
  if (num_open >= options_.max_open_files) CloseFile(oldest);
}

bool RequestLog::Reopen(Files* files) {
  if (files->path.empty()) return false;
  FileSystem* const fs = options_.file_system;
  // As it was left: not taken away, not torn, of nobody else.
  const StatusOr<uint64_t> size = fs->GetFileSize(files->path);
  if (!size.ok() || static_cast<int64_t>(*size) != files->bytes) return false;
  StatusOr<std::unique_ptr<WritableFile>> file = fs->NewAppendableFile(files->path);
  if (!file.ok()) return false;
  files->writer = std::make_unique<RecordWriter>(*std::move(file));
  return true;
}

Status RequestLog::OpenNext(const std::string& prefix, Files* files) {
  FileSystem* const fs = options_.file_system;
  const std::string directory = Dirname(prefix);
  if (!directory.empty()) MR_RETURN_IF_ERROR(fs->RecursivelyCreateDirectory(directory));
  MR_ASSIGN_OR_RETURN(const auto old, NumberedFiles(fs, prefix));
  int64_t next = old.empty() ? 1 : old.back().first + 1;
  for (;;) {
    const std::string path = absl::StrCat(prefix, "-", absl::Dec(next, absl::kZeroPad8));
    StatusOr<std::unique_ptr<WritableFile>> file = fs->NewExclusiveFile(path);
    if (file.ok()) {
      files->writer = std::make_unique<RecordWriter>(*std::move(file));
      files->path = path;
      files->prefix = prefix;
      files->is_new = true;
      files->bytes = 0;
      return absl::OkStatus();
    }
    // Of another process with the same prefix.
    if (!absl::IsAlreadyExists(file.status())) return file.status();
    ++next;
  }
}

void RequestLog::DeleteOld(const std::string& prefix) const {
  const auto all = NumberedFiles(options_.file_system, prefix);
  if (!all.ok()) return LogWarning(all.status().ToString());
  const auto most = static_cast<size_t>(options_.max_files);
  for (size_t i = 0; i + most < all->size(); ++i) {
    const Status deleted =
        options_.file_system->DeleteFile(JoinPath(Dirname(prefix), (*all)[i].second));
    if (!deleted.ok()) LogWarning(deleted.ToString());
  }
}

void RequestLog::Flush() {
  MutexLock lock(&mu_);
  while ((!queue_.empty() || busy_) && !stopped_) changed_.Wait(&mu_);
}

void RequestLog::Stop() {
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.SignalAll();
  }
  MutexLock lock(&join_mu_);
  if (thread_.joinable()) thread_.join();
}

}  // namespace millrace
