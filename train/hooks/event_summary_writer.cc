// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/event_summary_writer.h"

#include <utility>

#include "proto/event.pb.h"
#include "proto/meta_graph.pb.h"

namespace millrace {

StatusOr<std::unique_ptr<EventSummaryWriter>> EventSummaryWriter::Open(
    const std::string& directory, const EventWriterOptions& options) {
  MR_ASSIGN_OR_RETURN(std::shared_ptr<EventWriter> events,
                      EventWriterCache::Default()->Get(directory, options));
  return std::make_unique<EventSummaryWriter>(std::move(events));
}

Status EventSummaryWriter::Told(const Status& status) {
  if (status.ok() || absl::IsInvalidArgument(status) || absl::IsAlreadyExists(status)) {
    return status;
  }
  MutexLock lock(&mu_);
  if (std::exchange(has_failed_, true)) return absl::OkStatus();
  return Suffixed(status, "; events are lost until the next checkpoint is written");
}

Status EventSummaryWriter::AddScalar(absl::string_view tag, double value, int64_t step) {
  return Told(events_->AddScalar(tag, static_cast<float>(value), step));
}

Status EventSummaryWriter::AddSummary(absl::string_view summary, int64_t step) {
  return Told(events_->AddSerializedSummary(summary, step));
}

Status EventSummaryWriter::AddGraph(const tensorflow::GraphDef& graph) {
  return Told(events_->AddGraph(graph));
}

Status EventSummaryWriter::AddMetaGraph(absl::string_view meta_graph) {
  tensorflow::MetaGraphDef parsed;
  if (!parsed.ParseFromArray(meta_graph.data(), static_cast<int>(meta_graph.size()))) {
    return InvalidArgument("AddMetaGraph: the bytes must be a MetaGraphDef, got ",
                           meta_graph.size(), " bytes of something else");
  }
  return Told(events_->AddMetaGraph(parsed));
}

Status EventSummaryWriter::AddRunMetadata(absl::string_view tag,
                                          const tensorflow::RunMetadata& metadata, int64_t step) {
  return Told(events_->AddRunMetadata(metadata, std::string(tag), step));
}

Status EventSummaryWriter::AddSessionEvent(SessionEvent event, int64_t step,
                                           absl::string_view checkpoint) {
  tensorflow::SessionLog log;
  switch (event) {
    case SessionEvent::kStart:
      log.set_status(tensorflow::SessionLog::START);
      break;
    case SessionEvent::kStop:
      log.set_status(tensorflow::SessionLog::STOP);
      break;
    case SessionEvent::kCheckpoint:
      log.set_status(tensorflow::SessionLog::CHECKPOINT);
      log.set_checkpoint_path(std::string(checkpoint));
      MR_RETURN_IF_ERROR(Reopen());
      break;
  }
  return Told(events_->AddSessionLog(log, step));
}

Status EventSummaryWriter::Reopen() {
  {
    MutexLock lock(&mu_);
    if (!std::exchange(has_failed_, false)) return absl::OkStatus();
  }
  return Told(events_->Reopen());
}

Status EventSummaryWriter::Flush() {
  const Status flushed = events_->Flush();
  if (!flushed.ok()) return Told(flushed);
  MutexLock lock(&mu_);
  has_failed_ = false;
  return absl::OkStatus();
}

}  // namespace millrace
