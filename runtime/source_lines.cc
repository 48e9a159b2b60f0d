// SPDX-License-Identifier: Apache-2.0
#include "runtime/source_lines.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace millrace {

void SourceLines::Add(std::vector<std::pair<std::string, std::string>> lines) {
  MutexLock lock(&mu_);
  for (auto& [node, line] : lines) lines_.insert_or_assign(std::move(node), std::move(line));
}

Status SourceLines::Complete(const Status& status) const {
  static constexpr absl::string_view kBegin = "{{node ";
  static constexpr absl::string_view kBuiltAt = "; built at ";
  const absl::string_view message = status.message();
  if (status.ok() || absl::StrContains(message, kBuiltAt)) return status;
  const size_t at = message.find(kBegin);
  if (at == absl::string_view::npos) return status;
  const size_t begin = at + kBegin.size();
  const size_t end = message.find("}}", begin);
  if (end == absl::string_view::npos) return status;
  MutexLock lock(&mu_);
  auto it = lines_.find(message.substr(begin, end - begin));
  return it == lines_.end() ? status : Suffixed(status, absl::StrCat(kBuiltAt, it->second));
}

}  // namespace millrace
