// SPDX-License-Identifier: Apache-2.0
//
// inspect_events: what is in an event file, or in those of a directory: records by kind, and for
// each tag how often, at which steps and what last.
//
//   inspect_events [--json] FILE|DIR
//
// and how one scalar went, in the directory and in all below it, as rows of CSV or a picture:
//
//   inspect_events --tag loss [--csv | --svg | --json] FILE|DIR
//
// A file whose last record is not whole is read up to there: its writer may not be done. What was
// read of files with wrong bytes is shown, too, and all others. Exit codes: 0, 1 with the reasons
// on stderr, 2 for wrong flags.

#include <algorithm>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/dtype.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/status.h"
#include "core/tensor.h"
#include "formats/tensor_json.h"
#include "nlohmann/json.hpp"
#include "proto/event.pb.h"
#include "proto/graph.pb.h"
#include "proto/summary.pb.h"
#include "saver/event_scan.h"
#include "tools/command_line.h"
#include "tools/event_curves.h"
#include "tools/op_library_flag.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;
using tensorflow::Event;
using tensorflow::Summary;

constexpr char kProgram[] = "inspect_events";

ProgramHelp Help() {
  return {.name = kProgram,
          .about =
              "Shows what event files hold: records by kind, and the tags of summaries; or "
              "with --tag\nhow one scalar went, in DIR and all directories below it.",
          .flags = {{.name = "json", .help = "prints JSON"},
                    {.name = "tag", .value = "TAG", .help = "shows this scalar, run by run"},
                    {.name = "csv", .help = "prints its events: run, step, wall_time, value"},
                    {.name = "svg", .help = "prints its curves as a picture"},
                    OpLibraryFlag()},
          .rest = "FILE|DIR"};
}

const char* KindOf(const Event& event) {
  switch (event.what_case()) {
    case Event::kFileVersion:
      return "file_version";
    case Event::kGraphDef:
      return "graph_def";
    case Event::kSummary:
      return "summary";
    case Event::kLogMessage:
      return "log_message";
    case Event::kSessionLog:
      return "session_log";
    case Event::kTaggedRunMetadata:
      return "tagged_run_metadata";
    case Event::kMetaGraphDef:
      return "meta_graph_def";
    case Event::WHAT_NOT_SET:
      break;
  }
  return "nothing";
}

const char* KindOf(const Summary::Value& value) {
  switch (value.value_case()) {
    case Summary::Value::kSimpleValue:
      return "simple_value";
    case Summary::Value::kObsoleteOldStyleHistogram:
      return "obsolete_old_style_histogram";
    case Summary::Value::kImage:
      return "image";
    case Summary::Value::kHisto:
      return "histo";
    case Summary::Value::kAudio:
      return "audio";
    case Summary::Value::kTensor:
      return "tensor";
    case Summary::Value::VALUE_NOT_SET:
      break;
  }
  return "nothing";
}

struct Tag {
  std::string name;
  std::optional<std::string> plugin;
  int64_t count = 0;
  int64_t first_step = 0, last_step = 0;
  Summary::Value last;
};

struct Contents {
  int64_t records = 0;
  std::string file_version;
  std::map<std::string, int64_t> kinds;
  double first_wall_time = 0, last_wall_time = 0;
  std::optional<int64_t> graph_nodes;  // of the last graph
  std::vector<Tag> tags;               // in the order of their first values
  std::map<std::string, size_t> tag_places;
  std::vector<std::pair<std::string, int64_t>> files;  // with their records

  void Add(const std::string& file, Event event);
};

