// SPDX-License-Identifier: Apache-2.0
#include "estimator/vocab_remap.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace millrace {
namespace {

// The first `size` lines of a file, or all.
StatusOr<std::vector<std::string>> Words(FileSystem* fs, const std::string& path, int64_t size) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs, path));
  std::vector<std::string> words;
  absl::string_view rest = text;
  while (!rest.empty() && (size < 0 || static_cast<int64_t>(words.size()) < size)) {
    const size_t end = rest.find('\n');
    absl::string_view line = rest.substr(0, end);
    absl::ConsumeSuffix(&line, "\r");
    words.emplace_back(line);
    rest = end == absl::string_view::npos ? absl::string_view() : rest.substr(end + 1);
  }
  if (size > static_cast<int64_t>(words.size())) {
    return InvalidArgument("vocabulary '", path, "' must have the ", size,
                           " words that are to be used, got ", words.size(), " lines");
  }
  return words;
}

// The place of each; InvalidArgument for one that is there twice.
StatusOr<absl::flat_hash_map<absl::string_view, int64_t>> Places(
    const std::string& path, const std::vector<std::string>& words) {
  absl::flat_hash_map<absl::string_view, int64_t> places;
  places.reserve(words.size());
  for (size_t i = 0; i < words.size(); ++i) {
    const auto [place, is_first] = places.emplace(words[i], static_cast<int64_t>(i));
    if (is_first) continue;
    return InvalidArgument("vocabulary '", path, "' must have each word once, got '", words[i],
                           "' in lines ", place->second + 1, " and ", i + 1);
  }
  return places;
}

}  // namespace

StatusOr<VocabRemap> MakeVocabRemap(FileSystem* fs, const VocabInfo& info) {
  if (info.new_vocab_size <= 0) {
    return InvalidArgument("new_vocab_size must be > 0, got ", info.new_vocab_size);
  }
  if (info.num_oov_buckets < 0) {
    return InvalidArgument("num_oov_buckets must be >= 0, got ", info.num_oov_buckets);
  }
  if (info.old_vocab_size < -1 || info.old_vocab_size == 0) {
    return InvalidArgument("old_vocab_size must be > 0 or -1, got ", info.old_vocab_size);
  }
  if (info.axis != 0 && info.axis != 1) {
    return InvalidArgument("axis must be 0 or 1, got ", info.axis);
  }
  MR_ASSIGN_OR_RETURN(const auto old_words, Words(fs, info.old_vocab, info.old_vocab_size));
  MR_ASSIGN_OR_RETURN(const auto new_words, Words(fs, info.new_vocab, info.new_vocab_size));
  MR_ASSIGN_OR_RETURN(const auto old_places, Places(info.old_vocab, old_words));
  MR_RETURN_IF_ERROR(Places(info.new_vocab, new_words).status());
  VocabRemap remap;
  remap.old_size = static_cast<int64_t>(old_words.size());
  for (const std::string& word : new_words) {
    const auto found = old_places.find(word);
    remap.old_of_new.push_back(found == old_places.end() ? -1 : found->second);
  }
  remap.old_of_new.resize(remap.old_of_new.size() + static_cast<size_t>(info.num_oov_buckets), -1);
  return remap;
}

}  // namespace millrace
