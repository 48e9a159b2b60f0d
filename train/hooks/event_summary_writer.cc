// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/event_summary_writer.h"

#include "proto/event.pb.h"
#include "proto/meta_graph.pb.h"

namespace millrace {

StatusOr<std::unique_ptr<EventSummaryWriter>> EventSummaryWriter::Open(
    const std::string& directory, const EventWriterOptions& options) {
  MR_ASSIGN_OR_RETURN(std::shared_ptr<EventWriter> events,
                      EventWriterCache::Default()->Get(directory, options));
  return std::make_unique<EventSummaryWriter>(std::move(events));
}

Status EventSummaryWriter::AddScalar(absl::string_view tag, double value, int64_t step) {
  return events_->AddScalar(tag, static_cast<float>(value), step);
}

Status EventSummaryWriter::AddSummary(absl::string_view summary, int64_t step) {
  return events_->AddSerializedSummary(summary, step);
}

Status EventSummaryWriter::AddGraph(const tensorflow::GraphDef& graph) {
  return events_->AddGraph(graph);
}

Status EventSummaryWriter::AddMetaGraph(absl::string_view meta_graph) {
  tensorflow::MetaGraphDef parsed;
  if (!parsed.ParseFromArray(meta_graph.data(), static_cast<int>(meta_graph.size()))) {
    return InvalidArgument("AddMetaGraph: the bytes must be a MetaGraphDef, got ",
                           meta_graph.size(), " bytes of something else");
  }
  return events_->AddMetaGraph(parsed);
}

Status EventSummaryWriter::AddRunMetadata(absl::string_view tag,
                                          const tensorflow::RunMetadata& metadata, int64_t step) {
  return events_->AddRunMetadata(metadata, std::string(tag), step);
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
      break;
  }
  return events_->AddSessionLog(log, step);
}

Status EventSummaryWriter::Flush() { return events_->Flush(); }

}  // namespace millrace