void Contents::Add(const std::string& file, Event event) {
  if (files.empty() || files.back().first != file) files.emplace_back(file, 0);
  ++files.back().second;
  if (records++ == 0) first_wall_time = event.wall_time();
  last_wall_time = event.wall_time();
  ++kinds[KindOf(event)];
  if (event.has_file_version()) file_version = event.file_version();
  if (tensorflow::GraphDef graph; event.what_case() == Event::kGraphDef) {
    if (graph.ParseFromString(event.graph_def())) graph_nodes = graph.node_size();
  }
  for (Summary::Value& value : *event.mutable_summary()->mutable_value()) {
    const std::string name = TagOf(value);
    const auto [place, is_new] = tag_places.emplace(name, tags.size());
    if (is_new) tags.emplace_back();
    Tag& tag = tags[place->second];
    if (is_new) tag.name = name;
    if (is_new) tag.first_step = event.step();
    if (value.has_metadata()) tag.plugin = value.metadata().plugin_data().plugin_name();
    ++tag.count;
    tag.last_step = event.step();
    tag.last = std::move(value);
  }
}

template <typename T>
ordered_json NumbersToJson(std::initializer_list<T> numbers) {
  ordered_json json;
  TensorToJson(Tensor::Vector<T>(numbers), &json).IgnoreError();  // numbers have a form
  return json["values"];
}

ordered_json TagToJson(const Tag& tag) {
  ordered_json json;
  json["kind"] = KindOf(tag.last);
  json["plugin"] = tag.plugin ? ordered_json(*tag.plugin) : ordered_json();
  json["count"] = tag.count;
  json["first_step"] = tag.first_step;
  json["last_step"] = tag.last_step;
  if (tag.last.value_case() == Summary::Value::kSimpleValue) {
    json["last_value"] = NumbersToJson({tag.last.simple_value()})[0];
  } else if (tag.last.has_histo()) {
    const tensorflow::HistogramProto& histo = tag.last.histo();
    json["last_num"] = NumbersToJson({histo.num()})[0];
    json["last_buckets"] = histo.bucket_size();
    json["last_min_max"] = NumbersToJson({histo.min(), histo.max()});
  } else if (tag.last.has_tensor()) {
    const StatusOr<DType> dtype = DTypeFromNumber(tag.last.tensor().dtype());
    json["dtype"] = dtype.ok() ? JsonTypeName(*dtype) : "unknown";
  }
  return json;
}

std::string Json(const Contents& contents) {
  ordered_json json;
  json["records"] = contents.records;
  json["file_version"] = contents.file_version;
  json["kinds"] = ordered_json::object();
  for (const auto& [kind, count] : contents.kinds) json["kinds"][kind] = count;
  json["first_wall_time"] = contents.first_wall_time;
  json["last_wall_time"] = contents.last_wall_time;
  json["graph_nodes"] = contents.graph_nodes ? ordered_json(*contents.graph_nodes) : ordered_json();
  json["tags"] = ordered_json::object();
  for (const Tag& tag : contents.tags) json["tags"][tag.name] = TagToJson(tag);
  return JsonText(json);
}

std::string LastText(const Tag& tag) {
  if (tag.last.value_case() == Summary::Value::kSimpleValue) {
    return NumbersToJson({tag.last.simple_value()})[0].dump();
  }
  if (tag.last.has_histo()) {
    const tensorflow::HistogramProto& histo = tag.last.histo();
    return absl::StrFormat("%g values in %g..%g", histo.num(), histo.min(), histo.max());
  }
  if (tag.last.has_image()) {
    return absl::StrCat(tag.last.image().width(), " x ", tag.last.image().height());
  }
  if (tag.last.has_tensor()) return TagToJson(tag)["dtype"].get<std::string>();
  return "";
}

