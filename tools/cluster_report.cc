// SPDX-License-Identifier: Apache-2.0
#include "tools/cluster_report.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "distributed/transport/peer_counts.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using nlohmann::ordered_json;

constexpr char kUnsaid[] = "-";

// A task's words must not move the cursor of a terminal.
std::string Printable(absl::string_view text) {
  std::string result;
  for (const char c : text) {
    if (absl::ascii_isprint(static_cast<unsigned char>(c))) {
      result.push_back(c);
    } else {
      absl::StrAppendFormat(&result, "\\x%02x", static_cast<unsigned char>(c));
    }
  }
  return result;
}

std::string Hex(uint64_t number) { return absl::StrFormat("%016x", number); }

// Rows of cells in columns; the first `num_texts` columns are texts, the others numbers. "" without
// rows below the head.
std::string Table(const std::vector<std::vector<std::string>>& rows, size_t num_texts) {
  if (rows.size() < 2) return "";
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&text, i == 0 ? "" : "  ", i < num_texts ? "" : space, row[i],
                      i < num_texts ? space : "");
    }
    text += "\n";
  }
  return text;
}

// As it calls itself, or else as it was asked for.
std::string NameOf(const TaskAnswer& task) {
  if (!task.task.empty()) return Printable(task.task);
  return task.asked.task.empty() ? task.asked.address : task.asked.task;
}

std::string MasterName(const TaskAnswer::Sessions& sessions) {
  return sessions.master.empty() ? kUnsaid : Printable(sessions.master);
}

std::string TaskTable(absl::Span<const TaskAnswer> tasks) {
  std::vector<std::vector<std::string>> rows = {
      {"task", "address", "state", "incarnation", "devices", "sessions", "running_steps"}};
  for (const TaskAnswer& task : tasks) {
    const bool said = !task.task.empty();
    int64_t sessions = 0, steps = 0;
    for (const auto& of_master : task.sessions.value_or(std::vector<TaskAnswer::Sessions>())) {
      sessions += of_master.open;
      steps += of_master.running_steps;
    }
    const bool tells = task.sessions.has_value();
    rows.push_back(
        {NameOf(task), task.asked.address, std::string(TaskStateName(task.state)),
         said ? Hex(task.incarnation) : kUnsaid, said ? absl::StrCat(task.devices.size()) : kUnsaid,
         tells ? absl::StrCat(sessions) : kUnsaid, tells ? absl::StrCat(steps) : kUnsaid});
  }
  return Table(rows, 4);
}

std::string SessionTable(absl::Span<const TaskAnswer> tasks) {
  std::vector<std::vector<std::string>> rows = {
      {"sessions_on", "opened_by", "open", "running_steps"}};
  for (const TaskAnswer& task : tasks) {
    for (const auto& sessions : task.sessions.value_or(std::vector<TaskAnswer::Sessions>())) {
      rows.push_back({NameOf(task), MasterName(sessions), absl::StrCat(sessions.open),
                      absl::StrCat(sessions.running_steps)});
    }
  }
  return Table(rows, 2);
}

std::string PeerTable(absl::Span<const TaskAnswer> tasks) {
  std::vector<std::vector<std::string>> rows = {
      {"exchanged_by", "with", "messages_sent", "bytes_sent", "tensors_sent", "queued_ms",
       "messages_received", "bytes_received", "tensors_received"}};
  for (const TaskAnswer& task : tasks) {
    for (const auto& [peer, counts] : task.peers.value_or(std::map<std::string, PeerCounts>())) {
      rows.push_back({NameOf(task), Printable(peer), absl::StrCat(counts.messages_sent),
                      absl::StrCat(counts.bytes_sent), absl::StrCat(counts.tensors_sent),
                      absl::StrFormat("%.3f", static_cast<double>(counts.queued_ns) / 1e6),
                      absl::StrCat(counts.messages_received), absl::StrCat(counts.bytes_received),
                      absl::StrCat(counts.tensors_received)});
    }
  }
  return Table(rows, 2);
}

int64_t Answering(absl::Span<const TaskAnswer> tasks) {
  return std::count_if(tasks.begin(), tasks.end(), [](const TaskAnswer& task) {
    return task.state == TaskAnswer::State::kAnswers;
  });
}

ordered_json TextOrNull(const std::string& text) {
  return text.empty() ? ordered_json() : ordered_json(text);
}

ordered_json ToJson(const TaskAnswer& task) {
  const bool said = !task.task.empty();
  ordered_json json = {{"address", task.asked.address},
                       {"asked_task", TextOrNull(task.asked.task)},
                       {"state", std::string(TaskStateName(task.state))},
                       {"reason", TextOrNull(task.reason)},
                       {"task", TextOrNull(task.task)},
                       {"job", TextOrNull(task.job)},
                       {"index", said ? ordered_json(task.index) : ordered_json()},
                       {"incarnation", said ? ordered_json(Hex(task.incarnation)) : ordered_json()},
                       {"devices", ordered_json::array()},
                       {"sessions", ordered_json()},
                       {"peers", ordered_json()}};
  for (const TaskAnswer::Device& device : task.devices) {
    json["devices"].push_back({{"name", device.name},
                               {"type", device.type},
                               {"incarnation", Hex(device.incarnation)},
                               {"memory_limit_bytes", device.memory_limit}});
  }
  if (task.sessions.has_value()) {
    json["sessions"] = ordered_json::array();
    for (const TaskAnswer::Sessions& sessions : *task.sessions) {
      json["sessions"].push_back({{"master", TextOrNull(sessions.master)},
                                  {"open", sessions.open},
                                  {"running_steps", sessions.running_steps}});
    }
  }
  if (task.peers.has_value()) {
    json["peers"] = ordered_json::array();
    for (const auto& [peer, counts] : *task.peers) {
      json["peers"].push_back({{"task", peer},
                               {"messages_sent", counts.messages_sent},
                               {"bytes_sent", counts.bytes_sent},
                               {"tensors_sent", counts.tensors_sent},
                               {"queued_ns", counts.queued_ns},
                               {"messages_received", counts.messages_received},
                               {"bytes_received", counts.bytes_received},
                               {"tensors_received", counts.tensors_received}});
    }
  }
  return json;
}

}  // namespace

std::string ClusterReport(absl::Span<const TaskAnswer> tasks) {
  std::string text = TaskTable(tasks);
  std::string reasons;
  for (const TaskAnswer& task : tasks) {
    if (task.reason.empty()) continue;
    const std::string name = task.asked.task.empty() ? "" : absl::StrCat(task.asked.task, ": ");
    absl::StrAppend(&reasons, name, Printable(task.reason), "\n");
  }
  for (const std::string& part : {reasons, SessionTable(tasks), PeerTable(tasks)}) {
    if (!part.empty()) absl::StrAppend(&text, "\n", part);
  }
  absl::StrAppend(&text, "\n", Answering(tasks), " of ", tasks.size(),
                  tasks.size() == 1 ? " task answers\n" : " tasks answer\n");
  return text;
}

std::string ClusterReportJson(absl::Span<const TaskAnswer> tasks) {
  ordered_json json = {
      {"asked", tasks.size()}, {"answering", Answering(tasks)}, {"tasks", ordered_json::array()}};
  for (const TaskAnswer& task : tasks) json["tasks"].push_back(ToJson(task));
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace millrace
