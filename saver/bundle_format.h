// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_BUNDLE_FORMAT_H_
#define MILLRACE_SAVER_BUNDLE_FORMAT_H_

// What the writer, the merger and the reader of bundles (saver/tensor_bundle.h) have in common: the
// index file, its header, and its place next to the data files.
//
// Thread-safety: pure functions over files. Failure: that of files, with their path; CheckedHeader
// DataLoss, Unimplemented or FailedPrecondition with the checkpoint's name.

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/table_reader.h"
#include "proto/tensor_bundle.pb.h"

namespace millrace {

// By key: the name of a tensor, or that of a slice (IsSliceKey).
using BundleEntries = std::map<std::string, tensorflow::BundleEntryProto>;

inline bool IsSliceKey(absl::string_view key) { return !key.empty() && key[0] == '\0'; }

// The bytes of an index.
std::string BundleIndex(int num_shards, const BundleEntries& entries);

// The header of a bundle that this version can read.
StatusOr<tensorflow::BundleHeaderProto> CheckedHeader(const std::string& prefix,
                                                      const TableReader& table);

// The length of a string as the checksum sees it: four bytes, or eight when it does not fit.
void AppendLengthForCrc(uint64_t length, std::string* out);

}  // namespace millrace

#endif  // MILLRACE_SAVER_BUNDLE_FORMAT_H_