std::string Text(const Contents& contents) {
  std::string text;
  for (const auto& [file, records] : contents.files) {
    absl::StrAppend(&text, file, ": ", records, " records\n");
  }
  absl::StrAppend(&text, contents.file_version, ", ");
  const auto time = [](double seconds) {
    return absl::FormatTime("%Y-%m-%d %H:%M:%E3S", absl::UnixEpoch() + absl::Seconds(seconds),
                            absl::UTCTimeZone());
  };
  absl::StrAppend(&text, time(contents.first_wall_time), " to ", time(contents.last_wall_time),
                  " UTC\n");
  absl::StrAppend(&text,
                  absl::StrJoin(contents.kinds, ", ",
                                [](std::string* out, const auto& kind) {
                                  absl::StrAppend(out, kind.first, " ", kind.second);
                                }),
                  "\n");
  if (contents.graph_nodes) {
    absl::StrAppend(&text, "graph of ", *contents.graph_nodes, " nodes\n");
  }
  if (contents.tags.empty()) return text;
  size_t width = 3;
  for (const Tag& tag : contents.tags) width = std::max(width, tag.name.size());
  absl::StrAppendFormat(&text, "\n%-*s  %-12s  %6s  %-14s  %s\n", static_cast<int>(width), "tag",
                        "kind", "count", "steps", "last");
  for (const Tag& tag : contents.tags) {
    absl::StrAppendFormat(&text, "%-*s  %-12s  %6d  %-14s  %s\n", static_cast<int>(width), tag.name,
                          KindOf(tag.last), tag.count,
                          absl::StrCat(tag.first_step, "..", tag.last_step), LastText(tag));
  }
  return text;
}

void Explain(const Status& status) { std::cerr << kProgram << ": " << status.message() << "\n"; }

Status ShowContents(const std::string& path, bool as_json) {
  Contents contents;
  Status end;  // the first of what is wrong; the others are said here
  const auto note = [&end](const Status& status) {
    if (!status.ok() && !end.ok()) Explain(status);
    end.Update(status);
  };
  note(ScanEvents(
      FileSystem::Default(), path,
      [&](const std::string& file, Event event) { contents.Add(file, std::move(event)); }, note));
  if (end.ok() && contents.records == 0) {
    return absl::NotFoundError(
        absl::StrCat("'", path,
                     "': an event file must have records, got none; event files have 'tfevents' in "
                     "their names"));
  }
  if (contents.records > 0) std::cout << (as_json ? Json(contents) : Text(contents));
  return end;
}

Status ShowCurves(const std::string& path, const CommandLine& flags) {
  MR_ASSIGN_OR_RETURN(const EventCurves curves,
                      ReadEventCurves(FileSystem::Default(), path, flags.value("tag")));
  if (flags.has("csv")) {
    std::cout << CurvesCsv(curves);
  } else if (flags.has("svg")) {
    std::cout << CurvesSvg(curves, absl::StrCat(curves.tag, " in ", path));
  } else {
    std::cout << (flags.has("json") ? JsonText(CurvesJson(curves)) : CurvesText(curves));
  }
  if (curves.damage.empty()) return absl::OkStatus();
  for (size_t i = 1; i < curves.damage.size(); ++i) Explain(curves.damage[i]);
  return curves.damage[0];
}

// What argparse says of flags that do not go together; "" when they do.
std::string WrongFlags(const CommandLine& flags) {
  std::string former;
  for (const char* const name : {"json", "csv", "svg"}) {
    if (!flags.has(name)) continue;
    if (!former.empty()) {
      return absl::StrCat("argument --", name, ": not allowed with argument --", former);
    }
    former = name;
  }
  if (flags.has("tag") && flags.value("tag").empty()) return "argument --tag: must name a scalar";
  if (!flags.has("tag") && !former.empty() && former != "json") {
    return absl::StrCat("argument --", former, ": needs --tag TAG");
  }
  return "";
}

int Main(const std::vector<std::string>& args) {
  EnterCallersDirectory();
  int exit_code = kExitOk;
  std::string path;
  const auto flags = CommandLine::ParseOrExplain(Help(), args, &exit_code, &path);
  if (!flags) return exit_code;
  if (const std::string wrong = WrongFlags(*flags); !wrong.empty()) {
    std::cerr << UsageText(Help()) << kProgram << ": error: " << wrong << "\n";
    return kExitWrongFlags;
  }
  Status status = LookForOpLibraries(*flags);
  if (status.ok()) {
    status = flags->has("tag") ? ShowCurves(path, *flags) : ShowContents(path, flags->has("json"));
  }
  if (!status.ok()) Explain(status);
  return ExitCode(status);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
