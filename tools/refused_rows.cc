// SPDX-License-Identifier: Apache-2.0
#include "tools/refused_rows.h"

#include <filesystem>
#include <iostream>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/compression.h"
#include "core/file_system.h"

namespace millrace {
namespace {

// "20" or "1.5%".
StatusOr<data::DropLimit> ParseLimit(const std::string& text) {
  data::DropLimit limit;
  absl::string_view number = text;
  if (absl::ConsumeSuffix(&number, "%")) {
    double percent = 0;
    if (absl::SimpleAtod(number, &percent) && percent >= 0 && percent <= 100) {
      limit.most_share = percent / 100;
      return limit;
    }
  } else if (absl::SimpleAtoi(number, &limit.most) && limit.most >= 0) {
    limit.most_share = 1;
    return limit;
  }
  return InvalidArgument(
      "--max_errors must be a number of rows or a share as '1.5%', at most '100%', got '", text,
      "'");
}

bool IsSamePath(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code ignored;  // of files that are not there
  if (fs::equivalent(a, b, ignored)) return true;
  return fs::path(a).lexically_normal() == fs::path(b).lexically_normal();
}

}  // namespace

std::vector<FlagSpec> WithRefusedRowsFlags(std::vector<FlagSpec> own) {
  own.push_back({.name = "ignore_errors", .help = "bad rows are left out and counted"});
  own.push_back({.name = "max_errors",
                 .value = "N|P%",
                 .help = "the most that are left out (1%, from 1000 rows on); ignores errors"});
  own.push_back({.name = "refused_rows",
                 .value = "FILE",
                 .help = "the rows that are left out, as they are; ignores errors"});
  return own;
}

RefusedRows::RefusedRows(std::string program, bool ignores, bool are_records,
                         const data::DropLimit& limit)
    : program_(std::move(program)),
      ignores_(ignores),
      are_records_(are_records),
      dropped_(limit, {.where = "--max_errors",
                       .unit = "rows",
                       .hint = "'--max_errors 100%' allows any number"}) {}

StatusOr<RefusedRows> RefusedRows::Make(const std::string& program, const CommandLine& flags,
                                        const data::RowFiles& rows,
                                        absl::Span<const std::string> outputs) {
  data::DropLimit limit;
  if (flags.has("max_errors")) {
    MR_ASSIGN_OR_RETURN(limit, ParseLimit(flags.value("max_errors")));
  }
  const bool has_file = flags.has("refused_rows");
  const bool ignores = flags.has("ignore_errors") || flags.has("max_errors") || has_file;
  RefusedRows refused(program, ignores, rows.are_records(), limit);
  if (!has_file) return refused;
  const std::string path = flags.value("refused_rows");
  for (const absl::Span<const std::string> others : {absl::MakeConstSpan(rows.files()), outputs}) {
    for (const std::string& other : others) {
      if (!IsSamePath(path, other)) continue;
      return InvalidArgument("--refused_rows must be a file of its own, got '", path,
                             "', which the program ",
                             others.data() == outputs.data() ? "writes" : "reads");
    }
  }
  MR_ASSIGN_OR_RETURN(refused.file_, data::NewFile::Create(FileSystem::Default(), path));
  if (rows.are_records()) {
    MR_RETURN_IF_ERROR(refused.file_->BeginRecords(Compression::kNone));
  } else if (flags.has("header")) {
    MR_RETURN_IF_ERROR(refused.file_->Append(absl::StrCat(rows.header(), "\n")));
  }
  return refused;
}

StatusOr<bool> RefusedRows::Next(data::RowFiles* rows) {
  while (true) {
    const StatusOr<bool> more = rows->Next();
    if (more.ok() || !rows->row_is_bad()) return more;
    MR_RETURN_IF_ERROR(Refuse(*rows, more.status()));
  }
}

Status RefusedRows::Refuse(const data::RowFiles& rows, const Status& error) {
  if (!ignores_) return error;
  if (dropped_.dropped() == 0) std::cerr << program_ << ": left out: " << error.message() << "\n";
  if (file_ != nullptr) {
    MR_RETURN_IF_ERROR(are_records_ ? file_->WriteRecord(rows.row())
                                    : file_->Append(absl::StrCat(rows.row(), "\n")));
  }
  return Ended(dropped_.Drop(error));
}

Status RefusedRows::Ended(Status allowed) {
  if (allowed.ok() || file_ == nullptr) return allowed;
  const Status written = file_->Commit();
  file_ = nullptr;
  return written.ok() ? allowed : written;
}

Status RefusedRows::Finish(const data::RowFiles& rows) {
  if (dropped_.dropped() > 0) {
    std::cerr << program_ << ": left out " << dropped_.Text() << "\n";
  }
  if (file_ != nullptr) MR_RETURN_IF_ERROR(file_->Commit());
  if (kept() > 0) return absl::OkStatus();
  if (dropped_.dropped() == 0) return rows.NoRows();
  return InvalidArgument("there must be at least one good row, got none; left out ",
                         dropped_.Text());
}

}  // namespace millrace
