// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_stats.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/hash_table.h"
#include "nlohmann/json.hpp"
#include "runtime/transfer_trace.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kNanosPerMicro = 1000;

// "name = Op(in1, in2)" taken apart; a memory part "[...] " before it is skipped. Behind it, in a
// loop, " in iteration 3 of loop".
struct Label {
  std::string op;
  std::vector<std::string> inputs;
  std::string iteration;  // "3 of loop"
};
Label ParseLabel(absl::string_view text) {
  Label label;
  const size_t equals = text.find(" = ");
  if (equals == absl::string_view::npos) {
    label.op = std::string(text);
    return label;
  }
  text.remove_prefix(equals + 3);
  const size_t paren = text.find('(');
  label.op = std::string(text.substr(0, paren));
  if (paren == absl::string_view::npos) return label;
  absl::string_view inside = text.substr(paren + 1);
  const size_t end = inside.find(')');
  if (end != absl::string_view::npos) {
    absl::string_view rest = inside.substr(end + 1);
    if (absl::ConsumePrefix(&rest, " in iteration ")) label.iteration = std::string(rest);
    inside = inside.substr(0, end);
  }
  for (absl::string_view input : absl::StrSplit(inside, ", ", absl::SkipEmpty())) {
    label.inputs.emplace_back(input);
  }
  return label;
}

// The node of an input name "a", "a:1" or "^a".
std::string ProducerName(absl::string_view input) {
  input = absl::StripPrefix(input, "^");
  return std::string(input.substr(0, input.find(':')));
}

// `of` is "name" or "labels", what a viewer shows behind the name.
ordered_json AboutProcess(int pid, const std::string& of, const std::string& text) {
  return {{"name", "process_" + of}, {"ph", "M"}, {"pid", pid}, {"args", {{of, text}}}};
}

// Slices of one process without overlap: each gets the first row that is free.
class Rows {
 public:
  int Place(int64_t start, int64_t end) {
    auto row = std::find_if(ends_.begin(), ends_.end(),
                            [start](int64_t row_end) { return row_end <= start; });
    if (row == ends_.end()) row = ends_.insert(row, 0);
    // A slice of no length still takes its place.
    *row = std::max(end, start + 1);
    return static_cast<int>(row - ends_.begin());
  }

 private:
  std::vector<int64_t> ends_;
};

// The tensors that crossed tasks: a process per device, and an arrow from each sender's slice to
// the receiver's.
class Transfers {
 public:
  void Add(const tensorflow::NodeExecStats& line, int pid, Rows* rows, ordered_json* events) {
    const std::string& label = line.timeline_label();
    const bool is_send = TransferSideOf(line) == TransferSide::kSender;
    const TransferParts parts = ParseTransferLabel(label);
    const int64_t start = line.all_start_micros();
    // Viewers bind arrows to slices that have a length.
    const int64_t length = std::max(line.all_end_rel_micros(), int64_t{1});
    const int row = rows->Place(start, start + length);
    events->push_back({{"name", line.node_name()},
                       {"cat", "Transfer"},
                       {"ph", "X"},
                       {"pid", pid},
                       {"tid", row},
                       {"ts", start},
                       {"dur", length},
                       {"args",
                        {{"name", std::string(parts.tensor)},
                         {"op", line.node_name()},
                         {"bytes", TransferBytes(line)},
                         {"peer", std::string(is_send ? parts.to : parts.from)}}}});
    Crossing& crossing = crossings_[label];
    // Inside of the slice: at its very end it would belong to none.
    (is_send ? crossing.send : crossing.recv) = End{pid, row, start + length - 1};
  }

  void AddArrows(int64_t id, ordered_json* events) const {
    for (const auto& [label, crossing] : crossings_) {
      if (!crossing.send || !crossing.recv) continue;
      const std::string tensor(ParseTransferLabel(label).tensor);
      const auto add = [&](const char* phase, const End& end, int64_t at) {
        ordered_json event = {{"name", tensor}, {"cat", "Transfer"}, {"ph", phase}, {"id", id},
                              {"pid", end.pid}, {"tid", end.row},    {"ts", at}};
        if (*phase == 'f') event["bp"] = "e";  // it ends in the slice around it
        events->push_back(std::move(event));
      };
      add("s", *crossing.send, crossing.send->at);
      // Both may be one microsecond.
      add("f", *crossing.recv, std::max(crossing.send->at, crossing.recv->at));
      ++id;
    }
  }

 private:
  struct End {
    int pid, row;
    int64_t at;
  };
  struct Crossing {
    std::optional<End> send, recv;
  };
  std::map<std::string, Crossing> crossings_;  // by label
};

}  // namespace

void StepStatsCollector::Add(const std::string& device, tensorflow::NodeExecStats stats) {
  if (is_full()) return;
  num_nodes_.fetch_add(1, std::memory_order_relaxed);
  MutexLock lock(&mu_);
  devices_[device].push_back(std::move(stats));
}

void StepStatsCollector::TakeInto(tensorflow::StepStats* stats) {
  MutexLock lock(&mu_);
  for (auto& [device, nodes] : devices_) {
    std::stable_sort(nodes.begin(), nodes.end(),
                     [](const tensorflow::NodeExecStats& a, const tensorflow::NodeExecStats& b) {
                       return a.all_start_nanos() < b.all_start_nanos();
                     });
    tensorflow::DeviceStepStats* out = stats->add_dev_stats();
    out->set_device(device);
    for (tensorflow::NodeExecStats& node : nodes) {
      (*out->mutable_thread_names())[node.thread_id()] = absl::StrCat("thread ", node.thread_id());
      *out->add_node_stats() = std::move(node);
    }
  }
  devices_.clear();
}

