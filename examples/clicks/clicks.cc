// SPDX-License-Identifier: Apache-2.0
// clicks: impressions and clicks of a log, joined with users: clicks by region, and examples to
// train on.
//
//   clicks --impressions='log/impressions/part-r-*' --clicks='log/clicks/part-r-*'
//          --users=users.csv --regions=regions.csv --examples=clicks.tfrecord
//
// Files are CSV with a header, plain or gzipped, of any size: see click_join.h.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/compression.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "data/example_builder.h"
#include "data/new_file.h"
#include "data/row_files.h"
#include "examples/clicks/click_join.h"

ABSL_FLAG(std::string, impressions, "", "CSV files with impression_id, user_id and ad");
ABSL_FLAG(std::string, clicks, "", "CSV files with impression_id");
ABSL_FLAG(std::string, users, "", "CSV files with user_id and region");
ABSL_FLAG(std::string, regions, "regions.csv", "what is written: a line for each region");
ABSL_FLAG(std::string, examples, "",
          "TFRecords of tf.Example, one for each impression; empty: none");
ABSL_FLAG(std::string, examples_compression, "", "of them: GZIP or ZLIB");
ABSL_FLAG(int64_t, max_memory_mb, 256, "memory for rows; the rest goes through temporary files");
ABSL_FLAG(std::string, temp_dir, "", "where temporary files are; empty: next to --regions");

namespace millrace {
namespace {

// Calls `add` with these columns of each row.
Status ForEachRow(const char* flag, const std::string& patterns,
                  const std::vector<const char*>& names,
                  const std::function<Status(const std::vector<absl::string_view>&)>& add) {
  if (patterns.empty()) return InvalidArgument("--", flag, " must name files, got ''");
  const std::vector<std::string> parts = absl::StrSplit(patterns, ',');
  MR_ASSIGN_OR_RETURN(const auto rows, data::RowFiles::Open(parts, {.format = data::RowFormat::kCsv,
                                                                    .has_header = true}));
  std::vector<size_t> columns;
  for (const char* name : names) {
    const StatusOr<size_t> column = rows->FindColumn(name);
    MR_RETURN_IF_ERROR(Prefixed(absl::StrCat("--", flag), column.status()));
    columns.push_back(*column);
  }
  std::vector<absl::string_view> fields(columns.size());
  while (true) {
    MR_ASSIGN_OR_RETURN(const bool more, rows->Next());
    if (!more) return absl::OkStatus();
    for (size_t i = 0; i < columns.size(); ++i) fields[i] = rows->fields()[columns[i]];
    if (fields[0].empty()) {
      return InvalidArgument(rows->Where(), ": ", names[0], " must not be empty");
    }
    MR_RETURN_IF_ERROR(add(fields));
  }
}

// As a field of a CSV record.
std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

Status Run() {
  const int64_t memory_mb = absl::GetFlag(FLAGS_max_memory_mb);
  if (memory_mb < 1 || memory_mb > 1 << 20) {
    return InvalidArgument("--max_memory_mb must be in [1, ", 1 << 20, "], got ", memory_mb);
  }
  FileSystem* const fs = FileSystem::Default();
  const std::string regions_path = absl::GetFlag(FLAGS_regions);
  data::ExternalSortOptions memory;
  memory.max_bytes = static_cast<size_t>(memory_mb) << 20;
  memory.directory = absl::GetFlag(FLAGS_temp_dir);
  if (memory.directory.empty()) memory.directory = Dirname(regions_path);
  ClickJoin join(memory);
  MR_RETURN_IF_ERROR(ForEachRow(
      "impressions", absl::GetFlag(FLAGS_impressions), {"impression_id", "user_id", "ad"},
      [&](const auto& row) { return join.AddImpression(row[0], row[1], row[2]); }));
  MR_RETURN_IF_ERROR(ForEachRow("clicks", absl::GetFlag(FLAGS_clicks), {"impression_id"},
                                [&](const auto& row) { return join.AddClick(row[0]); }));
  MR_RETURN_IF_ERROR(ForEachRow("users", absl::GetFlag(FLAGS_users), {"user_id", "region"},
                                [&](const auto& row) { return join.AddUser(row[0], row[1]); }));

  std::unique_ptr<data::NewFile> examples;
  if (!absl::GetFlag(FLAGS_examples).empty()) {
    MR_ASSIGN_OR_RETURN(
        const Compression compression,
        ParseCompression("--examples_compression", absl::GetFlag(FLAGS_examples_compression)));
    MR_ASSIGN_OR_RETURN(examples, data::NewFile::Create(fs, absl::GetFlag(FLAGS_examples)));
    MR_RETURN_IF_ERROR(examples->BeginRecords(compression));
  }
  data::ExampleBuilder example;
  MR_ASSIGN_OR_RETURN(const auto regions, data::NewFile::Create(fs, regions_path));
  MR_RETURN_IF_ERROR(regions->Append("region,impressions,clicks,users,ctr\n"));
  MR_RETURN_IF_ERROR(join.Run(
      [&](const JoinedClick& click) -> Status {
        if (examples == nullptr) return absl::OkStatus();
        example.AddTexts("user_id", {std::string(click.user_id)});
        example.AddTexts("region", {std::string(click.region)});
        example.AddTexts("ad", {std::string(click.ad)});
        example.AddInts("clicked", {click.clicked ? 1 : 0});
        return examples->WriteRecord(example.Finish());
      },
      [&](const RegionCounts& counts) -> Status {
        return regions->Append(absl::StrFormat(
            "%s,%d,%d,%d,%.6f\n", CsvField(counts.region), counts.impressions, counts.clicks,
            counts.users,
            static_cast<double>(counts.clicks) / static_cast<double>(counts.impressions)));
      }));
  if (examples != nullptr) MR_RETURN_IF_ERROR(examples->Close());
  MR_RETURN_IF_ERROR(regions->Close());
  if (examples != nullptr) MR_RETURN_IF_ERROR(examples->Commit());
  MR_RETURN_IF_ERROR(regions->Commit());
  const ClickTotals& totals = join.totals();
  std::printf("%s: %lld impressions, %lld clicks, %lld users\n", regions_path.c_str(),
              static_cast<long long>(totals.impressions), static_cast<long long>(totals.clicks),
              static_cast<long long>(totals.users));
  std::printf(
      "left out: %lld repeated impressions, %lld repeated clicks, %lld clicks of no "
      "impression; %lld users with impressions are unknown\n",
      static_cast<long long>(totals.repeated_impressions),
      static_cast<long long>(totals.repeated_clicks), static_cast<long long>(totals.orphan_clicks),
      static_cast<long long>(totals.unknown_users));
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Joins impressions, clicks and users; counts clicks by region.");
  millrace::ParseProgramFlags(argc, argv);
  return millrace::ReportedExitCode(argv[0], millrace::Run());
}
