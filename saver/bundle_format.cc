// SPDX-License-Identifier: Apache-2.0
#include "saver/bundle_format.h"

#include <leveldb/env.h>
#include <leveldb/options.h>
#include <leveldb/table_builder.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/coding.h"
#include "saver/bundle_paths.h"

namespace millrace {
namespace {

// The index of a bundle is one LevelDB table with TensorFlow's settings, so that its bytes are the
// same.
constexpr size_t kIndexBlockSize = 262144;
constexpr int kBundleVersion = 1;
// A bound against headers that only damage makes.
constexpr int kMaxShards = 1 << 20;

tensorflow::BundleHeaderProto Header(int num_shards) {
  tensorflow::BundleHeaderProto header;
  header.set_num_shards(num_shards);
  header.set_endianness(tensorflow::BundleHeaderProto::LITTLE);
  header.mutable_version()->set_producer(kBundleVersion);
  return header;
}

// What LevelDB's TableBuilder writes to: a string.
class StringFile : public leveldb::WritableFile {
 public:
  explicit StringFile(std::string* bytes) : bytes_(bytes) {}
  leveldb::Status Append(const leveldb::Slice& data) override {
    bytes_->append(data.data(), data.size());
    return leveldb::Status::OK();
  }
  leveldb::Status Close() override { return leveldb::Status::OK(); }
  leveldb::Status Flush() override { return leveldb::Status::OK(); }
  leveldb::Status Sync() override { return leveldb::Status::OK(); }

 private:
  std::string* const bytes_;
};

}  // namespace

std::string BundleIndexPath(absl::string_view prefix) { return absl::StrCat(prefix, ".index"); }

std::string BundleDataPath(absl::string_view prefix, int shard, int num_shards) {
  return absl::StrFormat("%s.data-%05d-of-%05d", prefix, shard, num_shards);
}

bool IsDataSuffix(absl::string_view text) {
  const auto number = [&text] {
    const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(end);
    return end >= 5;
  };
  return absl::ConsumePrefix(&text, ".data-") && number() && absl::ConsumePrefix(&text, "-of-") &&
         number() && text.empty();
}

std::string CheckpointOfFile(absl::string_view path) {
  const size_t slash = path.rfind('/');
  const size_t name = slash == absl::string_view::npos ? 0 : slash + 1;
  const size_t dot = path.rfind('.');
  // A name that is nothing but a suffix is no file of a checkpoint.
  if (dot == absl::string_view::npos || dot <= name) return std::string(path);
  const absl::string_view suffix = path.substr(dot);
  const bool is_of_one = suffix == ".index" || suffix == ".meta" || IsDataSuffix(suffix);
  return std::string(is_of_one ? path.substr(0, dot) : path);
}

std::string BundleLockPath(absl::string_view prefix) { return absl::StrCat(prefix, ".lock"); }

std::string BundleIndex(int num_shards, const BundleEntries& entries) {
  std::string bytes;
  StringFile file(&bytes);
  leveldb::Options options;
  options.block_size = kIndexBlockSize;
  options.compression = leveldb::kNoCompression;
  leveldb::TableBuilder builder(options, &file);
  builder.Add("", Header(num_shards).SerializeAsString());
  for (const auto& [key, entry] : entries) builder.Add(key, entry.SerializeAsString());
  // A file in memory cannot fail.
  builder.Finish();
  return bytes;
}

StatusOr<tensorflow::BundleHeaderProto> CheckedHeader(const std::string& prefix,
                                                      const TableReader& table) {
  MR_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, table.Get(""));
  tensorflow::BundleHeaderProto header;
  const std::string where = absl::StrCat("Checkpoint '", prefix, "': ");
  if (!bytes || !header.ParseFromString(*bytes)) {
    return absl::DataLossError(absl::StrCat(where, "the index has no header"));
  }
  if (header.num_shards() < 1 || header.num_shards() > kMaxShards) {
    return absl::DataLossError(absl::StrCat(where, "the number of shards must be in [1, ",
                                            kMaxShards, "], got ", header.num_shards()));
  }
  if (header.endianness() != tensorflow::BundleHeaderProto::LITTLE) {
    return Unimplemented(where, "data must be little-endian, got big-endian");
  }
  if (header.version().min_consumer() > kBundleVersion) {
    return FailedPrecondition(where, "its format needs a reader of version ",
                              header.version().min_consumer(), ", this one has ", kBundleVersion,
                              "; it was written by a newer program");
  }
  for (int bad : header.version().bad_consumers()) {
    if (bad == kBundleVersion) {
      return FailedPrecondition(where, "it refuses readers of version ", kBundleVersion);
    }
  }
  return header;
}

void AppendLengthForCrc(uint64_t length, std::string* out) {
  if (length <= std::numeric_limits<uint32_t>::max()) {
    PutFixed32(out, static_cast<uint32_t>(length));
  } else {
    PutFixed64(out, length);
  }
}

}  // namespace millrace