void SetTimes(const NodeTimes& times, tensorflow::NodeExecStats* stats) {
  const auto micros = [](int64_t nanos) { return nanos / kNanosPerMicro; };
  stats->set_scheduled_micros(micros(times.scheduled));
  stats->set_scheduled_nanos(times.scheduled);
  stats->set_all_start_micros(micros(times.start));
  stats->set_all_start_nanos(times.start);
  stats->set_op_start_rel_micros(micros(times.op_start - times.start));
  stats->set_op_start_rel_nanos(times.op_start - times.start);
  stats->set_op_end_rel_micros(micros(times.op_end - times.start));
  stats->set_op_end_rel_nanos(times.op_end - times.start);
  stats->set_all_end_rel_micros(micros(times.end - times.start));
  stats->set_all_end_rel_nanos(times.end - times.start);
}

void AddOutput(int slot, const Tensor& tensor, tensorflow::NodeExecStats* stats) {
  tensorflow::NodeOutput* output = stats->add_output();
  output->set_slot(slot);
  tensorflow::TensorDescription* description = output->mutable_tensor_description();
  description->set_dtype(static_cast<tensorflow::DataType>(tensor.dtype()));
  tensor.shape().ToProto(description->mutable_shape());
  const int64_t bytes = tensor.TotalBytes();
  tensorflow::AllocationDescription* allocation = description->mutable_allocation_description();
  allocation->set_requested_bytes(bytes);
  allocation->set_allocator_name("cpu");
}

uint32_t TraceThreadId() {
  static std::atomic<uint32_t> next{1};  // relaxed: hands out numbers
  thread_local const uint32_t id = next.fetch_add(1, std::memory_order_relaxed);
  return id;
}

std::string WriteChromeTrace(const tensorflow::StepStats& stats) {
  ordered_json events = ordered_json::array();
  struct Place {
    int pid, row;
    int64_t end;
  };
  HashMap<std::string, std::vector<Place>> producers;  // runs in the order in which they began
  struct Arrow {
    std::string from;
    int pid, row;
    int64_t at;
  };
  std::vector<Arrow> arrows;
  Transfers transfers;
  int pid = 0;
  for (const tensorflow::DeviceStepStats& device : stats.dev_stats()) {
    events.push_back(AboutProcess(pid, "name", absl::StrCat(device.device(), " Compute")));
    std::vector<const tensorflow::NodeExecStats*> nodes, crossing;
    for (const tensorflow::NodeExecStats& node : device.node_stats()) {
      if (IsClockStats(node)) {
        events.push_back(AboutProcess(pid, "labels", node.timeline_label()));
      } else {
        (TransferSideOf(node) ? crossing : nodes).push_back(&node);
      }
    }
    for (auto* lines : {&nodes, &crossing}) {
      std::stable_sort(lines->begin(), lines->end(), [](const auto* a, const auto* b) {
        return a->all_start_micros() < b->all_start_micros();
      });
    }
    Rows rows;
    for (const tensorflow::NodeExecStats* node : nodes) {
      const int64_t start = node->all_start_micros();
      const int64_t end = start + node->all_end_rel_micros();
      const int row = rows.Place(start, end);
      const Label label = ParseLabel(node->timeline_label());
      ordered_json args = {{"name", node->node_name()}, {"op", label.op}};
      if (!label.iteration.empty()) args["iteration"] = label.iteration;
      for (size_t i = 0; i < label.inputs.size(); ++i) {
        args[absl::StrCat("input", i)] = label.inputs[i];
        arrows.push_back({ProducerName(label.inputs[i]), pid, row, start});
      }
      events.push_back({{"name", label.op},
                        {"cat", "Op"},
                        {"ph", "X"},
                        {"pid", pid},
                        {"tid", row},
                        {"ts", start},
                        {"dur", node->all_end_rel_micros()},
                        {"args", args}});
      producers[node->node_name()].push_back({pid, row, end});
    }
    ++pid;
    if (crossing.empty()) continue;
    events.push_back(AboutProcess(pid, "name", absl::StrCat(device.device(), " Transfers")));
    Rows transfer_rows;
    for (const tensorflow::NodeExecStats* line : crossing) {
      transfers.Add(*line, pid, &transfer_rows, &events);
    }
    ++pid;
  }
  int64_t id = 0;
  for (const Arrow& arrow : arrows) {
    auto it = producers.find(arrow.from);
    if (it == producers.end()) continue;
    const std::vector<Place>& runs = it->second;
    // The last one that had ended, rounding apart.
    auto after = std::partition_point(runs.begin(), runs.end(),
                                      [&](const Place& run) { return run.end <= arrow.at + 1; });
    const Place& from = after == runs.begin() ? *after : *std::prev(after);
    for (const bool start : {true, false}) {
      events.push_back({{"name", arrow.from},
                        {"cat", "DataFlow"},
                        {"ph", start ? "s" : "t"},
                        {"id", id},
                        {"pid", start ? from.pid : arrow.pid},
                        {"tid", start ? from.row : arrow.row},
                        {"ts", start ? from.end : arrow.at}});
    }
    ++id;
  }
  transfers.AddArrows(id, &events);
  const ordered_json trace = {{"traceEvents", events}};
  // Names come from graphs: bytes that are not UTF-8 are replaced, not thrown at the caller.
  return trace.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace millrace
